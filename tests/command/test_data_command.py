"""The command `python -m experiments.data` and the figure that it draws."""

import functools

import numpy as np
import pytest
from matplotlib import image

import fedjax_pfl as fp
from fedjax_pfl.command import data_command
from fedjax_pfl.data import statistics
from fedjax_pfl.figures import partitions
from tests.command import commands
from tests.data import samples
from tests.data.samples import SHARED
from tests.trust import files

pytestmark = pytest.mark.usefixtures("elsewhere")
run = functools.partial(commands.call, data_command.app)
refused = functools.partial(commands.refused, data_command.app)


def write_table(path):
    lines = [f"{i % 3},{i * 0.5},{'ann' if i < 20 else 'bob'}" for i in range(40)]
    path.write_text("\n".join(["kind,size,owner", *lines]) + "\n")
    return path


def write_mnist(folder):
    """Official files in small, so that only their checksums are wrong."""
    for part in ("train", "t10k"):
        images, labels = np.zeros((12, 28, 28)), np.arange(12) % 10
        samples.write(folder / f"{part}-images-idx3-ubyte.gz", files.idx(images))
        samples.write(folder / f"{part}-labels-idx1-ubyte.gz", files.idx(labels))


def test_clients_are_unseen_by_name_and_splits_stratified(tmp_path):
    own = f"show --data {write_table(tmp_path / 'my.csv')} --label kind --client owner"
    unseen = "--set federation.unseen_clients="
    shown = run(f"{own} --set federation.stratify=true {unseen}'[\"bob\"]'")
    assert "1 client with 20 of 40 examples" in shown.output
    assert "allowed: ann, bob" in refused(f"{own} {unseen}'[\"eve\"]'")
    every = '["ann","bob"]'
    sentence = refused(f"{own} {unseen}'{every}'").replace('", "', '","')
    assert f"--set 'federation.unseen_clients={every}'" in sentence


def test_list_names_every_data_set_with_its_options():
    result = run("list")
    rows = [line.split() for line in result.stdout.splitlines()]
    kinds = {
        words[0]: words[1] for words in rows if words and words[0] in fp.data.DATASETS
    }
    assert set(kinds) == set(fp.data.DATASETS)
    assert (kinds["digits"], kinds["mnist"]) == ("embedded", "files")
    assert (kinds["quadratic"], kinds["csv"]) == ("generated", "yours")
    assert "examples_per_client=10" in result.stdout


@pytest.mark.smoke
def test_show_prints_the_statistics_of_the_federation():
    line = "show --partition label_shards --clients 5 --seed 3 --rows 2"
    result = run(f"{line} --set federation.test_fraction=0.5")
    federation = fp.load_federation(
        "digits", fp.LabelShards(), num_clients=5, seed=3, test_fraction=0.5
    )
    found = statistics.describe(federation)
    assert result.stdout == f"{found.table(max_rows=2)}\n{found.summary()}\n"
    assert "3 more clients" in result.stdout and result.stdout.isascii()


@pytest.mark.parametrize(
    ("line", "texts"),
    [
        (
            "--partition leaky_dirichlet_labels --clients 10",
            ["of the test examples are training examples of another client"],
        ),
        (
            "--partition quality_skew --set federation.partition.sigma=2 --clients 4"
            " --set federation.malicious_fraction=0.5"
            " --set federation.label_poisoning=flipped_labels",
            ["std 0 to 1.5", "2 malicious clients with"],
        ),
    ],
)
def test_show_tells_of_the_leak_and_of_components(line, texts):
    said = run(f"show {line}").stdout
    assert all(text in said for text in texts)


def test_show_draws_a_figure_only_if_asked(tmp_path):
    run("show --rows 0")
    assert not list(tmp_path.iterdir())
    assert "who.png" in run("show --out who.png").stdout
    pixels = image.imread(tmp_path / "who.png")
    assert pixels.shape[1] == 1200 and pixels[..., :3].std() > 0.1


@pytest.mark.parametrize(
    ("line", "clients"),
    [
        ("--label kind --client owner", 2),
        ("--label kind --clients 4 --set federation.partition.min_examples=3", 4),
        ("--label size --clients 3", 3),  # numbers, which are no classes
    ],
)
def test_show_a_table_of_ones_own(tmp_path, line, clients):
    table = write_table(tmp_path / "mine.csv")
    result = run(f"show --data {table} {line}")
    assert f"{clients} clients with 40 of 40 examples" in result.stdout
    assert ("skew" in result.stdout) == ("kind" in line)


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("--dataset digit", "did you mean 'digits'?"),
        ("--dataset mnist", "--data-dir"),
        ("--partition irid", "did you mean 'iid'?"),
        ("--partition by_client", "needs natural clients"),
        ("--clients 500", "at least 5000 samples"),
        ("--set federation.num_clients=null", "needs num_clients"),
        ("--set algorithm.lam=1", "got 'algorithm.lam=1'"),
        ("--set federation.seed=1", "other than its seed"),
        ("--set federation.tset_fraction=0.1", "test_fraction"),
        ("--set federation.test_fraction=0.1,0.2", "Expected one federation"),
        ("--set federation.partition=iid,label_shards", "one federation"),
        ("--out who.txt", "to end in .png"),
        ("--out nowhere/who.png", "existing directory"),
        ("--data mine.csv", "--label"),
        ("--data mine.xyz", "mine.xyz"),
        ("--data x.csv --dataset digits", "Error: Invalid value"),
        ("--label kind", "Error: Invalid value"),
        ("--clients 0", "Error: Invalid value"),
        ("--seed -1", "Error: Invalid value"),
        ("--rows -1", "Error: Invalid value"),
    ],
)
def test_wrong_input_is_one_sentence(line, sentence):
    assert sentence in refused(f"show {line}")


def test_check_says_what_is_missing_and_what_is_damaged(tmp_path):
    write_mnist(tmp_path)
    result = run("check --data-dir", tmp_path, status=2)
    rows = [line.split() for line in result.stdout.splitlines()]
    status = {words[0]: words[1] for words in rows if len(words) > 1}
    assert status["mnist"] == "damaged" and status["cifar10"] == "missing"
    assert "digits" not in status and "quadratic" not in status
    assert "mnist: " in result.stdout
    assert result.stderr.count("\n") == 1 and "mnist" in result.stderr


def test_check_of_nothing(tmp_path):
    result = run("check --data-dir", tmp_path)
    assert "damaged" not in result.stdout
    assert "missing" in result.stdout and "--dataset NAME" in result.stdout
    assert "does not exist" in refused("check --data-dir", tmp_path / "no")


def test_check_of_real_files(tmp_path):
    if not (SHARED / "femnist").is_dir():
        pytest.skip("no data files")
    (tmp_path / "femnist").symlink_to(SHARED / "femnist")
    lines = run("check --data-dir", tmp_path).stdout.splitlines()
    (line,) = [x for x in lines if x.strip().startswith("femnist")]
    assert line.split()[1] == "ok" and "16,393" in line and "105" in line


@pytest.mark.parametrize(
    ("num_clients", "num_classes", "kinds"),
    [
        (10, 10, ("bars", "bubbles")),
        (60, 26, ("bars", "bubbles")),
        (60, 62, ("bars", "heat map")),
        (105, 62, ("heat map", "histogram")),
        (1000, 10, ("heat map", "histogram")),
        (1, 1, ("bars", "bubbles")),
        (12, None, ("bars",)),
        (100, None, ("histogram",)),
    ],
)
def test_figure(num_clients, num_classes, kinds, tmp_path):
    rng = np.random.default_rng(0)
    counts = rng.poisson(3, (num_clients, num_classes or 1)) + 1
    sizes = counts.sum(axis=1)
    classes = None if num_classes is None else counts
    holdings = partitions.Holdings("who has what", classes, sizes)
    figure = partitions.draw([holdings])
    figure.savefig(tmp_path / "figure.png", dpi=100)
    assert image.imread(tmp_path / "figure.png").shape[1] == 600
    panels = [axes for axes in figure.axes if axes.get_label() != "<colorbar>"]
    assert len(panels) == len(kinds)
    for axes, kind in zip(panels, kinds, strict=True):
        if kind == "bars":
            heights = [bar.get_height() for bar in axes.patches]
            np.testing.assert_array_equal(heights, sizes)
        elif kind == "histogram":
            assert sum(bar.get_height() for bar in axes.patches) == num_clients
        elif kind == "heat map":
            shown = axes.images[0].get_array()
            np.testing.assert_allclose(shown.T, counts / sizes[:, None])
        else:
            (bubbles,) = axes.collections
            areas = bubbles.get_sizes()
            np.testing.assert_allclose(
                areas / areas.max(), counts.ravel() / counts.max()
            )
            places = [(i, k) for i in range(num_clients) for k in range(num_classes)]
            np.testing.assert_array_equal(bubbles.get_offsets(), places)
    assert figure.subfigs[0].get_suptitle() == "who has what"


def test_figure_names_classes():
    counts = np.eye(3, dtype=int)
    names = ["cat", "dog", "a very long name of a class"]
    holdings = partitions.Holdings("t", counts, counts.sum(axis=1), names)
    figure = partitions.draw([holdings])
    shown = [text.get_text() for text in figure.axes[1].get_yticklabels()]
    assert shown[:2] == ["cat", "dog"] and len(shown[2]) == 16


@pytest.mark.parametrize(
    ("sizes", "scale"),
    [
        (np.geomspace(1, 1e5, 70), "log"),
        (np.full(70, 7), "linear"),
        (np.arange(70), "linear"),
        (np.array([0] * 69 + [1000]), "linear"),
    ],
)
def test_histogram_of_very_different_or_equal_sizes(sizes, scale):
    (axes,) = partitions.draw([partitions.Holdings("plain", None, sizes)]).axes
    assert axes.get_xscale() == scale
    assert sum(bar.get_height() for bar in axes.patches) == 70

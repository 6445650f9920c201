"""The command `python -m experiments.data` and the figure that it draws."""

import pathlib
import subprocess
import sys

import numpy as np
import pytest
import typer.testing
from matplotlib import image

import fedjax_pfl as fp
from fedjax_pfl.command import data_command
from fedjax_pfl.data import statistics
from fedjax_pfl.figures import partitions
from tests.data import samples
from tests.data.samples import SHARED
from tests.trust import files

RUNNER = typer.testing.CliRunner()


@pytest.fixture(autouse=True)
def no_environment(monkeypatch):
    monkeypatch.delenv("FEDJAX_PFL_DATA", raising=False)


def run(*arguments):
    return RUNNER.invoke(data_command.app, [str(argument) for argument in arguments])


def refused(*arguments):
    """The sentence that a command ends with."""
    result = run(*arguments)
    assert result.exit_code == 2, result.output
    return result.stderr


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
    table = write_table(tmp_path / "my.csv")
    own = ("show", "--data", table, "--label", "kind", "--client", "owner")
    more = ("--set", "federation.stratify=true")
    shown = run(*own, *more, "--set", 'federation.unseen_clients=["bob"]')
    assert shown.exit_code == 0, shown.output
    assert "1 client with 20 of 40 examples" in shown.output
    wrong = refused(*own, "--set", 'federation.unseen_clients=["eve"]')
    assert "allowed: ann, bob" in wrong
    every = 'federation.unseen_clients=["ann","bob"]'
    assert f"--set '{every}'" in refused(*own, "--set", every).replace('", "', '","')


def test_list_names_every_data_set_with_its_options():
    result = run("list")
    assert result.exit_code == 0
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
    result = run(
        "show",
        *("--partition", "label_shards", "--clients", "5", "--seed", "3"),
        *("--set", "federation.test_fraction=0.5", "--rows", "2"),
    )
    assert result.exit_code == 0, result.output
    federation = fp.load_federation(
        "digits", fp.LabelShards(), num_clients=5, seed=3, test_fraction=0.5
    )
    found = statistics.describe(federation)
    assert result.stdout == f"{found.table(max_rows=2)}\n{found.summary()}\n"
    assert "3 more clients" in result.stdout and result.stdout.isascii()


def test_show_tells_of_the_leak():
    result = run("show", "--partition", "leaky_dirichlet_labels", "--clients", "10")
    assert "of the test examples are training examples of another client" in (
        result.stdout
    )


def test_show_takes_components_with_their_fields():
    result = run(
        "show",
        *("--partition", "quality_skew", "--set", "federation.partition.sigma=2"),
        *("--clients", "4", "--set", "federation.malicious_fraction=0.5"),
        *("--set", "federation.label_poisoning=flipped_labels"),
    )
    assert result.exit_code == 0, result.output
    assert "std 0 to 1.5" in result.stdout
    assert "2 malicious clients with" in result.stdout


def test_show_draws_a_figure_only_if_asked(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run("show", "--rows", "0").exit_code == 0
    assert not list(tmp_path.iterdir())
    result = run("show", "--out", tmp_path / "who.png")
    assert result.exit_code == 0 and "who.png" in result.stdout
    pixels = image.imread(tmp_path / "who.png")
    assert pixels.shape[1] == 1200 and pixels[..., :3].std() > 0.1


@pytest.mark.parametrize(
    ("options", "clients"), [(("--client", "owner"), 2), (("--clients", "4"), 4)]
)
def test_show_a_table_of_ones_own(tmp_path, options, clients):
    table = write_table(tmp_path / "mine.csv")
    least = () if clients == 2 else ("--set", "federation.partition.min_examples=3")
    result = run("show", "--data", table, "--label", "kind", *options, *least)
    assert result.exit_code == 0, result.output
    assert f"{clients} clients with 40 of 40 examples" in result.stdout


def test_show_a_table_with_a_target_that_is_no_class(tmp_path):
    table = write_table(tmp_path / "mine.csv")
    result = run("show", "--data", table, "--label", "size", "--clients", "3")
    assert result.exit_code == 0, result.output
    assert "3 clients with 40 of 40" in result.stdout
    assert "skew" not in result.stdout


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--dataset", "digit"), "did you mean 'digits'?"),
        (("--dataset", "mnist"), "--data-dir"),
        (("--partition", "irid"), "did you mean 'iid'?"),
        (("--partition", "by_client"), "needs natural clients"),
        (("--clients", "500"), "at least 5000 samples"),
        (("--set", "federation.num_clients=null"), "needs num_clients"),
        (("--set", "algorithm.lam=1"), "got 'algorithm.lam=1'"),
        (("--set", "federation.seed=1"), "other than its seed"),
        (("--set", "federation.tset_fraction=0.1"), "test_fraction"),
        (("--set", "federation.test_fraction=0.1,0.2"), "Expected one federation"),
        (("--set", "federation.partition=iid,label_shards"), "one federation"),
        (("--out", "who.txt"), "to end in .png"),
        (("--out", "nowhere/who.png"), "existing directory"),
        (("--data", "mine.csv"), "--label"),
        (("--data", "mine.xyz"), "mine.xyz"),
    ],
)
def test_wrong_input_is_one_sentence(arguments, sentence):
    text = refused("show", *arguments)
    assert sentence in text and text.endswith(".\n") and text.count("\n") == 1


@pytest.mark.parametrize(
    "arguments",
    [
        ("--data", "x.csv", "--dataset", "digits"),
        ("--label", "kind"),
        ("--clients", "0"),
        ("--seed", "-1"),
        ("--rows", "-1"),
    ],
)
def test_wrong_options_are_refused_by_the_parser(arguments):
    assert "Error: Invalid value" in refused("show", *arguments)


def test_check_says_what_is_missing_and_what_is_damaged(tmp_path):
    write_mnist(tmp_path)
    result = run("check", "--data-dir", tmp_path)
    assert result.exit_code == 2
    rows = [line.split() for line in result.stdout.splitlines()]
    status = {words[0]: words[1] for words in rows if len(words) > 1}
    assert status["mnist"] == "damaged" and status["cifar10"] == "missing"
    assert "digits" not in status and "quadratic" not in status
    assert "mnist: " in result.stdout
    assert result.stderr.count("\n") == 1 and "mnist" in result.stderr


def test_check_of_nothing(tmp_path):
    result = run("check", "--data-dir", tmp_path)
    assert result.exit_code == 0 and "damaged" not in result.stdout
    assert "missing" in result.stdout and "--dataset NAME" in result.stdout
    assert "does not exist" in refused("check", "--data-dir", tmp_path / "no")


def test_check_of_real_files(tmp_path):
    if not (SHARED / "femnist").is_dir():
        pytest.skip("no data files")
    (tmp_path / "femnist").symlink_to(SHARED / "femnist")
    result = run("check", "--data-dir", tmp_path)
    (line,) = [x for x in result.stdout.splitlines() if x.strip().startswith("femnist")]
    assert line.split()[1] == "ok" and "16,393" in line and "105" in line


def test_help_does_not_import_jax():
    code = (
        "import sys\n"
        "from experiments import data\n"
        "try:\n"
        "    data.app(['show', '--help'])\n"
        "except SystemExit as end:\n"
        "    assert end.code == 0\n"
        "assert 'jax' not in sys.modules\n"
    )
    root = pathlib.Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=root, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "federation.partition.concentration=0.1" in " ".join(done.stdout.split())


def pixels_of(figure, path):
    figure.savefig(path, dpi=100)
    return image.imread(path)


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
    assert pixels_of(figure, tmp_path / "figure.png").shape[1] == 600
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
    assert title_of(figure.subfigs[0]) == "who has what"


def title_of(part):
    return part.get_suptitle()


def test_figure_names_classes():
    counts = np.eye(3, dtype=int)
    names = ["cat", "dog", "a very long name of a class"]
    holdings = partitions.Holdings("t", counts, counts.sum(axis=1), names)
    figure = partitions.draw([holdings])
    shown = [text.get_text() for text in figure.axes[1].get_yticklabels()]
    assert shown[:2] == ["cat", "dog"] and len(shown[2]) == 16


def drawn(sizes):
    return partitions.draw([partitions.Holdings("plain", None, sizes)])


def test_histogram_of_very_different_or_equal_sizes():
    wide = drawn(np.geomspace(1, 1e5, 100))
    assert wide.axes[0].get_xscale() == "log"
    for sizes in (np.full(70, 7), np.arange(70), np.array([0] * 69 + [1000])):
        (axes,) = drawn(sizes).axes
        assert axes.get_xscale() == "linear"
        assert sum(bar.get_height() for bar in axes.patches) == 70

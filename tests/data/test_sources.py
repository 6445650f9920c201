import functools
import gzip
import os
import pathlib
import subprocess
import sys
import types

import jax.numpy as jnp
import numpy as np
import pytest
import sklearn.datasets

from fedjax_pfl.data import federation as federations
from fedjax_pfl.data import partition, sources
from fedjax_pfl.data.readers import files
from fedjax_pfl.data.sources import embedded
from tests.data import samples
from tests.data.samples import SHARED
from tests.trust.files import idx

NAMES = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)


def arrays(num_train=6, num_test=3):
    rng = np.random.default_rng(0)
    made = []
    for size in (num_train, num_test):
        made.append(rng.integers(0, 256, (size, 28, 28)))
        made.append(rng.integers(0, 10, size))
    return made


def write(directory, contents, compress=False):
    directory.mkdir(parents=True, exist_ok=True)
    for name, content in zip(NAMES, contents, strict=True):
        if compress:
            (directory / f"{name}.gz").write_bytes(gzip.compress(content))
        else:
            (directory / name).write_bytes(content)


refusal = functools.partial(samples.refusal, sources.load_dataset)


def test_digits_are_those_that_scikit_learn_loads():
    bunch = sklearn.datasets.load_digits()
    digits = sources.load_dataset("digits")
    np.testing.assert_array_equal(digits.x, bunch.images)
    np.testing.assert_array_equal(digits.y, bunch.target)
    assert digits.x.shape == (1797, 8, 8) and digits.x.dtype == np.uint8
    assert digits.y.dtype == np.int32 and digits.num_classes == 10
    assert digits.scale == 1 / 16 and digits.shift == 0
    assert sources.load_dataset("digits") is digits


def test_digits_are_read_without_scikit_learn():
    code = (
        "import sys; from fedjax_pfl.data import sources;"
        "sources.load_dataset('digits'); print('sklearn' in sys.modules)"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (None, "No such file"),
        (b"no gzip file", "cannot be read"),
        (gzip.compress(b"0,1,2", mtime=0), "differs from the known file"),
    ],
)
def test_digits_that_are_not_there_are_one_sentence(
    tmp_path, monkeypatch, content, reason
):
    place = tmp_path / "datasets/data"
    place.mkdir(parents=True)
    if content is not None:
        (place / "digits.csv.gz").write_bytes(content)
    found = types.SimpleNamespace(submodule_search_locations=[str(tmp_path)])
    monkeypatch.setattr(embedded.util, "find_spec", lambda name: found)
    samples.refusal(embedded._content, match=f"{reason}.*install it again")


def test_digits_without_scikit_learn_are_one_sentence(monkeypatch):
    monkeypatch.setattr(embedded.util, "find_spec", lambda name: None)
    samples.refusal(embedded._content, match="scikit-learn is not installed")


@pytest.mark.parametrize("compress", [False, True])
@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("name", ["mnist", "fashion_mnist"])
def test_idx_files_give_train_then_test(tmp_path, compress, nested, name):
    parts = arrays()
    write(tmp_path / name if nested else tmp_path, map(idx, parts), compress)
    dataset = sources.load_dataset(name, tmp_path, verify=False)
    np.testing.assert_array_equal(dataset.x, np.concatenate(parts[::2]))
    np.testing.assert_array_equal(dataset.y, np.concatenate(parts[1::2]))
    assert dataset.x.dtype == np.uint8 and dataset.num_classes == 10
    pixels = np.arange(256)
    np.testing.assert_allclose(
        pixels * dataset.scale.astype(float) + dataset.shift,
        (pixels / 255 - 0.1307) / 0.3081,
        atol=1e-6,  # float32 rounding of values up to 3
    )


@pytest.mark.parametrize("name", ["mnist", "fashion_mnist"])
def test_every_pixel_is_standardized(tmp_path, name):
    parts = arrays()
    for images in parts[::2]:
        images[:, 0] = 0  # as at the border
        images[:, 1] = 255
    write(tmp_path, map(idx, parts))
    options = {"verify": False, "standardize": "pixel"}
    dataset = sources.load_dataset(name, tmp_path, **options)
    x = np.concatenate(parts[::2]).astype(float)
    np.testing.assert_array_equal(dataset.x, x)
    assert dataset.x.dtype == np.uint8 and dataset.scale.shape == (28, 28)
    federation = federations.from_dataset(
        dataset, partition.IID(), num_clients=2, test_fraction=0.0
    )
    train = federation.train.with_rows(
        {
            key: rows[1]
            for key, rows in federation.train.rows().items()
            if rows is not None
        }
    )
    batch = train.gather(jnp.array([2, 0, 1]), jnp.array([1.0, 1.0, 0.0]))
    wanted = (x - x.mean(axis=0)) / (x.std(axis=0) + 0.001)
    rows = np.asarray(train.index)[[2, 0]]
    # Float32 rounding of `x * scale`, up to 255 / std of the least std but 0, which is
    # above 10 here; constant pixels are 0.
    assert batch.x.shape == (3, 28, 28)
    np.testing.assert_allclose(batch.x[:2], wanted[rows], atol=1e-5)
    assert (np.asarray(batch.x[:2, :2]) == 0).all() and not np.asarray(batch.x[2]).any()
    default = sources.load_dataset(name, tmp_path, verify=False)
    assert default == sources.load_dataset(
        name, tmp_path, verify=False, standardize="global"
    )
    assert "did you mean 'pixel'" in refusal(name, tmp_path, standardize="pixels")


def test_the_environment_names_the_directory(tmp_path, monkeypatch):
    write(tmp_path, map(idx, arrays()))
    monkeypatch.setenv("FEDJAX_PFL_DATA", str(tmp_path))
    assert sources.load_dataset("mnist", verify=False).num_samples == 9


def test_files_are_read_once_until_they_change(tmp_path, monkeypatch):
    read = []
    original = files.read_content
    monkeypatch.setattr(
        files, "read_content", lambda path: read.append(path) or original(path)
    )
    write(tmp_path, map(idx, arrays()))
    first = sources.load_dataset("mnist", tmp_path, seed=0, verify=False)
    assert sources.load_dataset("mnist", tmp_path, seed=1, verify=False) is first
    assert len(read) == 4
    os.utime(tmp_path / NAMES[0], ns=(1, 1))
    assert sources.load_dataset("mnist", tmp_path, verify=False) is not first
    assert len(read) == 8


def test_no_directory_names_flag_variable_and_files(tmp_path):
    sentence = refusal("mnist")
    for part in ("--data-dir", "FEDJAX_PFL_DATA", "'mnist'", *NAMES):
        assert part in sentence


def test_wrong_directories(tmp_path):
    assert "does not exist" in refusal("mnist", tmp_path / "absent")
    (tmp_path / "file").write_text("")
    assert "is not a directory" in refusal("mnist", tmp_path / "file")


def test_an_unreadable_directory_and_file(tmp_path, monkeypatch):
    write(tmp_path, map(idx, arrays()))

    def deny(path):
        raise PermissionError(13, "Permission denied", str(path))

    with monkeypatch.context() as patch:  # permissions do not bind every test user
        patch.setattr(pathlib.Path, "iterdir", deny)
        assert "cannot be read: Permission denied" in refusal("mnist", tmp_path)
    monkeypatch.setattr(pathlib.Path, "read_bytes", deny)
    assert "cannot be read: Permission denied" in refusal("mnist", tmp_path)


def test_missing_files_are_named(tmp_path):
    write(tmp_path / "mnist", map(idx, arrays()))
    (tmp_path / "mnist" / NAMES[1]).unlink()
    (tmp_path / "mnist" / NAMES[2]).unlink()
    sentence = refusal("mnist", tmp_path)
    assert NAMES[1] in sentence and NAMES[2] in sentence
    assert NAMES[0] not in sentence and NAMES[3] not in sentence


def flipped(content):
    """Returns a copy with one bit flipped in the middle."""
    middle = len(content) // 2
    return content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]


@pytest.mark.parametrize(
    "damage", [*(lambda c, n=n: c[:n] for n in (3, 15, 200, -4)), flipped]
)
def test_damaged_gzip(tmp_path, damage):
    write(tmp_path, map(idx, arrays()), compress=True)
    path = tmp_path / f"{NAMES[0]}.gz"
    path.write_bytes(damage(path.read_bytes()))
    assert "not a complete gzip file" in refusal("mnist", tmp_path, verify=False)


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (lambda b: b"\x89PNG" + b[4:], "begin with '00000803' .*, got '89504e47' in"),
        (lambda b: b"", "header of 16 bytes, got '' in 0 bytes"),
        (lambda b: b[:2] + b"\x0d" + b[3:], "got '00000d03' in 4720 bytes"),
        (lambda b: b[:3] + b"\x01" + b[4:], "got '00000801' in"),
        (lambda b: b[:9], "got '00000803' in 9 bytes"),
        (lambda b: b[:-1], "holds 4703 values, expected 6 x 28 x 28 = 4704"),
        (lambda b: b + b"\0", "holds 4705 values, expected 6 x 28 x 28 = 4704"),
        (lambda b: b[:4] + bytes(4) + b"\xff" * 8, "= 0 and at least one"),
        (
            lambda b: idx(np.zeros((5, 28, 28))),
            "Expected .6, 28, 28. images .* got .5, 28, 28.",
        ),
        (
            lambda b: idx(np.zeros((6, 28, 27))),
            "Expected .6, 28, 28. images .* got .6, 28, 27.",
        ),
    ],
)
def test_damaged_idx_files(tmp_path, damage, sentence):
    contents = [idx(array) for array in arrays()]
    write(tmp_path, [damage(contents[0]), *contents[1:]])
    refusal("mnist", tmp_path, verify=False, match=sentence)


def test_labels_out_of_range(tmp_path):
    contents = [idx(array) for array in arrays()]
    write(tmp_path, [*contents[:3], idx(np.array([1, 2, 10]))])
    assert "whole numbers from 0 to 9" in refusal("mnist", tmp_path, verify=False)


def test_a_well_formed_file_that_is_not_the_official_one(tmp_path):
    write(tmp_path, map(idx, arrays()))
    sentence = refusal("mnist", tmp_path)
    assert "differs from the official one" in sentence
    assert sources.Mnist.sha256[NAMES[0]] in sentence


@pytest.mark.parametrize("name", ["mnist", "fashion_mnist"])
def test_official_files_pass_verification(name):
    if not (SHARED / name).is_dir():
        pytest.skip("the data files are not here")
    dataset = sources.load_dataset(name, SHARED)
    assert dataset.x.shape == (70_000, 28, 28)
    train, test = np.bincount(dataset.y[:60_000]), np.bincount(dataset.y[60_000:])
    if name == "mnist":
        assert dataset.y[:5].tolist() == [5, 0, 4, 1, 9]
        assert train[:3].tolist() == [5923, 6742, 5958]
        assert test[:3].tolist() == [980, 1135, 1032]
        shown = dataset.x[:60_000] * dataset.scale + dataset.shift
        # The constants are the train part's moments, rounded to four digits.
        assert abs(shown.mean(dtype=float)) < 2e-4
        assert abs(shown.std(dtype=float) - 1) < 2e-4
    else:
        assert (train == 6000).all() and (test == 1000).all()


def test_registry_names_and_options():
    for name, kind in sources.DATASETS.items():
        assert kind.name == name and hash(kind()) == hash(kind())
    assert "did you mean 'mnist'" in refusal("mnits")
    assert "Unknown option of digits" in refusal("digits", dim=3)
    assert "did you mean 'dim'" in refusal("quadratic", dims=3)
    assert "got 'no'" in refusal("mnist", verify="no")
    assert "num_clients" in refusal("quadratic", num_clients=0)
    assert "seed" in refusal("quadratic", seed=-1)
    assert sources.load_dataset("digits", num_clients=None).num_samples == 1797


def test_a_directory_is_checked(tmp_path):
    write(tmp_path / "mnist", map(idx, arrays()))
    (tmp_path / "fashion_mnist").mkdir()
    (tmp_path / "stocks").mkdir()
    content = "".join(
        f"2020-01-{day:02},A,{day}\n" for day in (*range(1, 29), *[31] * 2)
    )
    (tmp_path / "stocks" / "a.csv").write_text(f"date,ticker,close\n{content}")
    found = {one.name: one for one in sources.check(tmp_path)}
    files_needed = [n for n, k in sources.DATASETS.items() if hasattr(k, "layouts")]
    assert list(found) == files_needed and len(found) == 9
    assert found["mnist"].status == "damaged" and found["mnist"].layout == "idx"
    assert "differs from the official one" in found["mnist"].problem
    assert found["stocks"].status == "damaged"
    assert "repeats date 2020-01-31" in found["stocks"].problem
    for name in set(found) - {"mnist", "stocks"}:
        assert found[name].status == "missing" and found[name].layout is None
        assert "--data-dir" in found[name].problem
    with (tmp_path / "stocks" / "a.csv").open("w") as file:
        file.write("date,ticker,close\n")
        for ticker, days in (("A", 20), ("B", 99), ("C", 40)):
            dates = np.datetime64("2020-01-01") + np.arange(days)
            file.writelines(f"{d},{ticker},{1 + k % 7}\n" for k, d in enumerate(dates))
    stocks = {one.name: one for one in sources.check(tmp_path)}["stocks"]
    assert (stocks.status, stocks.layout, stocks.problem) == ("ok", "csv", None)
    # 99 - 31 and 40 - 31 windows of 30 returns and the next one; A has none.
    assert (stocks.num_samples, stocks.num_classes, stocks.num_clients) == (77, 2, 2)
    assert 0 < stocks.seconds < 10


def test_a_missing_directory_is_checked(tmp_path):
    assert {one.status for one in sources.check()} == {"missing"}
    samples.refusal(sources.check, tmp_path / "absent", match="does not exist")

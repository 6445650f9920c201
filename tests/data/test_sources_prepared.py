"""What tensorflow-datasets prepared, simulated by its own stand-in data."""

import contextlib
import functools
import json
import pathlib
import subprocess
import sys
import warnings

import numpy as np
import pytest

from fedjax_pfl.data import sources
from fedjax_pfl.data.sources import base, prepared
from tests.data import samples

refusal = functools.partial(samples.refusal, sources.load_dataset)
BUILDERS = {
    "mnist": "mnist",
    "fashion_mnist": "fashion_mnist",
    "cifar10": "cifar10",
    "cifar100": "cifar100",
    "sent140": "sentiment140",
    "shakespeare": "tiny_shakespeare",
}


def prepare(root, name):
    """A folder that looks as if the data set had been prepared."""
    path = root / BUILDERS[name] / "3.0.1" / "dataset_info.json"
    path.parent.mkdir(parents=True)
    path.write_text("{}")
    return path


@pytest.fixture
def tfds():
    # Warnings are of the packages that it imports.
    with warnings.catch_warnings(action="ignore"):
        package = pytest.importorskip("tensorflow_datasets")
        pytest.importorskip("importlib_resources")
        from tensorflow_datasets import testing  # noqa: F401 (loaded lazily)

        yield package


def stand_in(monkeypatch, tfds, splits):
    """Gives chosen examples instead of those of a prepared data set."""
    asked = []

    def data_source(name, *, data_dir, split, download):
        asked.append((name, data_dir, download))
        return [splits[part] for part in split]

    monkeypatch.setattr(tfds, "data_source", data_source)
    return asked


@pytest.mark.parametrize("name", ["mnist", "fashion_mnist", "cifar10", "cifar100"])
def test_images_of_the_packages_own_stand_in(tmp_path, tfds, name):
    prepare(tmp_path, name)
    with tfds.testing.mock_data(num_examples=7):
        given = tfds.data_source(BUILDERS[name], split="train", download=False)
        dataset = sources.load_dataset(name, tmp_path)
        expected = np.stack([example["image"] for example in given])
        labels = [example["label"] for example in given]
    # The stand-in gives the same examples for both splits.
    shape = (28, 28) if "mnist" in name else (32, 32, 3)
    assert dataset.x.shape == (14, *shape) and dataset.x.dtype == np.uint8
    expected = expected.reshape(7, *shape)
    np.testing.assert_array_equal(dataset.x, np.concatenate([expected, expected]))
    assert dataset.y.tolist() == labels * 2
    assert dataset.scale.size in (1, 3)


def test_train_comes_before_test(tmp_path, tfds, monkeypatch):
    prepare(tmp_path, "cifar100")
    train = [
        {"image": np.full((32, 32, 3), k, np.uint8), "label": k, "coarse_label": k // 5}
        for k in range(50)
    ]
    asked = stand_in(monkeypatch, tfds, {"train": train * 30, "test": train[:9]})
    dataset = sources.load_dataset("cifar100", tmp_path, labels="coarse")
    numbers = [*range(50)] * 30 + [*range(9)]
    assert dataset.x[:, 0, 0, 0].tolist() == numbers
    assert dataset.y.tolist() == [k // 5 for k in numbers]
    assert asked == [("cifar100", str(tmp_path), False)]  # nothing is downloaded


def test_prepared_tweets(tmp_path, tfds, monkeypatch):
    prepare(tmp_path, "sent140")
    (tmp_path / "glove.txt").write_text("good 1 2\nbad 3 4\n")

    def tweet(user, text, polarity):
        return {"user": user, "text": text, "polarity": np.int32(polarity)}

    train = [tweet(b"ann", b"Good!", 4), tweet(b"bob", b"bad \xff", 0)]
    test = [tweet(b"eve", b"so so", 2), tweet(b"ann", b"bad", 0)]
    stand_in(monkeypatch, tfds, {"train": train, "test": test})
    dataset = sources.load_dataset("sent140", tmp_path, glove="glove.txt", num_words=2)
    assert dataset.client_names == ("ann", "bob")  # eve is neutral
    assert dataset.x.tolist() == [[1, 0], [2, 0], [2, 0]]
    assert dataset.y.tolist() == [1, 0, 0] and dataset.client.tolist() == [0, 0, 1]


def test_a_prepared_play(tmp_path, tfds, monkeypatch):
    prepare(tmp_path, "shakespeare")
    parts = {"train": b"ANN:\nabc", "validation": b"def\n\nBOB:\n", "test": b"xyzuv"}
    splits = {name: [{"text": text}] for name, text in parts.items()}
    stand_in(monkeypatch, tfds, splits)
    options = {"context": 4, "stride": 1}
    dataset = sources.load_dataset("shakespeare", tmp_path, verify=False, **options)
    assert dataset.client_names == ("ANN", "BOB")
    targets = [dataset.class_names[k] for k in dataset.y]
    assert targets == ["e", "f", "v"]
    refusal("shakespeare", tmp_path, **options, match="differs from the official one")


@pytest.mark.parametrize("name", BUILDERS)
def test_files_come_before_prepared_data(tmp_path, name):
    source = sources.source(name)
    (tmp_path / "glove.1.txt").write_text("a 1")
    with pytest.raises(base.MissingFilesError, match=BUILDERS[name]):
        source.locate(str(tmp_path))
    info = prepare(tmp_path, name)
    found = source.locate(str(tmp_path))
    assert found.layout == prepared.LAYOUT and found.paths[0] == info
    layout = source.layouts[0]
    for file in (*layout.files, *(p.replace("*", "a") for p in layout.patterns)):
        path = tmp_path / source.name / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"")
    assert source.locate(str(tmp_path)).layout == layout.name


def test_damaged_prepared_data(tmp_path, tfds):
    prepare(tmp_path, "mnist")
    refusal("mnist", tmp_path, match="tensorflow-datasets cannot read")


@pytest.mark.parametrize(
    "features",
    [
        {"pythonClassName": "stranger.Image"},
        {"python_class_name": "stranger.Image"},
        {"type": "stranger.Image", "content": {}},
    ],
    ids=lambda features: next(iter(features)),
)
def test_no_module_is_imported_that_a_folder_names(
    tmp_path, tfds, monkeypatch, features
):
    """The package imports the modules of classes of features."""
    info = prepare(tmp_path, "mnist")
    described = {"name": "mnist", "version": "3.0.1", "fileFormat": "array_record"}
    info.write_text(json.dumps(described))
    (tmp_path / "stranger.py").write_text("import pathlib\npathlib.Path('s').touch()")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "stranger", raising=False)
    file = info.parent / "features.json"
    inner = {"type": "tensorflow_datasets.X", "content": json.dumps([features])}
    for content in (features, {"features": {"image": features}}, [features], inner):
        file.write_text(json.dumps(content))
        refusal("mnist", tmp_path, match='got "stranger.Image"')
    file.write_text(json.dumps(features))
    assert not (tmp_path / "s").exists()
    with contextlib.suppress(Exception):  # it would be, without the check
        tfds.features.FeatureConnector.from_config(str(info.parent))
    assert (tmp_path / "s").exists()


def test_a_missing_package_of_the_package(tmp_path, tfds, monkeypatch):
    prepare(tmp_path, "mnist")

    def data_source(name, **options):
        raise ModuleNotFoundError("No module named 'importlib_resources'\n(or so).")

    monkeypatch.setattr(tfds, "data_source", data_source)
    parts = ("importlib_resources", 'pip install "fedjax_pfl[data]".')
    refusal("mnist", tmp_path, parts=parts)


def test_the_missing_package_is_named(tmp_path):
    prepare(tmp_path, "mnist")
    code = f"""
import sys
sys.modules["tensorflow_datasets"] = None  # as if it were not installed
from fedjax_pfl.data import sources
try:
    sources.load_dataset("mnist", {str(tmp_path)!r})
except sources.checks.InputError as error:
    print(error)
"""
    run = subprocess.run(
        [sys.executable, "-c", code],
        cwd=pathlib.Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=True,
    )
    (sentence,) = run.stdout.splitlines()
    assert 'pip install "fedjax_pfl[data]".' in sentence
    assert "tensorflow_datasets" in sentence

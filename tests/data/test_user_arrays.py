import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest

import fedjax_pfl as fp
from fedjax_pfl.data.sources import user
from tests.data import samples
from tests.data.samples import refusal

X = np.arange(12.0).reshape(4, 3)


def make(x=X, y=(0, 1, 1, 0), client=None, **options):
    return user.arrays_dataset(x, y, client, name="mine", **options)


@pytest.mark.parametrize(
    ("x", "dtype", "scale"),
    [
        (X, np.float32, 1),
        (X.tolist(), np.float32, 1),
        (jnp.asarray(X), np.float32, 1),
        (pd.DataFrame(X), np.float32, 1),
        (X > 5, np.float32, 1),
        (X.astype(np.int64), np.int32, 1),
        (X.astype(np.uint8), np.uint8, 1),
        (X.astype(np.uint8).reshape(4, 3, 1), np.uint8, 1 / 255),
    ],
)
def test_inputs_of_every_origin(x, dtype, scale):
    dataset = make(x)
    assert dataset.x.dtype == dtype and dataset.scale == np.float32(scale)
    np.testing.assert_array_equal(dataset.x, np.asarray(x))


@pytest.mark.parametrize(
    ("y", "stored", "names"),
    [
        ([0, 2, 1, 0], [0, 2, 1, 0], ("0", "1", "2")),
        (np.array([7, -3, 7, 20], np.int16), [1, 0, 1, 2], ("-3", "7", "20")),
        (np.array([3, 5, 3, 3], np.uint8), [0, 1, 0, 0], ("3", "5")),
        ([True, False, True, True], [1, 0, 1, 1], ("False", "True")),
        (["b", "a", "b", "b"], [1, 0, 1, 1], ("a", "b")),
        (pd.Series(["b", "a", "b", "b"]), [1, 0, 1, 1], ("a", "b")),
        (pd.Series(["b", "a", "b", "b"], dtype="category"), [1, 0, 1, 1], ("a", "b")),
        (pd.Series([4, 9, 4, 4], dtype=object), [0, 1, 0, 0], ("4", "9")),
        (jnp.asarray([4, 9, 4, 4]), [0, 1, 0, 0], ("4", "9")),
    ],
)
def test_classes_are_numbered_in_sorted_order(y, stored, names):
    dataset = make(y=y)
    assert dataset.y.tolist() == stored and dataset.class_names == names
    assert dataset.num_classes == len(names) and dataset.y.dtype == np.int32


def test_given_classes_stay_as_they_are():
    dataset = make(y=[0, 5, 5, 0], num_classes=7)
    assert dataset.y.tolist() == [0, 5, 5, 0] and dataset.num_classes == 7
    assert dataset.class_names is None
    assert make(y=[3, 3, 3, 3], num_classes=7).num_classes == 7
    assert make(y=[True] * 4, num_classes=2).y.tolist() == [1, 1, 1, 1]
    assert make(y=["b", "a", "b", "b"], num_classes=2).class_names == ("a", "b")


def test_floating_targets_are_a_regression():
    for y in ([0.0, 1.0, 1.0, 0.0], np.ones((4, 2), np.float32)):
        dataset = make(y=y)
        assert dataset.num_classes is None and dataset.y.dtype == np.float32
        np.testing.assert_array_equal(dataset.y, y)


@pytest.mark.parametrize(
    ("client", "numbers", "names"),
    [
        (["b", "a", "b", "c"], [1, 0, 1, 2], ("a", "b", "c")),
        (np.array([70, -1, 70, 5]), [2, 0, 2, 1], ("-1", "5", "70")),
        (pd.Series(["b", "a", "b", "b"], dtype="category"), [1, 0, 1, 1], ("a", "b")),
        ([("x", 2), ("x", 1), ("x", 2), ("w", 3)], [2, 1, 2, 0], None),
        (np.array(["10", "9", "10", "9"]), [1, 0, 1, 0], ("9", "10")),
        (jnp.asarray([3, 3, 1, 1]), [1, 1, 0, 0], ("1", "3")),
    ],
)
def test_clients_are_numbered_in_sorted_order(client, numbers, names):
    dataset = make(client=client)
    assert dataset.client.tolist() == numbers
    assert dataset.client_names == (names or ("('w', 3)", "('x', 1)", "('x', 2)"))


@pytest.mark.parametrize(
    ("changes", "part"),
    [
        ({"x": [[1], [1, 2], [1], [1]]}, "an array of numbers with one row"),
        ({"x": 3}, "one row per example, got ndarray"),
        ({"x": [["a"]] * 4}, "array of numbers"),
        ({"x": np.full((4, 1), 2**31)}, "mine.x to fit 32 bits"),
        ({"x": np.zeros((0, 3)), "y": np.zeros(0, int)}, "two classes, got []"),
        ({"y": [1, 1, 1, 1]}, "at least two classes, got [1]"),
        ({"y": [0.0, 1, 2, 1], "num_classes": 3}, "whole numbers from 0 to 2"),
        ({"y": list("abca"), "num_classes": 2}, "whole numbers from 0 to 1"),
        ({"y": [[0, 1]] * 4}, "one class per example"),
        ({"y": [[1], [2, 3], [1], [1]]}, "mine.y as numbers, booleans"),
        ({"y": ["a", None, "b", "a"]}, "without gaps, got NoneType, str"),
        ({"y": pd.Series(["a", None, "b", "a"])}, "without gaps, got"),
        ({"y": [b"a", b"b", b"a", b"a"]}, "without gaps, got |S1"),
        ({"client": [1, 2, 3]}, "client to hold 4 whole numbers"),
        ({"client": ["a", 1, "a", 1]}, "a list of names or a list of numbers"),
        ({"client": ["a", None, "a", "a"]}, "a list of names or a list of numbers"),
        ({"client": [[1], [2], [1], [2]]}, "a list of names or a list of numbers"),
        ({"client": 3}, "a list of names or a list of numbers"),
        ({"client": np.array(3)}, "a list of names or a list of numbers"),
        ({"client": [1.0, np.nan, 1.0, 2.0]}, "a client for every example"),
    ],
)
def test_wrong_arrays_get_a_sentence(changes, part):
    assert part in refusal(make, **changes)


@pytest.mark.parametrize(
    ("path", "options", "kind"),
    [
        ("a.csv", {"label": "y", "client": "who"}, user.Csv),
        ("a.TSV.gz", {"label": "y"}, user.Csv),
        ("a.txt", {"label": "y"}, user.Csv),
        ("a.npz", {}, user.Npz),
        ("a.npz", {"label": "target", "client": "who"}, user.Npz),
        ("a.json", {}, user.LeafJson),
        ("a.json.gz", {}, user.LeafJson),
        ("leaf", {}, user.LeafJson),
        ("images", {}, user.ImageFolder),
    ],
)
def test_sources_by_suffix(tmp_path, monkeypatch, path, options, kind):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "leaf" / "train").mkdir(parents=True)
    (tmp_path / "leaf" / "train" / "all.json").write_text("{}")
    (tmp_path / "images" / "cat").mkdir(parents=True)
    source = user.source_for(path, **options)
    assert type(source) is kind and source.path == path
    assert getattr(source, "client", None) == options.get("client")
    if kind is user.Npz:
        assert source.y == options.get("label", "y")


@pytest.mark.parametrize(
    ("path", "options", "part"),
    [
        ("a.csv", {}, "needs --label"),
        ("a.feather", {"label": "y"}, "no file or folder"),
        ("there.feather", {"label": "y"}, "Expected data in a file of the kind .csv"),
        ("a.json", {"label": "y"}, "expected no --label (label='y')"),
        ("images", {"client": "who"}, "expected no --client (client='who')"),
        ("images", {"time": "hour"}, "expected no --time (time='hour')"),
        ("absent", {}, "no file or folder"),
        ("", {}, "got ''"),
        (None, {}, "path to be text"),
    ],
)
def test_data_without_a_source(tmp_path, monkeypatch, path, options, part):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "images").mkdir()
    (tmp_path / "there.feather").write_bytes(b"PAR1")
    assert part in refusal(user.source_for, path, **options)


def test_a_folder_in_the_data_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data" / "leaf").mkdir(parents=True)
    (tmp_path / "data" / "leaf" / "all.json.gz").write_bytes(b"")
    source = user.source_for("leaf", data_dir=str(tmp_path / "data"))
    assert source == user.LeafJson(path="leaf")


def test_clients_in_a_dictionary_are_their_arrays_with_owners():
    x, y = np.random.default_rng(0).normal(size=(30, 3)), np.arange(30) % 2
    clients = {
        "cleo": (x[:5], y[:5]),
        "ann": (x[5:20], y[5:20]),
        "bob": (x[20:], y[20:]),
    }
    owner = ["cleo"] * 5 + ["ann"] * 15 + ["bob"] * 10
    found = fp.FederationSpec.from_clients(clients, seed=3, test_fraction=0.2).build()
    wanted = fp.FederationSpec.from_arrays(x, y, owner, seed=3, test_fraction=0.2)
    assert found.client_names == ("ann", "bob", "cleo")
    jax.tree.map(np.testing.assert_array_equal, found.train, wanted.build().train)
    numbered = fp.Federation.from_clients({10: clients["ann"], 2: clients["bob"]})
    assert numbered.client_names == ("2", "10")


@pytest.mark.parametrize(
    ("clients", "sentence"),
    [
        ({}, "dictionary of"),
        ([(X, [0, 1, 1, 0])], "dictionary of"),
        ({"ann": X}, "dictionary of"),
        ({"ann": (X, [0, 1])}, "as many inputs as targets, .* 'ann', got 4 and 2"),
        ({"ann": (X, [0, 1, 1, 0]), "bob": (X[:0], [])}, "one, of client 'bob'"),
        ({"ann": (X, [0, 1, 1, 0]), "bob": (X[:, :2], [0, 1, 1, 0])}, "alike in all"),
        ({1: (X, [0, 1, 1, 0]), "1": (X, [0, 1, 1, 0])}, "differ as text"),
    ],
)
def test_wrong_dictionaries_of_clients_are_one_sentence(clients, sentence):
    samples.refusal(fp.FederationSpec.from_clients, clients, match=sentence)

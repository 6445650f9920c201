"""Folders with a file per client, parquet files and data frames."""

import sys

import numpy as np
import pandas as pd
import pytest

import fedjax_pfl as fp
from fedjax_pfl.data.sources import user
from tests.data import samples

NUM_CLIENTS, NUM_ROWS = 3, 12


def frame():
    """Columns of all kinds; rows of a client are together, as its file has them."""
    rng = np.random.default_rng(0)
    size = NUM_CLIENTS * NUM_ROWS
    return pd.DataFrame(
        {
            "site": np.repeat(["NA", "b", "c"], NUM_ROWS),
            "age": rng.normal(size=size),
            "visits": rng.integers(0, 5, size),
            "color": rng.choice(["red", "blue"], size),
            "smoker": rng.choice([True, False], size),
            "day": pd.Timestamp("2024-01-01")
            + pd.to_timedelta(rng.permutation(size), "D"),
            "y": np.arange(size) % 2,
        }
    )


def same(first, second):
    """Compares two data sets in all that a federation has of them."""
    for field in ("x", "y", "client", "part"):
        np.testing.assert_array_equal(getattr(first, field), getattr(second, field))
    for field in ("class_names", "client_names", "ordered", "notes"):
        assert getattr(first, field) == getattr(second, field)


def csv(path, **options):
    return samples.load(user.Csv(path=path, label="y", time="day", **options))


@pytest.fixture
def whole(tmp_path):
    """One table with all clients, and its data set."""
    table = frame().assign(site=np.repeat(["a", "b", "c"], NUM_ROWS))
    path = samples.write(tmp_path / "whole.csv", table.to_csv(index=False))
    return csv(path, client="site")


@pytest.mark.parametrize("form", [".csv", ".tsv", ".csv.gz", ".parquet"])
def test_every_table_of_a_folder_is_a_client(tmp_path, whole, form):
    (tmp_path / "sites").mkdir()
    for number, (_, rows) in enumerate(frame().groupby("site", sort=False)):
        path = tmp_path / "sites" / f"{'abc'[number]}{form}"
        rows = rows.drop(columns="site")
        rows = rows[list(rows.columns[::-1])] if number == 1 else rows
        if form == ".parquet":
            rows.to_parquet(path)
        else:
            text = rows.to_csv(index=False, sep="\t" if form == ".tsv" else ",")
            samples.write(path, text)
    samples.write(tmp_path / "sites" / ".hidden.csv", "x")
    source = user.source_for(str(tmp_path / "sites"), "y", time="day")
    dataset = samples.load(source)
    same(dataset, whole)
    assert dataset.name == "sites"
    spec = fp.FederationSpec(source, fp.ByClient(), num_clients=None)
    assert spec.build().num_clients == NUM_CLIENTS


def test_a_file_named_like_a_missing_value_is_a_client(tmp_path):
    for name in ("NA", "b"):
        samples.write(tmp_path / "s" / f"{name}.csv", "x,y\n1,0\n,1\n2,1\n")
    source = user.source_for(str(tmp_path / "s"), "y")
    assert "'" + str(tmp_path / "s" / "NA.csv") + "' in data row 2 (line 3)" in (
        samples.refusal(samples.load, source)
    )
    dataset = samples.load(user.Csv(path=tmp_path / "s", label="y", missing="drop"))
    assert dataset.client_names == ("NA", "b")
    assert dataset.client.tolist() == [0, 0, 1, 1]


def test_a_column_may_name_the_clients_of_a_folder(tmp_path):
    samples.write(tmp_path / "s" / "2023.csv", "x,who,y\n1,ann,0\n2,bob,1\n")
    samples.write(tmp_path / "s" / "2024.csv", "who,x,y\nann,3,0\n7,4,1\n")
    dataset = samples.load(user.source_for(str(tmp_path / "s"), "y", "who"))
    assert dataset.client_names == ("7", "ann", "bob")


@pytest.mark.parametrize(
    ("second", "parts"),
    [
        ("x,y\n1,0\n", ["a.csv' has 'z' and", "b.csv' does not"]),
        ("x,z,w,y\n1,0,0,0\n", ["b.csv' has 'w' and", "a.csv' does not"]),
        ("x,z,y\n1,2,0\n?,2,1\n", ["'x' of", "b.csv' in data row 2 (line 3)"]),
        ("", ["b.csv' is empty"]),
    ],
)
def test_tables_of_a_folder_have_the_same_columns(tmp_path, second, parts):
    samples.write(tmp_path / "s" / "a.csv", "x,y,z\n1,0,2\n2,1,3\n")
    samples.write(tmp_path / "s" / "b.csv", second)
    source = user.source_for(str(tmp_path / "s"), "y")
    samples.refusal(samples.load, source, parts=parts)


def test_folders_of_other_files(tmp_path):
    samples.write(tmp_path / "s" / "a.csv", "x,y\n1,0\n2,1\n")
    (tmp_path / "s" / "b.csv").symlink_to(tmp_path / "other.csv")
    samples.write(tmp_path / "other.csv", "x,y\n1,0\n2,1\n")
    place = str(tmp_path / "s")
    assert "leads out of the folder" in samples.refusal(user.source_for, place, "y")
    (tmp_path / "s" / "b.csv").unlink()
    assert "needs --label" in samples.refusal(user.source_for, place)
    np.savez(tmp_path / "s" / "c.npz", x=np.eye(2), y=[0, 1])
    assert "got both: 'a.csv' and 'c.npz'" in samples.refusal(user.source_for, place)
    (tmp_path / "s" / "class").mkdir()
    assert isinstance(user.source_for(place), user.ImageFolder)


def test_every_archive_of_a_folder_is_a_client(tmp_path):
    x, y = np.arange(24.0).reshape(12, 2), np.arange(12) % 3
    (tmp_path / "sites").mkdir()
    for name, rows in (("b", slice(0, 5)), ("a", slice(5, 12))):
        np.savez(tmp_path / "sites" / f"{name}.npz", x=x[rows], y=y[rows])
    dataset = samples.load(user.source_for(str(tmp_path / "sites")))
    order = np.r_[5:12, 0:5]
    np.testing.assert_array_equal(dataset.x, x[order])
    assert dataset.client.tolist() == [0] * 7 + [1] * 5
    assert dataset.client_names == ("a", "b") and dataset.num_classes == 3
    few = user.Npz(path=tmp_path / "sites", max_bytes=300)
    assert "300" in samples.refusal(samples.load, few) or "bytes" in samples.refusal(
        samples.load, few
    )
    np.savez(tmp_path / "sites" / "c.npz", x=np.eye(3), y=[0, 1, 2])
    sentence = samples.refusal(samples.load, user.Npz(path=tmp_path / "sites"))
    assert "inputs of" in sentence and "(7, 2) and (5, 2) and (3, 3)" in sentence


def test_archives_of_a_folder_may_have_given_splits(tmp_path):
    for name in ("a", "b"):
        arrays = {"x": np.zeros((4, 1)), "y": [0, 1, 0, 1]}
        tests = {"x_test": np.ones((2, 1)), "y_test": [0, 1]}
        (tmp_path / "s").mkdir(exist_ok=True)
        np.savez(tmp_path / "s" / f"{name}.npz", **arrays, **tests)
    spec = fp.FederationSpec(
        user.Npz(path=tmp_path / "s"), fp.ByClient(), num_clients=None
    )
    federation = spec.build()
    assert federation.num_clients == 2
    assert all((federation.test.examples(k).x == 1).all() for k in range(2))
    assert federation.test.num_examples.tolist() == [2, 2]


def test_parquet_is_read_as_the_same_table(tmp_path, whole):
    table = frame().assign(site=np.repeat(["a", "b", "c"], NUM_ROWS))
    table["visits"] = table["visits"].astype("Int64")
    table["color"] = table["color"].astype("category")
    table.to_parquet(tmp_path / "a.parquet")
    same(csv(tmp_path / "a.parquet", client="site"), whole)


def test_parquet_without_pyarrow(tmp_path, monkeypatch):
    frame().to_parquet(tmp_path / "a.parquet")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    sentence = samples.refusal(csv, tmp_path / "a.parquet")
    assert 'pip install "fedjax_pfl[parquet]"' in sentence


def test_broken_parquet_files(tmp_path):
    frame().to_parquet(tmp_path / "a.parquet")
    content = (tmp_path / "a.parquet").read_bytes()
    for number, broken in enumerate((b"", b"PAR1", content[:-9], content[9:])):
        path = samples.write(tmp_path / f"{number}.parquet", broken)
        assert "not a complete parquet file" in samples.refusal(csv, path)


class Hugging:
    """A data set that becomes a frame, as those of the library datasets do."""

    def to_pandas(self):
        return frame()


@pytest.mark.parametrize("make", [frame, Hugging])
def test_frames_are_tables(make, tmp_path):
    table = frame().assign(site=frame()["site"].replace("NA", "a"))
    path = samples.write(tmp_path / "a.csv", table.to_csv(index=False))
    options = {"client": "site", "scaling": "minmax", "drop": ("day",)}
    source = user.Csv(path=path, label="y", **options)
    spec = fp.FederationSpec(source, fp.ByClient(), num_clients=None, seed=3)
    mine = make() if make is Hugging else table
    if make is Hugging:
        mine.to_pandas = lambda: table
    federation = fp.Federation.from_frame(mine, label="y", **options, seed=3)
    for part in ("train", "validation", "test"):
        first, second = (getattr(each, part) for each in (federation, spec.build()))
        np.testing.assert_array_equal(first.x, second.x)
        np.testing.assert_array_equal(first.index, second.index)
    assert federation.class_names == ("0", "1")


def test_frames_with_gaps():
    table = frame().assign(site="s")
    table.loc[4:6, "visits"] = None
    table.loc[9, "color"] = None
    options = {"label": "y", "client": "site", "drop": ("day",)}
    sentence = samples.refusal(fp.Federation.from_frame, table, **options)
    assert "Column 'visits' of the frame 'frame' in row 4" in sentence
    federation = fp.Federation.from_frame(table, missing="mean", **options)
    assert "4 missing values in 4 of 36 rows" in fp.data.describe(federation).summary()
    # Whole numbers with gaps are floats to pandas, and classes all the same.
    dropped = fp.Federation.from_frame(
        table, **options | {"label": "visits"}, missing="drop"
    )
    assert dropped.class_names == ("0", "1", "2", "3", "4")


def test_frames_are_cut_in_order_of_time():
    table = frame().assign(site=frame()["site"].replace("NA", "a"), mark=range(36))
    federation = fp.Federation.from_frame(
        table[["site", "day", "mark", "y"]],
        label="y",
        client="site",
        time="day",
        scaling="none",
    )
    for number, (_, rows) in enumerate(table.groupby("site")):
        marks = rows.sort_values("day")["mark"].tolist()
        assert federation.test.examples(number).x[:, 0].tolist() == marks[-2:]


@pytest.mark.parametrize(
    ("value", "options", "part"),
    [
        (3, {}, "a data frame of pandas"),
        (pd.DataFrame, {}, "a data frame of pandas"),
        (pd.DataFrame({"a": [], "y": []}), {}, "0 rows and 2 columns"),
        (pd.DataFrame([[1, 0, 0]], columns=["a", "a", "y"]), {}, "column 'a' twice"),
        (pd.DataFrame({"a": [[1], [2]], "y": [0, 1]}), {}, "holds lists"),
        (pd.DataFrame({"a": [1j, 2], "y": [0, 1]}), {}, "complex"),
        (pd.DataFrame({"a": [1, 2], "y": [0, 1]}), {"client": "b"}, "Unknown column"),
        (pd.DataFrame({"a": [1, np.inf], "y": [0, 1]}), {}, "beyond 32 bits"),
        (pd.DataFrame({"a": [1, 2], "y": [0, 1]}), {"nosuch": 1}, "'nosuch'"),
        (pd.DataFrame({"a": [1, 2], "y": [0, 1]}), {"label": 3}, "label to be text"),
        (pd.DataFrame({"a": [1, 2], "y": [0, 1]}), {"name": 3}, "name to be text"),
    ],
)
def test_wrong_frames(value, options, part):
    options = {"label": "y"} | options
    assert part in samples.refusal(fp.Federation.from_frame, value, **options)

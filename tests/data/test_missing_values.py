"""Missing values of a table are refused, left out or filled."""

import numpy as np
import pandas as pd
import pytest

import fedjax_pfl as fp
from fedjax_pfl.data.sources import user
from tests.data import samples
from tests.data.samples import rows

NUM_CLIENTS, NUM_ROWS = 3, 30
MARKS = ["", "NA", "NaN", "null"]
NUMBERS = ["age", "income"]
SCALINGS = ("standard", "minmax", "none")


pytestmark = pytest.mark.usefixtures("rows_of_the_file")


def frame():
    """A table with gaps in numbers, a text and truth values; None in training."""
    rng = np.random.default_rng(0)
    owner = np.repeat(np.arange(NUM_CLIENTS), NUM_ROWS)
    size = len(owner)
    table = pd.DataFrame(
        {
            "site": [f"s{k}" for k in owner],
            "age": rng.normal(size=size) * (1 + owner) + 40 * owner,
            "color": rng.choice(["red", "blue"], size),
            "income": rng.random(size),
            "smoker": rng.choice(["True", "false"], size),
            "y": np.arange(size) % 2,
        }
    )
    for name in ("age", "color", "smoker"):
        table.loc[rng.random(size) < 0.2, name] = None
    return table


@pytest.fixture
def path(tmp_path):
    rng = np.random.default_rng(1)
    text = frame().to_csv(index=False, na_rep="@")
    while "@" in text:
        text = text.replace("@", rng.choice(MARKS), 1)
    return samples.write(tmp_path / "a.csv", text)


def build(path, **options):
    source = user.Csv(path=path, label="y", client="site", **options)
    spec = fp.FederationSpec(source, fp.ByClient(), num_clients=None)
    return spec.build()


def scaled(values, train, scaling):
    """A column scaled by its values in training rows, NaN where there is none."""
    own = values[train]
    if scaling == "standard":
        return (values - np.nanmean(own)) / np.nanstd(own)
    if scaling == "minmax":
        return (values - np.nanmin(own)) / (np.nanmax(own) - np.nanmin(own))
    return values


@pytest.mark.parametrize("scaling", SCALINGS)
@pytest.mark.parametrize("scale", ["all", "client"])
def test_numbers_are_filled_with_means_of_training_rows(path, scaling, scale):
    federation = build(path, missing="mean", scaling=scaling, scale=scale)
    every = np.concatenate([rows(federation.train, k) for k in range(NUM_CLIENTS)])
    for client in range(NUM_CLIENTS):
        train = rows(federation.train, client) if scale == "client" else every
        own = np.arange(client * NUM_ROWS, (client + 1) * NUM_ROWS)
        x = np.asarray(federation.train.x)[own]
        for name, column in (("age", 0), ("income", 4)):
            expected = scaled(frame()[name].to_numpy(), train, scaling)
            expected = np.where(
                np.isnan(expected), np.nanmean(expected[train]), expected
            )
            np.testing.assert_allclose(
                x[:, column], expected[own], rtol=1e-5, atol=1e-6
            )
        texts = frame()["color"].fillna("zz").iloc[own].to_numpy()
        one_hot = texts[:, None] == np.array(["blue", "red", "zz"])
        np.testing.assert_array_equal(x[:, 1:4], one_hot)
    assert federation.train.x.shape[1] == 6


@pytest.mark.parametrize("scaling", SCALINGS)
def test_missing_values_may_be_a_class_of_their_own(path, scaling):
    federation = build(path, missing="class", scaling=scaling)
    train = np.concatenate([rows(federation.train, k) for k in range(NUM_CLIENTS)])
    x = np.asarray(federation.train.x)
    table = frame()
    truth = table["smoker"].map({"True": 1.0, "false": 0.0}).to_numpy()
    for values, column in ((table["age"].to_numpy(), 0), (truth, 6)):
        expected = scaled(values, train, scaling)
        np.testing.assert_allclose(
            x[:, column], np.nan_to_num(expected), rtol=1e-5, atol=1e-6
        )
        np.testing.assert_array_equal(x[:, column + 1], np.isnan(values))
    texts = table["color"].fillna("zz").to_numpy()
    one_hot = texts[:, None] == np.array(["blue", "red", "zz"])
    np.testing.assert_array_equal(x[:, 2:5], one_hot)
    assert x.shape[1] == 8  # the income has no gap


@pytest.mark.parametrize("where", ["site", "y", "age"])
def test_rows_with_gaps_are_dropped(tmp_path, where):
    table = frame().astype({"y": object})
    table.loc[3:5, where] = None
    path = samples.write(tmp_path / "a.csv", table.to_csv(index=False))
    kept = samples.write(tmp_path / "b.csv", table.dropna().to_csv(index=False))
    first, second = build(path, missing="drop"), build(kept)
    np.testing.assert_array_equal(first.train.x, second.train.x)
    np.testing.assert_array_equal(first.train.index, second.train.index)
    left_out = len(table) - len(table.dropna())
    summary = fp.data.describe(first).summary()
    assert f"{left_out} of 90 rows were left out because of missing values." in summary
    assert "missing" not in fp.data.describe(second).summary()
    rest = build(path, missing="drop", drop=("age", "color", "smoker"))
    assert rest.train.x.shape[0] == (90 if where == "age" else 87)


def test_summaries_say_how_many_values_are_filled(path):
    gaps = frame().isna().to_numpy()
    wanted = f"{gaps.sum()} missing values in {gaps.any(axis=1).sum()} of 90 rows were"
    for missing, numbers in (("mean", "by means"), ("class", "by 0")):
        summary = fp.data.describe(build(path, missing=missing)).summary()
        assert f"{wanted} filled: numbers {numbers}" in summary


def test_a_client_without_a_value_gets_the_mean_of_all(tmp_path):
    lines = [f"s{k % 2},{'' if k % 2 else k},{k / 7},{k // 2 % 2}" for k in range(40)]
    path = samples.write(tmp_path / "a.csv", "\n".join(["site,a,b,y", *lines]))
    plain = build(path, missing="mean", scaling="none", scale="client")
    train = np.asarray(plain.train.x)[rows(plain.train, 0), 0]
    own = np.asarray(plain.train.x)[rows(plain.train, 1), 0]
    np.testing.assert_allclose(own, train.mean(), rtol=1e-6)
    scaled = build(path, missing="mean", scale="client")
    assert (np.asarray(scaled.train.x)[rows(scaled.train, 1), 0] == 0).all()


def test_codes_have_a_category_of_missing_ones(tmp_path):
    text = "code,b,y\n1,1,0\n,2,1\n7,3,1\n"
    path = samples.write(tmp_path / "a.csv", text)
    source = user.Csv(path=path, label="y", categories=("code",), missing="mean")
    x = samples.load(source).x
    assert x[:, :3].tolist() == [[1, 0, 0], [0, 0, 1], [0, 1, 0]]


@pytest.mark.parametrize(
    ("text", "options", "parts"),
    [
        ("a,y\n1,0\n,1\n", {}, ["row 2 (line 3)", "missing='drop'", "missing='mean'"]),
        ("a,y\n1,0\n2,\n", {"missing": "mean"}, ["'y'", "row 2 (line 3)", "refused"]),
        ("a,y\n1,0\n,1\n2,inf\n", {"missing": "drop"}, ["row 3 (line 4)", "'inf'"]),
        ("a,y\n1,0\n,1\nx,0\n", {"missing": "mean"}, ["row 3 (line 4)", "'x'"]),
        ("a,b,y\n,1,0\n,2,1\n", {"missing": "mean"}, ["'a'", "holds no value"]),
        ("a,b,y\n,1,0\n1,,1\n", {"missing": "drop"}, ["Every row", "lacks a value"]),
        ("a,y\n1,0\n2,1\n", {"missing": "median"}, ["missing", "'median'"]),
        ("a,t,y\n1,1,0\n2,,1\n", {"missing": "class", "time": "t"}, ["'t'", "line 3"]),
    ],
)
def test_gaps_that_cannot_be_filled(tmp_path, text, options, parts):
    path = samples.write(tmp_path / "a.csv", text)

    def load():
        return samples.load(user.Csv(path=path, label="y", **options))

    samples.refusal(load, parts=parts)


def test_texts_are_never_missing(tmp_path, monkeypatch):
    def count(texts, path, length):
        return np.array([[len(text)] for text in texts], np.int32)

    monkeypatch.setattr(user.tokens, "token_ids", count)
    path = samples.write(tmp_path / "a.csv", "t,other,y\nNA,,0\n,1,1\nabc,2,1\n")
    own = samples.write(tmp_path / "own.json", "{}")
    fields = {"path": path, "label": "y", "text": "t", "tokenizer": str(own)}
    dataset = samples.load(user.Csv(**fields, missing="drop"))
    assert dataset.x.ravel().tolist() == [2, 0, 3] and not dataset.notes

"""Windows of a series: rows of the past are the input, and cross no border."""

import numpy as np
import pandas as pd
import pytest

import fedjax_pfl as fp
from fedjax_pfl.data.sources import user
from tests.data import samples
from tests.data.samples import PARTS

SIZES, W = (40, 57), 4
NAMES = ("b", "a")


def frame():
    """Two series, their rows in no order."""
    rng = np.random.default_rng(0)
    series = [
        pd.DataFrame(
            {
                "house": name,
                "hour": np.arange(size),
                "heat": rng.normal(size=size) + 10,
                "day": rng.choice(["work", "rest"], size),
                "load": rng.normal(size=size),
                "high": rng.integers(0, 2, size),
            }
        )
        for name, size in zip(NAMES, SIZES, strict=True)
    ]
    return pd.concat(series).sample(frac=1, random_state=1, ignore_index=True)


def build(table=None, label="load", **options):
    options = {"drop": ("high" if label == "load" else "load",)} | options
    fields = {"label": label, "client": "house", "time": "hour"}
    table = frame() if table is None else table
    return fp.Federation.from_frame(table, **fields, **options)


def clients(table):
    """Rows of every client in order of time, clients by their names."""
    return [
        table[table["house"] == name].sort_values("hour", ignore_index=True)
        for name in sorted(set(table["house"]))
    ]


def features(rows, label="load"):
    """Features of rows without scaling, the label last."""
    one_hot = [rows["day"] == "rest", rows["day"] == "work"]
    last = [rows["load"]] if label == "load" else [rows["high"] == 0, rows["high"] == 1]
    return np.stack([rows["heat"], *one_hot, *last], axis=1).astype(np.float32)


def borders(size, window, validation=0.1, test=0.2):
    """Numbers of the target rows of each part, with gaps between them."""
    usable = size - window - 2 * window
    num_test = max(1, int(usable * test + 1e-9))
    num_validation = max(1, int(usable * validation + 1e-9))
    train = usable - num_test - num_validation
    starts = np.cumsum([window, train + window, num_validation + window])
    sizes = (train, num_validation, num_test)
    return [np.arange(s, s + n) for s, n in zip(starts, sizes, strict=True)]


def targets_of(part, client):
    """Targets of a client in their own units."""
    return np.asarray(part.y)[samples.rows(part, client)]


@pytest.mark.parametrize("label", ["load", "high"])
def test_inputs_are_the_rows_before(label):
    federation = build(window=W, label=label, scaling="none")
    for client, rows in enumerate(clients(frame())):
        x = features(rows, label)
        for part, targets in zip(PARTS, borders(len(rows), W), strict=True):
            own = samples.inputs(getattr(federation, part))[client]
            wanted = np.stack([x[t - W : t] for t in targets])
            np.testing.assert_array_equal(own, wanted)
            y = targets_of(getattr(federation, part), client)
            np.testing.assert_allclose(y, rows[label].iloc[targets], rtol=1e-6)
    assert federation.input_shape == (W, 4 if label == "load" else 5)


@pytest.mark.parametrize(
    ("validation", "test"), [(0.0, 0.3), (0.3, 0.0), (0.2, 0.3), (0.0, 0.0)]
)
@pytest.mark.parametrize("window", [1, 5])
def test_no_row_is_shown_to_two_parts(window, validation, test):
    options = {"validation_fraction": validation, "test_fraction": test}
    table = frame().assign(heat=np.arange(97.0))
    federation = build(table, window=window, scaling="none", **options)
    inputs = {part: samples.inputs(getattr(federation, part)) for part in PARTS}
    for client, rows in enumerate(clients(table)):
        marks = {}
        for part in PARTS:
            loads = targets_of(getattr(federation, part), client)
            at = [int(np.abs(rows["load"] - y).argmin()) for y in loads]
            shown = inputs[part][client][..., 0].ravel().tolist()
            marks[part] = {*shown, *rows["heat"].iloc[at]}
        assert sum(map(len, marks.values())) == len(set().union(*marks.values()))
        # Every row belongs to some part: a border costs examples, not rows.
        assert set().union(*marks.values()) == set(rows["heat"])


@pytest.mark.parametrize("scale", ["all", "client"])
def test_windows_are_scaled_by_training_rows(scale):
    federation = build(window=W, scale=scale)
    series = clients(frame())
    train = [rows.iloc[: borders(len(rows), W)[0][-1] + 1] for rows in series]
    for client, rows in enumerate(series):
        own = train[client] if scale == "client" else pd.concat(train)
        x = features(rows)
        for name, column in (("heat", 0), ("load", 3)):
            x[:, column] = (rows[name] - own[name].mean()) / own[name].std(ddof=0)
        for part, targets in zip(PARTS, borders(len(rows), W), strict=True):
            found = samples.inputs(getattr(federation, part))[client]
            wanted = np.stack([x[t - W : t] for t in targets])
            np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)


def test_windows_of_a_given_split_lie_in_one_part():
    table = frame()
    table["part"] = np.where(table["hour"] < 20, "train", "test")
    table.loc[table["hour"].between(8, 9), "part"] = "test"  # cuts the first part
    federation = build(table, window=3, split="part", scaling="none")
    for client, rows in enumerate(clients(table)):
        x, parts = features(rows), rows["part"].to_numpy()
        whole = [t for t in range(3, len(rows)) if len({*parts[t - 3 : t + 1]}) == 1]
        test = [t for t in whole if parts[t] == "test"]
        found = samples.inputs(federation.test)[client]
        np.testing.assert_array_equal(found, np.stack([x[t - 3 : t] for t in test]))
        # Of the 12 others, 1 validates after a gap of 3.
        trained = [t for t in whole if parts[t] == "train"]
        assert len(trained) == 12
        for part, own in (("train", trained[:8]), ("validation", trained[11:])):
            found = samples.inputs(getattr(federation, part))[client]
            np.testing.assert_array_equal(found, np.stack([x[t - 3 : t] for t in own]))


def test_the_label_alone_makes_windows():
    table = frame()[["house", "hour", "load"]]
    federation = build(table, window=2, drop=())
    assert federation.input_shape == (2, 1)


def test_held_out_houses_have_windows_too():
    table = pd.concat(
        [frame().assign(house=frame()["house"] + str(k)) for k in range(2)]
    )
    dataset = user.frame_dataset(
        table,
        "hours",
        user.Csv(label="load", client="house", time="hour", window=W, drop=("high",)),
    )
    from fedjax_pfl.data import splits

    held, others = splits.held_out_users(dataset, 0.5)
    assert held.x.shape[1:] == others.x.shape[1:] == (W, 4) and held.gap == W
    assert held.num_samples + others.num_samples == dataset.num_samples
    rows = held.preparation.numbers[np.unique(held.preparation.windows)]
    mean, deviation = rows[:, 0].mean(), rows[:, 0].std()
    shown = held.preparation.numbers[held.preparation.windows[:, :-1], 0]
    np.testing.assert_allclose(held.x[..., 0], (shown - mean) / deviation, rtol=1e-5)


@pytest.mark.parametrize(
    ("options", "part"),
    [
        ({"window": 0}, "window to be a whole number"),
        ({"window": 2, "time": None}, "a column of times"),
        ({"window": 40}, "Client 'b' of 'frame' has 40 rows, too few"),
        ({"window": 13}, "too few for parts that are 13 examples apart"),
        ({"window": 2, "client": None}, "a column of clients for windows"),
        ({"window": 2, "partition": fp.IID(), "num_clients": 2}, "partition by_client"),
        ({"window": 2, "partition": "feature_skew", "num_clients": 1}, "by_client"),
    ],
)
def test_wrong_windows(options, part):
    fields = {"label": "load", "client": "house", "time": "hour"} | options
    assert part in samples.refusal(fp.Federation.from_frame, frame(), **fields)

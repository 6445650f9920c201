"""Series: the first rows of a client train, the last ones test."""

import datetime

import numpy as np
import pandas as pd
import pytest

import fedjax_pfl as fp
from fedjax_pfl.data.readers import times
from fedjax_pfl.data.sources import user
from tests.data import samples
from tests.data.samples import PARTS

NUM_CLIENTS, NUM_ROWS = 3, 20
FRACTIONS = {"validation_fraction": 0.2, "test_fraction": 0.25}


def shuffled():
    """Rows of several clients in no order; times have ties."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        {
            "house": np.repeat(["x", "y", "z"], NUM_ROWS),
            "hour": np.tile(np.arange(NUM_ROWS) // 2, NUM_CLIENTS),
            "mark": np.arange(NUM_CLIENTS * NUM_ROWS),
            "load": rng.normal(size=NUM_CLIENTS * NUM_ROWS),
        }
    )
    return frame.sample(frac=1, random_state=0, ignore_index=True)


def expected(frame):
    """Marks of every client's parts, cut from its rows in order of time."""
    cuts = np.cumsum([11, 4])  # of 20: 5 test and 4 validate
    orders = {
        house: rows.sort_values("hour", kind="stable")["mark"].to_list()
        for house, rows in frame.groupby("house")
    }
    return {h: [p.tolist() for p in np.split(o, cuts)] for h, o in orders.items()}


def check_order(federation, frame, names):
    parts = [samples.inputs(getattr(federation, part)) for part in PARTS]
    found = [[x[:, 0].tolist() for x in own] for own in zip(*parts, strict=True)]
    assert dict(zip(names, found, strict=True)) == expected(frame)


def written(frame, path, form):
    path.write_text(frame.assign(hour=frame["hour"].map(form)).to_csv(index=False))
    return path


FORMS = {
    "numbers": str,
    "negative": lambda hour: f"{hour - 9.5}",
    "dates": lambda hour: f"2024-{hour + 1:02}-01",
    "months": lambda hour: f"2024-{hour + 1:02}",
    "timestamps": lambda hour: f"2023-12-31 {hour:02}:30:00.5",
    "zones": lambda hour: f"2024-01-01T{12 + hour}:00:00+0{hour % 3}:00",
    "nanoseconds": lambda hour: str(1_700_000_000_000_000_000 + hour),
}


@pytest.mark.parametrize("form", FORMS)
def test_a_column_of_times_orders_the_rows_of_each_client(tmp_path, form):
    frame = shuffled()
    if form == "zones":  # moments, not texts: ties come from other texts
        hours = frame["hour"].map(lambda hour: hour - hour % 3)
        path = written(frame, tmp_path / "a.csv", FORMS[form])
        frame = frame.assign(hour=hours)
    else:
        path = written(frame, tmp_path / "a.csv", FORMS[form])
    source = user.source_for(str(path), "load", "house", time="hour")
    source = fp.core.struct.replace_field(source, "scaling", "none")
    spec = fp.FederationSpec(source, fp.ByClient(), num_clients=None, **FRACTIONS)
    check_order(spec.build(), frame, sorted(set(frame["house"])))


@pytest.mark.parametrize(
    "form",
    [
        np.asarray,
        np.ndarray.tolist,
        lambda hours: hours / 7,
        lambda hours: np.datetime64("2024-01-01", "h") + hours,
        lambda hours: pd.Series(
            pd.Timestamp("2024-01-01") + pd.to_timedelta(hours, "h")
        ),
        lambda hours: [datetime.date(2024, 1, 1 + hour) for hour in hours.tolist()],
        lambda hours: [FORMS["dates"](hour) for hour in hours.tolist()],
        lambda hours: [str(hour) for hour in hours.tolist()],
        lambda hours: [f"hour {hour:02}" for hour in hours.tolist()],
    ],
)
def test_arrays_are_ordered_by_numbers_dates_or_texts(form):
    frame = shuffled()
    order = form(frame["hour"].to_numpy())
    x, y = frame[["mark"]].to_numpy(np.float32), frame["load"].to_numpy()
    federation = fp.Federation.from_arrays(
        x, y, frame["house"], order=order, **FRACTIONS
    )
    check_order(federation, frame, sorted(set(frame["house"])))


def test_arrays_in_order_keep_it():
    frame = shuffled().sort_values("hour", kind="stable", ignore_index=True)
    x, y = frame[["mark"]].to_numpy(np.float32), frame["load"].to_numpy()
    owner = frame["house"]
    ordered = fp.Federation.from_arrays(x, y, owner, ordered=True, **FRACTIONS)
    check_order(ordered, frame, sorted(set(owner)))
    drawn = fp.Federation.from_arrays(x, y, owner, **FRACTIONS)
    assert not np.array_equal(drawn.test.index, ordered.test.index)


def test_a_given_test_part_is_in_order_too(tmp_path):
    x = np.arange(8.0)[:, None]
    order = np.array([5, 3, 1, 2, 4, 0, 8, 7])
    kept = fp.Federation.from_arrays(
        x[:6],
        np.zeros(6),
        np.zeros(6, int),
        test=(x[6:], np.zeros(2), np.zeros(2, int)),
        order=order,
        validation_fraction=0.34,
    )
    found = [samples.inputs(getattr(kept, p))[0][:, 0].tolist() for p in PARTS]
    assert found == [[5, 2, 3, 1], [4, 0], [7, 6]]
    arrays = {"x": x[:6], "y": np.zeros(6), "client": np.zeros(6, int)}
    tests = {"x_test": x[6:], "y_test": np.zeros(2), "client_test": np.zeros(2, int)}
    times = {"when": order[:6], "when_test": order[6:]}
    np.savez(tmp_path / "a.npz", **arrays, **tests, **times)
    source = user.source_for(str(tmp_path / "a.npz"), time="when")
    spec = fp.FederationSpec(
        source, fp.ByClient(), num_clients=None, validation_fraction=0.34
    )
    again = spec.build()
    found = [samples.inputs(getattr(again, p))[0][:, 0].tolist() for p in PARTS]
    assert found == [[5, 2, 3, 1], [4, 0], [7, 6]]


@pytest.mark.parametrize(
    ("hours", "parts"),
    [
        (["1", "2024-01-01", "2"], ["only numbers or only ISO dates", "'2024-01-01'"]),
        (["2024-01-01", "tomorrow", "2"], ["only ISO dates", "'tomorrow'"]),
        (["01.02.2024", "02.02.2024", "x"], ["ISO dates such as", "'01.02.2024'"]),
        (["2024-01-01T00:00Z", "2024-01-01", "2024-02-01"], ["with a time zone"]),
        (["1", "", "2"], ["'hour'", "data row 2 (line 3)", "missing"]),
    ],
)
def test_times_that_cannot_be_compared(tmp_path, hours, parts):
    rows = "".join(f"{h},{k},{k / 7}\n" for k, h in enumerate(hours))
    (tmp_path / "a.csv").write_text(f"hour,a,y\n{rows}")
    source = user.Csv(path=tmp_path / "a.csv", label="y", time="hour")
    samples.refusal(samples.load, source, parts=parts)


@pytest.mark.parametrize(
    ("options", "part"),
    [
        ({"order": [datetime.date(2024, 1, 1), 1, 2, 3]}, "all of one kind"),
        ({"order": [1, "a", 2, 3]}, "only numbers or only ISO dates"),
        ({"order": [1, 2, 3]}, "one value for each of 4 examples"),
        ({"order": [1, 2, 3, None]}, "row 3 has none"),
        ({"order": [1, np.nan, 3, 4]}, "row 1 has none"),
        ({"order": np.array(["2024", "NaT", "2024", "2024"], "M8[D]")}, "row 1 has"),
        ({"order": ["1", "2024-01-01", "3", "4"]}, "only numbers or only ISO dates"),
        ({"order": [1, 2, 3, 4], "ordered": True}, "got both"),
        ({"ordered": 3}, "true or false"),
    ],
)
def test_wrong_orders(options, part):
    sentence = samples.refusal(
        fp.Federation.from_arrays, np.eye(4), [0, 1, 0, 1], [0] * 4, **options
    )
    assert part in sentence


def test_long_numbers_are_exact():
    assert times.parse_times([f"{2**63}", f"{2**63 + 1}"], "") == [2**63, 2**63 + 1]
    assert times.parse_times(["9" * 6000, "1.5"], "")[0] == float("inf")

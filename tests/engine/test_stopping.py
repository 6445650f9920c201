"""Early stopping: what it counts, and that a grid still equals its single trainings."""

import itertools

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fedjax_pfl as fp
from fedjax_pfl.core import checks
from fedjax_pfl.engine import simulation, stopping
from tests.engine import specs

KEY = jax.random.key(0, impl="threefry2x32")
SPEC = specs.classes()
RATES = [0.02, 0.05, 0.2]
TARGET = fp.StopWhen(target=0.6, metric="loss", data="test")


def train(axes, rule, rounds=12, **options):
    """FedAvg over a grid, evaluated on other data in every third round only."""
    process = fp.FederatedProcess(
        algorithm=fp.FedAvg(local=fp.SGD(learning_rate=0.1, batch_size=8))
    )
    options = {"evaluate_on": {"test": 1, "validation": 3}} | options
    return fp.grid(
        *(KEY, process, fp.LogisticRegression(), SPEC, axes, rounds),
        eval_every=1,
        stop_when=rule,
        progress=False,
        **options,
    )


def first_stop(values, patience, target, min_delta, sign):
    """The rule in plain Python: index at which it ends, and why, or None."""
    best, stale = None, 0
    for k, value in enumerate(values):
        value *= sign
        if best is None or value > best + min_delta:
            best, stale = value, 0
        else:
            stale += 1
        if target is not None and value >= sign * target:
            return k, True
        if patience is not None and stale >= patience:
            return k, False
    return None


NUMBERS = st.integers(-8, 8).map(float)


@settings(max_examples=200, deadline=None, database=None)
@given(
    st.lists(st.lists(NUMBERS, min_size=6, max_size=6), min_size=1, max_size=3),
    st.one_of(st.none(), st.integers(1, 4)),
    st.one_of(st.none(), NUMBERS),
    st.sampled_from([0.0, 1.0, 3.0]),
    st.sampled_from(["accuracy", "loss"]),
)
def test_every_point_is_watched_on_its_own(points, patience, target, delta, metric):
    if patience is None and target is None:
        return
    rule = fp.StopWhen(patience=patience, target=target, min_delta=delta, metric=metric)
    watch = stopping.watch(rule, [{}] * len(points), 10)
    for k, values in enumerate(np.array(points).T):
        watch.see(k, values)
    sign = 1 if metric == "accuracy" else -1
    for point, values in enumerate(points):
        found = first_stop(values, patience, target, delta, sign)
        expected = (-1, False) if found is None else found
        assert (watch.stopped_at[point], watch.reached_target[point]) == expected


def test_a_nan_is_no_progress():
    watch = stopping.watch(fp.StopWhen(patience=2), [{}], 10)
    for k, value in enumerate([0.5, np.nan, np.nan]):
        assert watch.stopped_at.tolist() == [-1]
        watch.see(k, np.array([value]))
    assert watch.stopped_at.tolist() == [2]


NAME = "algorithm.local.learning_rate"


@pytest.fixture(scope="module")
def together():
    """Three rates that reach the target one after the other."""
    return train({NAME: RATES}, TARGET)


def test_a_grid_that_ends_point_by_point_equals_its_single_trainings(together):
    (group,) = together.groups
    assert len(set(group.stopped_at.tolist())) == 3  # each at another round
    assert group.rounds[-1] == max(group.stopped_at) < 12
    for rate in RATES:
        alone = train({NAME: [rate]}, TARGET)
        for rows in ("table", "curves", "communication", "clients"):
            expected = getattr(alone, rows)()
            found = getattr(together, rows)()
            found = found[found[NAME] == rate]
            if rows == "table":  # the others compare themselves with the best of all
                found = found[~found["stat"].str.contains(" than ")]
            found = found.reset_index(drop=True)
            numbers = expected.select_dtypes("number").columns
            np.testing.assert_allclose(found[numbers], expected[numbers], rtol=1e-9)
            words = expected.columns.difference(numbers)
            assert (
                (found[words].fillna("") == expected[words].fillna("")).to_numpy().all()
            )


def test_a_stopped_point_is_frozen_and_says_so(together):
    (group,) = together.groups
    losses = group.metrics["loss"][:, :, 0, 0].mean(axis=-1)
    for point, stop in enumerate(group.stopped_at):
        at = group.rounds.tolist().index(stop)
        assert (losses[point, :at] > 0.6).all() and losses[point, at] <= 0.6
        # Frozen is bit for bit the same.
        assert len(set(losses[point, at:].tolist())) == 1
        assert np.isnan(group.per_round["bytes_up"][point, stop:]).all()
        assert (group.times_selected[point, at:] == stop).all()
        assert together.status[point] == f"reached its target at round {stop}"
    assert set(together.summary()["status"]) == {"1 of 1 reached the target"}


def test_nothing_ends_where_there_is_progress():
    result = train({"seed": [0]}, fp.StopWhen(patience=12, metric="loss"))
    assert result.status == ("ok",)
    assert result.groups[0].rounds[-1] == 12


def test_patience_ends_a_training_that_stands_still():
    rule = fp.StopWhen(patience=2, metric="loss", data="test")
    result = train({NAME: [1e-30]}, rule)
    assert result.status == ("stopped at round 2",)
    # Also what is evaluated more seldom is known at the end.
    assert {"own test", "own validation"} <= set(result.table()["data"])


def test_a_stopped_training_is_continued_as_such(together, monkeypatch, tmp_path):
    options = {"checkpoints": fp.Checkpoints(tmp_path / "run", min_seconds=0)}
    calls, stop = itertools.count(), min(together.groups[0].stopped_at)

    def limited():
        return "enough" if next(calls) == stop + 1 else None

    with monkeypatch.context() as patch:
        patch.setattr(simulation, "time_limit", lambda minutes: limited)
        with pytest.raises(fp.Interrupted):
            train({NAME: RATES}, TARGET, **options)
    resumed = train({NAME: RATES}, TARGET, **options)
    for field in ("metrics", "per_round", "stopped_at", "reached_target"):
        ours, theirs = (getattr(r.groups[0], field) for r in (resumed, together))
        np.testing.assert_equal(ours, theirs)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({}, "Expected patience or target, got neither"),
        ({"patience": 0}, "patience to be a whole number of at least 1"),
        ({"target": float("inf")}, "target to be a finite number"),
        ({"patience": 1, "min_delta": -1.0}, "min_delta"),
    ],
)
def test_wrong_rules(fields, message):
    with pytest.raises(checks.InputError, match=message):
        fp.StopWhen(**fields)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"model": "personal"}, "Unknown model to stop on 'personal'; allowed: global"),
        ({"data": "everybody"}, "data to stop on to be one of test, validation"),
        ({"metric": "f1"}, "that is measured, accuracy, .*, got 'f1'"),
    ],
)
def test_rules_that_do_not_fit_are_refused_before_training(fields, message):
    with pytest.raises(checks.InputError, match=message):
        train({"seed": [0]}, fp.StopWhen(patience=1, **fields))

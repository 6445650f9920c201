"""Trainings of models of series: their memory in states, maps, cohorts and files."""

import dataclasses

import jax
import numpy as np
import pytest

import fedjax_pfl as fp
from fedjax_pfl import local
from fedjax_pfl.core import checks, client_rows, sharding
from tests.lanes import wide
from tests.portfolio.test_policies import SPEC

KEY = jax.random.key(0, impl="threefry2x32")
SGD = local.SGD(learning_rate=0.2, num_steps=2, batch_size=8)
MODEL = fp.portfolio.EIIE(units=3)


@pytest.fixture(scope="module")
def federation():
    return SPEC.build()


def rounds(algorithm, federation, count=2, execution=None, **fields):
    """States after some compiled rounds."""
    process = fp.FederatedProcess(algorithm=algorithm, **fields)
    model = MODEL.for_federation(federation)
    given = {} if execution is None else {"execution": execution}
    step = jax.jit(lambda state: process.round(state, model, federation, **given)[0])
    states = [process.init(KEY, model, federation)]
    for _ in range(count):
        states.append(step(states[-1]))
    return states


def same(a, b, **tolerances):
    a, b = (dataclasses.replace(state, key=0) for state in (a, b))
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        np.testing.assert_allclose(x, y, **tolerances)


def test_memory_stays_in_the_state_and_out_of_reports(federation):
    states = rounds(fp.FedAvg(local=SGD), federation)
    slots = federation.train.constants.slots
    assert states[0].rows["carry"].shape == (4, slots, 3)
    assert (states[0].rows["carry"] == 1 / 3).all()
    moved = (np.asarray(states[1].rows["carry"]) != 1 / 3).any(axis=2).sum(axis=1)
    assert ((moved >= 8) & (moved <= 16)).all()  # two pieces of eight days
    again = (np.asarray(states[2].rows["carry"]) != 1 / 3).any(axis=2).sum(axis=1)
    assert (again >= moved).all() and again.sum() > moved.sum()


@pytest.mark.parametrize("mode", ["chunk", wide("loop")])
def test_executions_agree(federation, mode):
    execution = sharding.Execution(mode=mode, chunk_size=3)
    flame = fp.Flame(local=SGD)
    expected = rounds(flame, federation, 1)[-1]
    # Rounding of sums in another order, a few dozen of them.
    same(rounds(flame, federation, 1, execution)[-1], expected, rtol=1e-10, atol=1e-13)


@pytest.mark.wide
def test_clients_can_be_permuted(federation):
    order = np.array([2, 0, 3, 1])
    parts = {
        name: getattr(federation, name)
        .pool()
        .with_rows(client_rows.take(getattr(federation, name).rows(), order))
        for name in ("train", "validation", "test")
    }
    moved = dataclasses.replace(federation, **parts)
    plain = rounds(fp.Local(local=SGD), federation, 1)[-1]
    found = rounds(fp.Local(local=SGD), moved, 1)[-1]
    np.testing.assert_allclose(
        found.rows["carry"], plain.rows["carry"][order], rtol=1e-12
    )


def test_others_memories_are_not_touched(federation):
    states = rounds(
        fp.FedAvg(local=SGD), federation, 1, participation=fp.UniformCohort(size=2)
    )
    untouched = (np.asarray(states[1].rows["carry"]) == 1 / 3).all(axis=(1, 2))
    assert untouched.sum() == 2


def test_what_is_not_finite_is_not_remembered(federation):
    wild = local.SGD(weight_decay=1e300, learning_rate=1e10, num_steps=3, batch_size=8)
    states = rounds(fp.Local(local=wild), federation, 1, on_nonfinite="drop")
    assert states[1].memory["nonfinite"] > 0
    assert np.isfinite(states[1].rows["carry"]).all()


def test_generated_years_take_turns(federation):
    """In round r the memory of generated year r alone may change."""
    tables = federation.train.constants
    many = local.SGD(learning_rate=0.1, num_steps=12, batch_size=40)
    states = rounds(fp.Local(local=many), federation, 3)
    years = []
    for before, after in zip(states, states[1:], strict=False):
        changed = np.asarray(before.rows["carry"]) != np.asarray(after.rows["carry"])
        generated = changed.any(axis=(0, 2))[tables.n_real :]
        years.append(generated.reshape(tables.years, -1).any(axis=1).tolist())
    assert years == [[True, False], [False, True], [False, True]]


@pytest.mark.parametrize(
    "algorithm", [fp.APFL(local=SGD), fp.FedRep(local=SGD), fp.FedFomo(local=SGD)]
)
def test_methods_that_cannot_remember_are_refused(federation, algorithm):
    with pytest.raises(checks.InputError, match="model of series"):
        rounds(algorithm, federation, 1)


@pytest.mark.wide
def test_streamed_trainings_remember(federation):
    process = fp.FederatedProcess(
        algorithm=fp.FedAvg(local=SGD), participation=fp.UniformCohort(size=2)
    )
    options = {"num_rounds": 4, "progress": False}
    one, other = (
        call(KEY, process, MODEL, federation, **options).groups[0].metrics
        for call in (fp.simulate, fp.simulate_streamed)
    )
    for name in other:
        np.testing.assert_allclose(other[name], one[name], rtol=0, atol=1e-12)


def test_trainings_resume_to_the_bit(federation, tmp_path):
    process = fp.FederatedProcess(algorithm=fp.FedAvg(local=SGD))
    given = {"num_rounds": 4, "eval_every": 2}
    whole = fp.simulate(KEY, process, MODEL, federation, **given)
    given["checkpoints"] = fp.Checkpoints(tmp_path / "kept", min_seconds=0)
    with pytest.raises(fp.Interrupted):
        fp.simulate(KEY, process, MODEL, federation, **given, max_minutes=1e-9)
    found = fp.simulate(KEY, process, MODEL, federation, **given)
    for name, values in whole.groups[0].metrics.items():
        np.testing.assert_array_equal(found.groups[0].metrics[name], values)
    for name, values in whole.groups[0].series.items():
        np.testing.assert_array_equal(found.groups[0].series[name], values)


def test_results_have_series(federation, tmp_path):
    process = fp.FederatedProcess(algorithm=fp.FedAvg(local=SGD))
    result = fp.simulate(KEY, process, MODEL, federation, num_rounds=1)
    record = result.groups[0]
    assert record.series["value"].shape == (1, 1, 4, 21)
    table = result.series()
    ends = table[table["moment"] == 20].set_index("name")["mean"]
    annual = record.metrics["annualized_return"][0, -1, 0, 0]
    np.testing.assert_allclose(
        ends["value"], ((1 + annual) ** (20 / 252)).mean(), rtol=1e-9
    )
    result.save(tmp_path / "saved")
    again = fp.Result.load(tmp_path / "saved")
    np.testing.assert_array_equal(
        again.groups[0].series["value"], record.series["value"]
    )
    assert "annualized_return" in result.summary().columns


def test_only_own_series_are_judged(federation):
    process = fp.FederatedProcess(algorithm=fp.FedAvg(local=SGD))
    with pytest.raises(checks.InputError, match="judged on the client's own series"):
        fp.simulate(
            KEY, process, MODEL, federation, num_rounds=1, evaluate_on=["everybody"]
        )

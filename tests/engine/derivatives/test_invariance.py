"""Derivatives do not depend on how, where and in how many pieces they are computed."""

import shutil

import chex
import jax
import numpy as np
import pytest

import fedjax_pfl as fp
from fedjax_pfl import data
from fedjax_pfl.core import checks
from tests.engine.breaking import Stop
from tests.lanes import wide

KEY = jax.random.key(0, impl="threefry2x32")
SPEC = fp.FederationSpec(
    data.Quadratic(dim=2, examples_per_client=8, noise=1.0),
    "by_client",
    num_clients=6,
    validation_fraction=0.3,
)
MODEL = fp.models.Quadratic()
PROCESS = fp.FederatedProcess(
    algorithm=fp.Flame(
        lam=0.8, kappa=2.0, local=fp.SGD(learning_rate=0.3, epochs=2, batch_size=4)
    ),
    participation=fp.UniformCohort(size=4),
    work=fp.Stragglers(fraction=0.5, max_epochs=2),
)
FIELDS = ("algorithm.lam", "algorithm.kappa", "algorithm.local.learning_rate")
NUM_ROUNDS = 4
ROUNDING = 1e-9  # as of the trainings themselves, per round


def differentiate(fields=FIELDS, seeds=(0, 1, 2), **options):
    options = {"execution": "vmap", "evaluate_on": "validation"} | options
    return fp.hypergradients(
        *(KEY, PROCESS, MODEL, SPEC, fields, NUM_ROUNDS),
        axes={"seed": list(seeds)},
        progress=False,
        **options,
    )


def numbers(found):
    """Values and derivatives `[points, 1 + p]` after the last round."""
    return np.stack([found.value, *(found.derivatives[name] for name in FIELDS)], 1)


@pytest.fixture(scope="module")
def reference():
    found = differentiate()
    assert (numbers(found) != 0).all() and len({*found.value}) == 3
    return found


@pytest.mark.parametrize("execution", [wide("chunk=2"), "shard"])
def test_executions_agree(reference, execution):
    """Cohorts of four clients in chunks of two, and on eight devices."""
    found = differentiate(execution=execution)
    assert execution in found.result.groups[0].config["execution"]
    np.testing.assert_allclose(numbers(found), numbers(reference), rtol=ROUNDING)


@pytest.mark.wide
@pytest.mark.parametrize("at_once", [*map(wide, (1, 2)), 3])
def test_points_agree_however_many_go_at_once(monkeypatch, reference, at_once):
    """On one device, beside points on three."""
    assert "points on 3 devices" in reference.result.groups[0].config["execution"]
    monkeypatch.setattr(jax, "device_count", lambda: 1)
    found = differentiate(execution="vmap", points_per_chunk=at_once)
    assert "devices" not in found.result.groups[0].config["execution"]
    np.testing.assert_allclose(numbers(found), numbers(reference), rtol=ROUNDING)


def train(**options):
    """The same trainings without derivatives."""
    options = {"execution": "vmap", "evaluate_on": "validation"} | options
    points = {"seed": [0, 1, 2]}
    given = KEY, PROCESS, MODEL, SPEC, points, NUM_ROUNDS
    return fp.grid(*given, progress=False, **options)


def test_trainings_are_those_without_derivatives(reference):
    (one,), (other,) = reference.result.groups, train().groups
    chex.assert_trees_all_close(one.metrics, other.metrics, rtol=ROUNDING)
    np.testing.assert_array_equal(one.times_selected, other.times_selected)


@pytest.mark.wide
def test_segments_of_two_rounds_are_those_of_one(reference):
    found = differentiate(eval_every=2)
    np.testing.assert_allclose(numbers(found), numbers(reference), rtol=ROUNDING)


@pytest.fixture(scope="module")
def broken_off(tmp_path_factory):
    """Checkpoints of a training that ended too early twice."""
    folder = tmp_path_factory.mktemp("derivatives") / "kept"
    checkpoints = fp.Checkpoints(folder, min_seconds=0)
    with pytest.raises(fp.Interrupted):
        differentiate(max_minutes=1e-9, checkpoints=checkpoints)
    with pytest.raises(InterruptedError):
        differentiate(callbacks=[Stop(at=2)], checkpoints=checkpoints)
    return folder


def test_a_call_goes_on_where_it_was_interrupted(reference, broken_off, tmp_path):
    """With the same bits."""
    folder = shutil.copytree(broken_off, tmp_path / "kept")
    checkpoints = fp.Checkpoints(folder, min_seconds=0)
    for _ in range(2):  # the second time it has ended
        again = differentiate(checkpoints=checkpoints)
        np.testing.assert_array_equal(numbers(again), numbers(reference))
        (one,), (other,) = again.result.groups, reference.result.groups
        for field in ("diagnostics", "metrics", "per_round"):
            np.testing.assert_equal(getattr(one, field), getattr(other, field))


@pytest.mark.parametrize(
    "change", [wide({"fields": FIELDS[:2]}), {"objective": "validation:loss:global"}]
)
def test_checkpoints_of_other_derivatives_are_refused(broken_off, change):
    checkpoints = fp.Checkpoints(broken_off, min_seconds=0)
    with pytest.raises(checks.InputError, match=f"another training.*{[*change][0]}"):
        differentiate(checkpoints=checkpoints, **change)


def test_checkpoints_with_derivatives_are_none_without(broken_off):
    with pytest.raises(checks.InputError, match="another training"):
        train(checkpoints=fp.Checkpoints(broken_off, min_seconds=0))

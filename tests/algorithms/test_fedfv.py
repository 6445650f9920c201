"""FedFV: published directions, whole trainings against loops over vectors, limits."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_pfl as fp
from fedjax_pfl.algorithms import FedFV, fedfv
from tests import problems
from tests.engine import faults
from tests.lanes import wide

ROWS = np.array([[1, -0.3, 0], [-1, 1, -0.2], [-1, -1, 1]])
LOSSES = np.array([1.0, 2.0, 3.0])
LOCAL = problems.full_gradient_steps(2, 0.4)
_mixtures = jax.jit(fedfv.mixtures_without_conflict)


def off(vector, other):
    """The vector without its part along another."""
    return vector - (vector @ other) / (other @ other) * other


def resolved(gradients, losses, alpha):
    """Algorithm 2, one projection after the other."""
    order = np.argsort(losses, kind="stable")
    first_kept = math.ceil((len(order) - 1) * (1 - alpha) - 1e-9)
    keep = set(order[first_kept:].tolist()) if alpha > 0 else set()
    found = gradients.astype(float).copy()
    for i in range(len(gradients)):
        for j in order:
            if i not in keep and j != i and found[i] @ gradients[j] < 0:
                found[i] = off(found[i], gradients[j])
    return found


def test_the_published_direction_of_three_clients():
    everyone = jnp.ones(3, bool)
    mixed, count = _mixtures(ROWS @ ROWS.T, LOSSES, everyone, 0.0)
    step = -np.asarray(mixed @ ROWS).mean(axis=0)
    unit = step / np.linalg.norm(step)
    np.testing.assert_allclose(unit, [0.601480, 0.211185, -0.770469], atol=5e-7)
    np.testing.assert_allclose(ROWS @ unit, [0.538, -0.236, -1.583], atol=5e-4)


@dataclasses.dataclass(frozen=True)
class Linear(fp.models.LinearRegression):
    """Losses `g_i . w + L_i` of examples `(g_i, L_i)`; starts at zero."""

    def loss(self, outputs, batch):
        return (batch.weight * (outputs + batch.y)).sum() / batch.weight.sum()


def test_a_round_steps_along_the_published_direction_as_far_as_the_mean():
    problem = problems.quadratics(ROWS)
    train = problem.federation.train
    train = dataclasses.replace(train, y=jnp.array([*LOSSES, np.nan]))
    federation = dataclasses.replace(problem.federation, train=train)
    problem = dataclasses.replace(
        problem, federation=federation, model=Linear().for_federation(federation)
    )
    algorithm = FedFV(alpha=0.0, local=problems.full_gradient_steps(1, 0.5))
    process = fp.FederatedProcess(algorithm=algorithm)
    states, infos, _ = problems.run(process, problem, 1)
    length = 0.5 * np.linalg.norm(ROWS.mean(axis=0))
    unit = states.server["theta"][1] / length
    np.testing.assert_allclose(unit, [0.601480, 0.211185, -0.770469], atol=5e-7)
    np.testing.assert_allclose(infos.client["loss"][0], LOSSES)
    np.testing.assert_allclose(states.rows["messages"]["theta"][1], 0.5 * ROWS)
    # The first client's loss rises: no common descent.
    cosines = (ROWS @ unit) / np.linalg.norm(ROWS, axis=1)
    np.testing.assert_allclose(infos.server["violation"][0], cosines.max(), rtol=1e-6)


@pytest.mark.parametrize("alpha", [0.0, 0.1, 0.25, 0.5, 1.0])
def test_internal_conflicts_equal_a_loop_over_vectors(alpha):
    for seed in range(4):
        rng = np.random.default_rng(seed)
        # In few dimensions nearly all conflict; the first has sent nothing.
        rows = rng.normal(size=(11, 4)) - 0.2
        losses, received = 1.0 * rng.permutation(11), np.arange(11) > 0
        rows[0] = 0
        mixed, _ = _mixtures(rows @ rows.T, losses, received, alpha)
        expected = resolved(rows[1:], losses[1:], alpha)
        np.testing.assert_allclose((mixed @ rows)[1:], expected, atol=1e-12)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_whole_numbers_of_kept_gradients_are_not_rounded_up(dtype):
    """`ceil((n - 1) (1 - alpha))` of decimal shares, in both precisions."""
    rows = jnp.asarray(np.random.default_rng(0).normal(size=(21, 3)), dtype)
    losses, everyone = jnp.arange(21, dtype=dtype), jnp.ones(21, bool)
    for tenths in range(1, 10):
        alpha = jnp.asarray(tenths / 10, dtype)
        mixed, _ = _mixtures(rows @ rows.T, losses, everyone, alpha)
        kept = (mixed == jnp.eye(21, dtype=dtype)).all(axis=1)
        assert kept[-(2 * tenths + 1) :].all() and not kept.all()
        assert not kept[-(2 * tenths + 2)]


def simulate(problem, cohorts, alpha, tau, sent=lambda t, i, g: g):
    """A training by loops over vectors; None is a message that is lost."""
    w, last, heard, path = np.zeros(3), {}, {}, []
    for t, cohort in enumerate(cohorts):
        losses = np.array([problem.loss(i, w) for i in cohort])
        found = [w - problem.descend(i, w, w, 0.0, 2, 0.4) for i in cohort]
        found = [sent(t, i, g) for i, g in zip(cohort, found, strict=True)]
        here = [k for k, g in enumerate(found) if g is not None]
        gradients = np.stack([found[k] for k in here])
        g = resolved(gradients, losses[here], alpha).mean(axis=0)
        for k in range(tau, 0, -1):
            h = np.zeros(3)
            for i in last:
                if i not in cohort and heard[i] == t - k and g @ last[i] < 0:
                    h += last[i]
            if g @ h < 0:
                g = off(g, h)
        w = w - np.linalg.norm(gradients.mean(axis=0)) / np.linalg.norm(g) * g
        for k in here:
            last[cohort[k]], heard[cohort[k]] = found[k], t
        path.append(w)
    return np.stack(path)


@pytest.mark.parametrize("tau", [2, *map(wide, (0, 1))])
def test_a_training_equals_a_loop_over_vectors(tau):
    """Partial participation, an attack, and messages that are lost."""
    problem = faults.problem(num_malicious=2)
    attack = faults.Sends(value=jnp.asarray(0.7), first=jnp.asarray(2.0))
    process = fp.FederatedProcess(
        algorithm=FedFV(alpha=0.3, tau=tau, local=LOCAL),
        participation=fp.UniformCohort(size=3),
        attack=attack,
    )
    states, infos, _ = problems.run(process, problem, 9)

    def sent(t, i, g):
        return np.full(3, 0.7) if i < 2 and t >= 2 else g

    expected = simulate(problem, infos.cohort, 0.3, tau, sent)
    np.testing.assert_allclose(states.server["theta"][1:], expected, rtol=1e-9)
    assert infos.server["conflicts"].sum() > 0
    assert ("messages" not in states.rows) == (tau == 0)
    without = simulate(problem, infos.cohort, 0.3, 0, sent)
    assert tau == 0 or np.abs(without - expected).max() > 1e-3


@pytest.mark.wide
def test_lost_messages_take_no_part_and_leave_the_stored_ones():
    problem = faults.problem(num_malicious=2)
    attack = faults.Sends(value=jnp.asarray(jnp.nan), first=jnp.asarray(2.0))
    process = fp.FederatedProcess(
        algorithm=FedFV(alpha=0.3, tau=2, local=LOCAL),
        participation=fp.UniformCohort(size=3),
        attack=attack,
        on_nonfinite="drop",
    )
    states, infos, _ = problems.run(process, problem, 9)

    def sent(t, i, g):
        return None if i < 2 and t >= 2 else g

    expected = simulate(problem, infos.cohort, 0.3, 2, sent)
    np.testing.assert_allclose(states.server["theta"][1:], expected, rtol=1e-9)
    assert infos.num_nonfinite.sum() > 0
    heard = states.clients.last_round
    assert heard[0].tolist() == [-1] * faults.NUM_CLIENTS
    for t, cohort in enumerate(infos.cohort):
        members = np.isin(np.arange(faults.NUM_CLIENTS), cohort)
        members[:2] &= t < 2
        np.testing.assert_array_equal(heard[t + 1], np.where(members, t, heard[t]))


@pytest.mark.wide
def test_with_everything_kept_it_is_the_uniform_mean():
    problem = problems.random_quadratics()
    algorithm = FedFV(alpha=1.0, local=LOCAL, keeps_local=True)
    states, _, _ = problems.run(fp.FederatedProcess(algorithm=algorithm), problem, 3)
    w, kept = states.server["theta"], states.clients.local["theta"]
    trained = 0.6**2 * w[:-1, None] + (1 - 0.6**2) * problem.estimates
    np.testing.assert_allclose(kept[1:], trained, rtol=1e-12, atol=1e-15)
    np.testing.assert_allclose(w[1:], trained.mean(axis=1), rtol=1e-12, atol=1e-15)


def test_where_everything_cancels_the_model_rests():
    problem = problems.quadratics([[1.0, 0.0], [-1.0, 0.0]])
    process = fp.FederatedProcess(algorithm=FedFV(alpha=0.0, local=LOCAL))
    states, infos, _ = problems.run(process, problem, 2)
    np.testing.assert_array_equal(states.server["theta"], 0)
    assert np.isfinite(infos.server["violation"]).all()

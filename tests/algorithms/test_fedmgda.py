"""FedMGDA+: steps by hand, its limits, whom a step helps, what the clients keep."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_pfl as fp
from fedjax_pfl import aggregators
from tests import problems
from tests.engine import faults
from tests.lanes import wide
from tests.numerics import qp_oracles
from tests.setups import process

KEY = jax.random.key(0)
GRADIENTS = np.array([[1, -0.3, 0], [-1, 1, -0.2], [-1, -1, 1]])
STEP = problems.full_gradient_steps(1, 0.5)


SHAPE = (8, 7)  # to which updates are filled up, so that tests share programs
RULE = jax.jit(lambda rule, *given: rule(KEY, *given))


def combine(updates, weights=None, *, w=0.0, dtype=np.float64, **fields):
    """The rule's step `[D]` for updates `w - w_i`, its weights, and what it says."""
    count, width = np.shape(updates)
    rows, given, center = np.full(SHAPE, np.nan), np.zeros(SHAPE[0]), np.zeros(SHAPE[1])
    center[:width] = w
    rows[:count] = center
    rows[:count, :width] -= updates
    given[:count] = 1 if weights is None else weights
    messages = {"a": rows[:, :1], "b": rows[:, 1:]}
    reference = {"a": center[:1], "b": center[1:]}
    rule, *arrays = jax.tree.map(
        lambda leaf: jnp.asarray(leaf, dtype),
        (aggregators.CommonDescent(**fields), messages, given, reference),
    )
    out, info = RULE(rule, *arrays)
    assert (np.asarray(info.lam)[count:] == 0).all()
    step = center - np.concatenate([out["a"], out["b"]])
    return step[:width], np.asarray(info.lam)[:count], info


each_form = pytest.mark.parametrize("normalize", [True, wide(False)])


def unit(rows):
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


@pytest.mark.parametrize(
    ("eps", "lam", "slopes"),
    [
        (0.1, [0.402422, 0.364245, 0.233333], [-0.005689, -0.007783, 0.083326]),
        (1.0, [0.417284, 0.384922, 0.197794], None),
    ],
)
def test_golden_steps(eps, lam, slopes):
    step, found, info = combine(0.01 * GRADIENTS, w=np.array([5.0, -2, 1]), eps=eps)
    np.testing.assert_allclose(found, lam, atol=6e-7)
    np.testing.assert_allclose(step, lam @ unit(GRADIENTS), atol=1e-6)
    found = GRADIENTS @ step
    if slopes is None:
        assert (found > 0).all() and float(info.slope) > 0
    else:  # a little of the allowed freedom is not enough for everybody
        np.testing.assert_allclose(found, slopes, atol=2e-6)
        assert float(info.slope) < 0
    np.testing.assert_allclose(info.slope, (unit(GRADIENTS) @ step).min(), atol=1e-14)
    np.testing.assert_allclose(info.norm, np.linalg.norm(step), rtol=1e-12)


@each_form
def test_a_round_by_hand(normalize):
    """Least squares, one full step each: w - w_i is half of the gradient."""
    problem = problems.regressions(4)
    algorithm = fp.FedMGDA(
        eps=0.15, server_learning_rate=0.3, normalize=normalize, local=STEP
    )
    whole = process(algorithm)
    states, infos, _ = problems.run(whole, problem, 2)
    theta = np.asarray(states.server["theta"])
    for before, after, lam in zip(
        theta[:-1], theta[1:], infos.aggregator.lam, strict=True
    ):
        rows = 0.5 * problem.gradients(np.tile(before, (4, 1)))
        rows = unit(rows) if normalize else rows
        share = problem.alpha("examples")
        bounds = np.maximum(0, share - 0.15), np.minimum(1, share + 0.15)
        expected = qp_oracles.shortest_in_box(rows, *bounds) @ rows
        np.testing.assert_allclose(before - after, 0.3 * expected, atol=1e-7)
        np.testing.assert_allclose(lam @ rows, expected, atol=1e-7)


def test_without_freedom_it_is_the_average_of_normalized_updates():
    updates = np.random.default_rng(0).normal(size=(5, 7))
    counts = np.array([3.0, 1, 4, 1, 5])
    step, _, _ = combine(updates, counts, eps=0.0)
    expected = (counts / counts.sum()) @ unit(updates)
    np.testing.assert_allclose(step, expected, atol=1e-12)


@each_form
def test_with_all_freedom_everybody_descends(normalize):
    for seed in range(20):
        updates = 1 + np.random.default_rng(seed).normal(size=(5, 7))
        step, _, info = combine(updates, eps=1.0, normalize=normalize)
        rows = unit(updates) if normalize else updates
        square = step @ step
        assert (rows @ step >= square * (1 - 1e-10)).all()
        best = qp_oracles.shortest(rows) @ rows
        np.testing.assert_allclose(step, best, atol=1e-7)
        assert float(info.gap) <= 1e-13


@each_form
def test_who_takes_no_part(normalize):
    updates = np.random.default_rng(1).normal(size=(3, 7))
    expected, _, _ = combine(updates, np.array([1.0, 2, 3]), normalize=normalize)
    bad = np.vstack([updates, np.zeros((4, 7))])
    bad[3], bad[4], bad[5] = np.nan, 1e38, 1e-8  # the last two are at rest
    weights = np.array([1.0, 2, 3, 4, 0, 6, 7])
    step, lam, _ = combine(bad, weights, normalize=normalize)
    np.testing.assert_allclose(step, expected, atol=1e-9)
    assert (lam[3:] == 0).all()
    step, _, info = combine(bad[3:], np.array([1.0, 0, 1, 1]), normalize=normalize)
    assert (step == 0).all()
    for leaf in jax.tree.leaves(info):
        assert (np.asarray(leaf) == 0).all()


@each_form
def test_a_huge_update_in_single_precision(normalize):
    updates = np.random.default_rng(2).normal(size=(3, 7))
    huge = np.vstack([updates, 1e38 * np.ones((1, 7))])
    step, _, info = combine(huge, eps=1.0, normalize=normalize, dtype=np.float32)
    assert np.isfinite(step).all() and np.linalg.norm(step) <= 3
    assert np.isfinite(float(info.norm)) and float(info.gap) <= 1e-6
    if normalize:
        other, _, _ = combine(np.vstack([updates, np.ones((1, 7))]), eps=1.0)
        np.testing.assert_allclose(step, other, atol=2e-3)


@pytest.mark.wide
def test_clients_keep_what_they_trained():
    problem = faults.problem()
    whole = process(fp.FedMGDA(keeps_local=True, local=STEP), 3)
    states, infos, _ = problems.run(whole, problem, 3)
    theta, kept = np.asarray(states.server["theta"]), states.clients["theta"]
    for round, cohort in enumerate(np.asarray(infos.cohort)[-2:], start=1):
        trained = [problem.descend(i, theta[round], 0, 0, 1, 0.5) for i in cohort]
        np.testing.assert_allclose(kept[round + 1][cohort], trained, rtol=1e-10)
        others = np.setdiff1d(np.arange(faults.NUM_CLIENTS), cohort)
        np.testing.assert_array_equal(kept[round + 1][others], kept[round][others])
    last = jax.tree.map(lambda leaf: leaf[-1], states.server)
    own = {"theta": kept[-1][0]}
    for algorithm, names in (
        (whole.algorithm, {"personal": own, "global": last}),
        (fp.FedMGDA(), {"global": last}),
    ):
        view = fp.ClientView(key=KEY, round=3, data=problem.federation.train)
        made = algorithm.predictors(view, last, own, problem.model)
        assert made.keys() == names.keys()
        x = problem.federation.train.x[:1]
        for name, params in names.items():
            expected = problem.model.apply(params, x)
            np.testing.assert_array_equal(made[name](x), expected)
    assert fp.FedMGDA().init(KEY, problem.model, None, None)[1] is None

"""Ditto against its equations in NumPy and closed forms."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_pfl as fp
from fedjax_pfl import algorithms
from fedjax_pfl.algorithms import ditto
from tests import problems
from tests.lanes import wide
from tests.setups import counts, process

CLOSE = {"rtol": 1e-11, "atol": 1e-12}  # some hundred roundings of values of order one
KEY = jax.random.key(3, impl="threefry2x32")
MINIBATCHES = fp.SGD(learning_rate=0.2, epochs=2, batch_size=2)


def in_numpy(problem, infos, w, lam, solvers, *, anchor):
    """Rounds of Ditto, `(w [R, d], v [R, N, d])`; `anchor`: `received` or `trained`."""
    shared, personal = solvers
    v, seen = np.tile(w, (len(counts(problem)), 1)), []
    for cohort in infos.cohort:
        sent = {i: problem.descend(i, w, w, 0.0, *shared) for i in cohort}
        for i in cohort:
            center = w if anchor == "received" else sent[i]
            v[i] = problem.descend(i, v[i], center, lam, *personal)
        w = np.average(list(sent.values()), axis=0, weights=counts(problem)[cohort])
        seen.append((w, v.copy()))
    return map(np.stack, zip(*seen, strict=True))


def test_rounds_are_the_equations_in_numpy_about_the_received_model():
    problem, lam = problems.waves(), 0.7
    algorithm = algorithms.Ditto(
        lam=lam,
        local=problems.full_gradient_steps(3, 0.3),
        personal=problems.full_gradient_steps(2, 0.4, momentum=0.5),
    )
    states, infos, _ = problems.run(process(algorithm, 3), problem, 10)
    start, solvers = states.server["theta"][0], ((3, 0.3), (2, 0.4, 0.5))
    w, v = in_numpy(problem, infos, start, lam, solvers, anchor="received")
    np.testing.assert_allclose(states.server["theta"][1:], w, **CLOSE)
    np.testing.assert_allclose(states.clients.v["theta"][1:], v, **CLOSE)
    _, wrong = in_numpy(problem, infos, start, lam, solvers, anchor="trained")
    assert np.abs(wrong - v).max() > 1e-2
    work = infos.client["gradient_evaluations"]
    np.testing.assert_array_equal(work, (3 + 2) * counts(problem)[infos.cohort])


@pytest.mark.parametrize("lam", [0.3, 4.0])
def test_the_fixed_point_on_least_squares_is_the_closed_form(lam):
    problem = problems.regressions()
    matrix, estimates = problem.curvature, problem.estimates
    rate = 1 / (problem.smoothness + lam)
    algorithm = algorithms.Ditto(
        lam=lam,
        local=problems.full_gradient_steps(1, 0.3),
        personal=problems.full_gradient_steps(4, rate),
    )
    states, _, _ = problems.run(process(algorithm), problem, 900)
    # One full step of all is gradient descent on the mean of the losses.
    weights = problem.alpha("examples")
    moments = np.einsum("nij,nj->ni", matrix, estimates)
    w = np.linalg.solve(np.einsum("n,nij->ij", weights, matrix), weights @ moments)
    v = np.linalg.solve(matrix + lam * np.eye(3), (moments + lam * w)[..., None])
    np.testing.assert_allclose(states.server["theta"][-1], w, atol=1e-8)
    np.testing.assert_allclose(states.clients.v["theta"][-1], v[..., 0], atol=1e-8)


@pytest.mark.wide
def test_a_solve_to_tolerance_leaves_no_residual():
    problem, lam = problems.waves(), 0.8
    algorithm = algorithms.Ditto(
        lam=lam,
        local=MINIBATCHES,
        personal=fp.local.ToTolerance(learning_rate=0.7, tolerance=1e-20),
    )
    states, infos, _ = problems.run(process(algorithm, 3), problem, 3)
    cohort, v = infos.cohort[-1], states.clients.v["theta"]
    pulled = problem.gradients(v[3]) + lam * (v[3] - states.server["theta"][2])
    assert np.abs(pulled[cohort]).max() < 1e-10
    absent = np.setdiff1d(np.arange(6), cohort)
    np.testing.assert_array_equal(v[3][absent], v[2][absent])


@pytest.mark.parametrize("official", [wide(False), True])
def test_the_published_bug_never_loads_the_received_model(official):
    """Official: the mean is over all clients, absent ones with their last message."""
    problem, lam, rate, steps = problems.waves(), 0.7, 0.4, 2
    make = algorithms.Ditto.official if official else algorithms.Ditto
    algorithm = make(
        lam=lam,
        local=problems.full_gradient_steps(steps, 0.3, momentum=0.5),
        personal=problems.full_gradient_steps(3, rate, momentum=0.5),
        unsynced=True,
    )
    whole = process(algorithm, 3, work=fp.Stragglers(fraction=0.5, max_epochs=3))
    states, infos, _ = problems.run(whole, problem, 6)
    w = states.server["theta"][0]
    v, own = np.tile(w, (6, 1)), np.tile(w, (6, 1))
    per_epoch = (1 + steps) * counts(problem)[infos.cohort]
    epochs = infos.client["gradient_evaluations"] / per_epoch
    assert set(epochs.flat) == {1, 2, 3}  # two of them stragglers'
    for number, cohort in enumerate(infos.cohort):
        for i, done in zip(cohort, epochs[number], strict=True):
            anchor, memory = w, 0.0
            for _ in range(int(done)):
                slope = problem.gradient(i, v[i]) + lam * (v[i] - anchor)
                memory = 0.5 * memory + slope
                v[i] = v[i] - rate * memory
                own[i] = problem.descend(i, own[i], w, 0.0, steps, 0.3, 0.5)
                anchor = own[i]
        members = np.arange(6) if official else cohort
        w = np.average(own[members], axis=0, weights=counts(problem)[members])
        rows = states.clients
        np.testing.assert_allclose(states.server["theta"][number + 1], w, **CLOSE)
        np.testing.assert_allclose(rows.w_local["theta"][number + 1], own, **CLOSE)
        np.testing.assert_allclose(rows.v["theta"][number + 1], v, **CLOSE)


@pytest.mark.parametrize("unsynced", [wide(False), True])
def test_the_global_branch_takes_given_batches(unsynced):
    """One step of size one on one example is that example."""
    problem = problems.quadratics([[0.0], [5.0]], num_examples=[4, 4])

    def order(view, epoch):
        return (jnp.arange(4) + view.round + view.data.client_id + epoch) % 4

    steps = {"epochs": 1} if unsynced else {"num_steps": 1}
    algorithm = algorithms.Ditto(
        local=fp.SGD(learning_rate=1.0, batch_size=1, order=order, **steps),
        personal=fp.SGD(learning_rate=0.1, batch_size=4, epochs=1),
        unsynced=unsynced,
        aggregate_over="all",
    )
    states, _, _ = problems.run(process(algorithm), problem, 6)
    x = np.asarray(problem.federation.train.x[:-1]).reshape(2, 4)
    for number in range(6):
        expected = [x[i, (number + i) % 4] for i in range(2)]
        sent = states.rows["messages"]["theta"][number + 1, :, 0]
        np.testing.assert_allclose(sent, expected, atol=1e-12)


@pytest.mark.wide
def test_the_short_last_batch_is_as_likely_as_any_other():
    problem = problems.waves()
    data = problem.federation.train
    rows = jax.tree.map(lambda leaf: leaf[1], data.rows())  # 5 examples
    client = data.pool().with_rows(rows)
    keys = jax.random.split(KEY, 900)
    positions, weight = jax.vmap(lambda key: ditto._any_minibatch(key, client, 2))(keys)
    sizes = np.asarray(weight).sum(axis=1)
    assert set(sizes) == {1, 2}
    assert abs((sizes == 1).mean() - 1 / 3) < 0.07  # four standard deviations
    drawn = np.asarray(positions)[np.asarray(weight)]
    share = np.bincount(drawn, minlength=5) / len(drawn)
    assert len(share) == 5 and np.abs(share - 0.2).max() < 0.05
    assert (np.asarray(positions)[sizes == 2, 0] != positions[sizes == 2, 1]).all()


def test_predictors_are_the_own_and_the_global_model():
    problem = problems.waves()
    v, w = np.array([0.3, -1.0, 0.7]), np.array([1.0, 2.0, 3.0])
    found = algorithms.Ditto().predictors(
        fp.ClientView(key=KEY, round=0, data=problem.federation.train.pool()),
        {"theta": jnp.asarray(w)},
        ditto.DittoClient(v={"theta": jnp.asarray(v)}),
        problem.model,
    )
    x = jnp.asarray(np.random.default_rng(0).normal(size=(5, 3)))
    assert set(found) == {"personal", "global"}
    np.testing.assert_allclose(found["personal"](x), x @ v, **CLOSE)
    np.testing.assert_allclose(found["global"](x), x @ w, **CLOSE)

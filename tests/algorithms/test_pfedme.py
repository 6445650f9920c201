"""pFedMe against its equations in NumPy, Moreau envelopes, closed forms and FLAME."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_pfl as fp
from experiments.theory import closed_forms
from fedjax_pfl import algorithms
from tests import problems
from tests.lanes import wide
from tests.setups import counts

CLOSE = {"rtol": 1e-11, "atol": 1e-12}  # some hundred roundings of values of order one
KEY = jax.random.key(3, impl="threefry2x32")


def process(size=None, *, aggregator=None, attack=None, work=None, **fields):
    fields = {"batch_size": problems.FULL_BATCH} | fields
    return fp.FederatedProcess(
        algorithm=algorithms.PFedMe(**fields),
        aggregator=aggregator,
        participation=fp.AllClients() if size is None else fp.UniformCohort(size=size),
        work=work or fp.local.FullWork(),
        attack=attack,
    )


@pytest.mark.parametrize("start", ["own", "received"])
@pytest.mark.parametrize(("beta", "decay"), [(1.0, 0.0), (0.6, 0.05), (2.0, 0.0)])
def test_rounds_are_the_equations_in_numpy(start, beta, decay):
    problem, lam, eta, rate, steps, inner = problems.waves(), 2.0, 0.3, 0.2, 3, 2
    whole = process(
        3,
        lam=lam,
        learning_rate=eta,
        inner_learning_rate=rate,
        server_learning_rate=beta,
        weight_decay=decay,
        num_steps=steps,
        inner_steps=inner,
        start=start,
    )
    states, infos, _ = problems.run(whole, problem, 8)
    w = states.server["theta"][0]
    theta = np.tile(w, (6, 1))
    for number, cohort in enumerate(infos.cohort):
        sent = {}
        for i in cohort:
            own, point = w, theta[i] if start == "own" else w
            for _ in range(steps):
                for _ in range(inner):
                    slope = problem.gradient(i, point) + lam * (point - own)
                    point = point - rate * (slope + decay * point)
                own = own - eta * lam * (own - point)
            theta[i], sent[i] = point, own
        mean = np.average(list(sent.values()), axis=0, weights=counts(problem)[cohort])
        w = (1 - beta) * w + beta * mean
        np.testing.assert_allclose(states.server["theta"][number + 1], w, **CLOSE)
        np.testing.assert_allclose(states.clients["theta"][number + 1], theta, **CLOSE)
    work = infos.client["gradient_evaluations"]
    expected = steps * inner * counts(problem)[infos.cohort]
    np.testing.assert_array_equal(work, expected)


def test_many_inner_steps_reach_the_closed_form_prox():
    problem, lam = problems.regressions(), 1.5
    whole = process(
        lam=lam,
        inner_learning_rate=1 / (problem.smoothness + lam),
        num_steps=1,
        inner_steps=400,
    )
    states, _, _ = problems.run(whole, problem, 3)
    moments = np.einsum("nij,nj->ni", problem.curvature, problem.estimates)
    system = problem.curvature + lam * np.eye(3)
    for number in range(3):
        right = moments + lam * states.server["theta"][number]
        prox = np.linalg.solve(system, right[..., None])[..., 0]
        np.testing.assert_allclose(
            states.clients["theta"][number + 1], prox, rtol=1e-10, atol=1e-10
        )


def envelope(problem, client, w, lam):
    """The Moreau envelope of one client's loss by plain descent in NumPy."""
    rate = 1 / (problem.smoothness + lam)
    theta = problem.descend(client, w, w, lam, 300, rate)
    return problem.loss(client, theta) + lam / 2 * np.square(theta - w).sum()


def test_the_step_of_w_is_the_envelopes_gradient():
    problem, lam, eta, step = problems.waves(num_clients=1), 1.0, 0.05, 1e-5
    whole = process(
        lam=lam,
        learning_rate=eta,
        inner_learning_rate=1 / (problem.smoothness + lam),
        num_steps=1,
        inner_steps=300,
    )
    states, _, _ = problems.run(whole, problem, 1)
    (w, new), theta = states.server["theta"], states.clients["theta"][1, 0]
    slope = [
        (
            envelope(problem, 0, w + step * e, lam)
            - envelope(problem, 0, w - step * e, lam)
        )
        / (2 * step)
        for e in np.eye(3)
    ]
    # Central differences: step^2 of third derivatives, and eps / step.
    np.testing.assert_allclose(lam * (w - theta), slope, atol=1e-9)
    np.testing.assert_allclose((w - new) / eta, slope, atol=1e-9)
    assert np.abs(slope - problem.gradient(0, w)).max() > 1e-2


@pytest.mark.wide
def test_the_fixed_point_is_the_minimizer_of_the_envelopes():
    problem, lam = problems.regressions(), 2.0
    whole = process(
        lam=lam,
        learning_rate=0.5,
        inner_learning_rate=1 / (problem.smoothness + lam),
        num_steps=1,
        inner_steps=5,
    )
    states, _, _ = problems.run(whole, problem, 700)
    w, theta = closed_forms.regression_optimum(
        problem.curvature, problem.estimates, lam, problem.alpha("examples")
    )
    np.testing.assert_allclose(states.server["theta"][-1], w, atol=1e-8)
    np.testing.assert_allclose(states.clients["theta"][-1], theta, atol=1e-8)


def test_flame_at_kappa_one_is_a_step_of_one_over_lam():
    problem, lam, steps, rate = problems.waves(), 1.5, 4, 0.2
    flame = fp.Flame(
        lam=lam,
        kappa=1.0,
        center="received",
        local=problems.full_gradient_steps(steps, rate),
    )
    theirs, _, _ = problems.run(fp.FederatedProcess(algorithm=flame), problem, 10)
    whole = process(
        aggregator=fp.aggregators.Mean(),
        lam=lam,
        learning_rate=1 / lam,
        inner_learning_rate=rate,
        num_steps=1,
        inner_steps=steps,
    )
    ours, _, _ = problems.run(whole, problem, 10)
    np.testing.assert_allclose(ours.server["theta"], theirs.server["theta"], **CLOSE)
    np.testing.assert_allclose(
        ours.clients["theta"], theirs.clients.theta["theta"], **CLOSE
    )


@pytest.mark.parametrize("official", [wide(False), True])
def test_w_takes_a_step_after_every_epoch_of_the_inner_solver(official):
    """Official: the mean is over all clients, absent ones with their last w_i."""
    problem, lam, eta, rate, decay = problems.waves(), 2.0, 0.3, 0.2, 0.05
    inner = fp.SGD(
        learning_rate=rate,
        epochs=3,
        batch_size=problems.FULL_BATCH,
        momentum=0.5,
        weight_decay=decay,
    )
    fields = {"lam": lam, "learning_rate": eta, "inner": inner}
    make = algorithms.PFedMe.official if official else algorithms.PFedMe
    whole = dataclasses.replace(process(4), algorithm=make(**fields))
    states, infos, _ = problems.run(whole, problem, 6)
    w = states.server["theta"][0]
    theta = np.tile(w, (6, 1))
    sent = dict(enumerate(theta.copy()))  # what everybody starts with
    for number, cohort in enumerate(infos.cohort):
        for i in cohort:
            own, memory = w, 0.0
            for _ in range(3):
                slope = problem.gradient(i, theta[i]) + lam * (theta[i] - own)
                memory = 0.5 * memory + slope + decay * theta[i]
                theta[i] = theta[i] - rate * memory
                own = own - eta * lam * (own - theta[i])
            sent[i] = own
        rows = np.arange(6) if official else cohort
        w = np.average([sent[i] for i in rows], axis=0, weights=counts(problem)[rows])
        np.testing.assert_allclose(states.server["theta"][number + 1], w, **CLOSE)
        np.testing.assert_allclose(states.clients["theta"][number + 1], theta, **CLOSE)
        if official:  # w_i can be read
            copies = [sent[i] for i in range(6)]
            kept = states.rows["messages"]["theta"][number + 1]
            np.testing.assert_allclose(kept, copies, **CLOSE)
    work = infos.client["gradient_evaluations"]
    np.testing.assert_array_equal(work, 3 * counts(problem)[infos.cohort])


@pytest.mark.parametrize("product", [1.9, 2.1])
def test_inner_steps_are_stable_below_the_stated_bound(product):
    problem, lam, inner = problems.random_quadratics(curvature=2.0), 3.0, 7
    whole = process(
        lam=lam,
        inner_learning_rate=product / (problem.smoothness + lam),
        num_steps=1,
        inner_steps=inner,
    )
    states, _, _ = problems.run(whole, problem, 1)
    w, theta = states.server["theta"][0], states.clients["theta"]
    prox = (2.0 * problem.estimates + lam * w) / (2.0 + lam)
    before, after = (np.linalg.norm(t - prox, axis=1) for t in theta)
    np.testing.assert_allclose(after / before, abs(1 - product) ** inner, rtol=1e-9)
    assert (after < before).all() == (product < 2)


@pytest.mark.wide
def test_all_inner_steps_use_one_batch_and_every_step_draws_its_own():
    problem = problems.quadratics([[0.0], [4.0]], num_examples=[5, 4])
    lam = 1.0
    fields = {
        "lam": lam,
        "learning_rate": 1e-9,
        "inner_learning_rate": 1 / (1 + lam),  # exact in one step
        "batch_size": 1,
    }
    x = np.asarray(problem.federation.train.x[:-1, 0])
    examples, chosen = [x[:5], x[5:]], []
    for inner in (1, 4):
        whole = process(num_steps=3, inner_steps=inner, **fields)
        states, _, _ = problems.run(whole, problem, 15)
        chosen.append([])
        for i in range(2):
            received = states.server["theta"][:-1, 0]
            point = (1 + lam) * states.clients["theta"][1:, i, 0] - lam * received
            distance = np.abs(point[:, None] - examples[i])
            assert distance.min(axis=1).max() < 1e-6  # w moves by 1e-9 per step
            assert len(set(distance.argmin(axis=1))) == len(examples[i])
            chosen[-1].append(distance.argmin(axis=1).tolist())
    assert chosen[0] == chosen[1]


@pytest.mark.wide
def test_budgets_cap_steps():
    problem = problems.waves()
    stragglers = fp.Stragglers(fraction=1.0, max_epochs=2)
    _, infos, _ = problems.run(
        process(work=stragglers, num_steps=4, inner_steps=3), problem, 1
    )
    found = infos.client["gradient_evaluations"][0]
    np.testing.assert_array_equal(found, 3 * counts(problem))


def test_the_personal_model_is_theta_and_not_w_local():
    problem, algorithm = problems.waves(), algorithms.PFedMe()
    theta, w = np.array([0.3, -1.0, 0.7]), np.array([1.0, 2.0, 3.0])
    found = algorithm.predictors(
        fp.ClientView(key=KEY, round=0, data=problem.federation.train.pool()),
        {"theta": jnp.asarray(w)},
        {"theta": jnp.asarray(theta)},
        problem.model,
    )
    x = jnp.asarray(np.random.default_rng(0).normal(size=(5, 3)))
    assert set(found) == {"personal", "global"}
    np.testing.assert_allclose(found["personal"](x), x @ theta, **CLOSE)
    np.testing.assert_allclose(found["global"](x), x @ w, **CLOSE)

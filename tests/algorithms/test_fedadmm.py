"""FedADMM against an unscaled version in NumPy, optima of quadratics, and its limits.

The independent version keeps the unscaled dual pi and divides nothing by alpha.
Tolerances of 1e-12 are some hundred roundings of numbers of order one.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_pfl as fp
from tests import problems
from tests.lanes import wide

CLOSE = {"rtol": 1e-12, "atol": 1e-12}
MINIBATCHES = fp.SGD(learning_rate=0.2, epochs=2, batch_size=2)


def process(size=None, **fields):
    fields = {"local": problems.full_gradient_steps()} | fields
    return fp.FederatedProcess(
        algorithm=fp.FedADMM(**fields),
        participation=fp.AllClients() if size is None else fp.UniformCohort(size=size),
    )


def independent(problem, start, cohorts, *, rho, alpha, eta=None, steps=3, rate=0.3):
    """Unscaled FedADMM from a common start; yields `(theta, pi, w)`.

    `eta` None is the mean of all messages, a number the step along the mean change.
    """
    theta = np.tile(start, (len(alpha), 1))
    pi, w, u = np.zeros_like(theta), start, np.copy(theta)
    for cohort in cohorts:
        before = np.copy(u)
        for i in cohort:
            point = w
            for _ in range(steps):
                slope = alpha[i] * problem.gradient(i, point) + pi[i]
                point = point - rate / alpha[i] * (slope + rho * (point - w))
            theta[i] = point
            pi[i] = pi[i] + rho * (point - w)
            u[i] = theta[i] + pi[i] / rho
        change = (u - before)[cohort].mean(axis=0)
        w = u.mean(axis=0) if eta is None else w + eta * change
        yield np.copy(theta), np.copy(pi), w


def optimum(problem, alpha, pull=0.0, start=0.0):
    """Minimizer of `sum alpha f + pull/2 |w - start|^2` for least squares."""
    system = np.einsum("n,nij->ij", alpha, problem.curvature)
    right = np.einsum("n,nij,nj->i", alpha, problem.curvature, problem.estimates)
    return np.linalg.solve(system + pull * np.eye(len(right)), right + pull * start)


@pytest.mark.parametrize(
    ("mode", "eta"),
    [
        ("mean_all", None),
        ("delta_selected", None),  # steps of |S|/N are the mean of all messages
        wide("delta_selected", 0.7),
    ],
)
def test_rounds_are_the_unscaled_equations_in_numpy(mode, eta):
    problem, rho = problems.waves(), 0.15
    alpha = problem.alpha("examples")
    whole = process(
        3, rho=rho, weighting="examples", server_mode=mode, server_learning_rate=eta
    )
    states, infos, values = problems.run(whole, problem, 15, diagnostics=True)
    start = states.server["theta"][0]
    rounds = independent(problem, start, infos.cohort, rho=rho, alpha=alpha, eta=eta)
    for number, (theta, pi, w) in enumerate(rounds, 1):
        found = states.clients.theta["theta"][number], states.server["theta"][number]
        np.testing.assert_allclose(found[0], theta, **CLOSE)
        np.testing.assert_allclose(found[1], w, **CLOSE)
        np.testing.assert_allclose(rho * states.clients.p["theta"][number], pi, **CLOSE)
        gap = theta - w
        at_w = problem.losses(np.tile(w, (6, 1)))
        lagrangian = alpha @ problem.losses(theta) + (pi * gap).sum()
        residual = problem.gradients(theta) + pi / alpha[:, None]
        expected = {
            "lagrangian": lagrangian + rho / 2 * np.square(gap).sum(),
            "objective": alpha @ at_w,
            "residual_theta": np.linalg.norm(residual, axis=1).max(),
            "dual_sum": np.linalg.norm(pi.sum(axis=0)),
            "consensus_distance": np.sqrt(np.square(gap).sum(axis=1).mean()),
        }
        assert values.keys() == expected.keys()
        for name, value in expected.items():
            np.testing.assert_allclose(values[name][number], value, **CLOSE)
    present = np.zeros((15, 6), bool)
    np.put_along_axis(present, infos.cohort, True, axis=1)
    for leaf in jax.tree.leaves(states.of_clients()):
        same = (leaf[1:] == leaf[:-1]).reshape(15, 6, -1).all(axis=2)
        assert same[~present].all()


def test_mu_is_rho_over_the_mean_weight_and_finite_without_weight():
    alpha = jnp.asarray([0.1, 0.0, 0.4, 0.5])
    ratio = jnp.asarray([1 / 0.4, 0.0, 1 / 1.6, 1 / 2.0])
    by_mu, by_rho = fp.FedADMM(mu=0.9), fp.FedADMM(rho=0.9 / 4)
    some = np.array([0, 2, 3])
    for algorithm in (by_mu, by_rho):
        found = algorithm.pull(alpha, ratio)
        assert np.isfinite(found).all()
        np.testing.assert_allclose(found[some], 0.225 / alpha[some], **CLOSE)
    assert by_mu.penalty(4) == pytest.approx(by_rho.penalty(4), rel=1e-15)


@pytest.mark.parametrize(
    ("mode", "weighting", "size"),
    [
        ("mean_all", "examples", 2),
        wide("mean_all", "uniform", None),
        wide("delta_selected", "examples", 2),
        wide("delta_selected", "uniform", None),
    ],
)
def test_the_fixed_point_is_the_optimum(mode, weighting, size):
    # Curvatures differ, so that it is no mean of the clients' own minimizers.
    problem, mu = problems.regressions(), 0.6
    local = problems.full_gradient_steps(20, 1 / (problem.smoothness + 3 * mu))
    whole = process(size, mu=mu, weighting=weighting, server_mode=mode, local=local)
    states, _, values = problems.run(whole, problem, 600, diagnostics=True)
    alpha = problem.alpha(weighting)
    w = optimum(problem, alpha)
    np.testing.assert_allclose(states.server["theta"][-1], w, atol=1e-9)
    np.testing.assert_allclose(
        states.clients.theta["theta"][-1], np.tile(w, (5, 1)), atol=1e-9
    )
    slopes = problem.gradients(np.tile(w, (5, 1)))
    np.testing.assert_allclose(
        mu / 5 * states.clients.p["theta"][-1], -alpha[:, None] * slopes, atol=1e-9
    )
    residuals = ("residual_theta", "dual_sum", "consensus_distance")
    assert max(values[name][-1] for name in residuals) < 1e-8
    assert np.linalg.norm(w - problem.estimates.mean(axis=0)) > 1e-2


@pytest.mark.wide
def test_a_constant_step_other_than_the_share_moves_the_fixed_point():
    # A client's changes add up to its message: w^T - w^0 = eta/|S| sum (u^T - u^0).
    problem, mu, eta, size = problems.regressions(), 0.6, 1.0, 2
    local = problems.full_gradient_steps(20, 1 / (problem.smoothness + mu))
    whole = process(
        size, mu=mu, server_mode="delta_selected", server_learning_rate=eta, local=local
    )
    states, _, _ = problems.run(whole, problem, 600)
    w = states.server["theta"]
    sent = (states.clients.theta["theta"] + states.clients.p["theta"]) - w[0]
    share = eta * 5 / size
    np.testing.assert_allclose(w - w[0], share * sent.mean(axis=1), atol=1e-11)
    alpha = problem.alpha("uniform")
    limit = optimum(problem, alpha, pull=(1 / share - 1) * mu, start=w[0])
    np.testing.assert_allclose(w[-1], limit, atol=1e-9)
    assert np.linalg.norm(limit - optimum(problem, alpha)) > 1e-2


def as_if_new(state):
    """Forgets duals, and what was sent: only the received w is left."""
    count = state.clients.alpha.shape[0]
    w = jax.tree.map(lambda x: jnp.tile(x, (count, 1)), state.server)
    zeros = jax.tree.map(jnp.zeros_like, w)
    rows = dataclasses.replace(state.clients, theta=w, p=zeros)
    return dataclasses.replace(state, clients=rows)


def test_without_duals_it_is_fedprox_and_fedavg_for_small_rho():
    # Changes are then 2 (theta_i - w), and half a step goes to the mean of theta_i.
    problem = problems.waves()

    def rounds(mu):
        whole = process(
            mu=mu,
            local=MINIBATCHES,
            server_mode="delta_selected",
            server_learning_rate=0.5,
        )
        states, _, _ = problems.run(whole, problem, 10, before=as_if_new)
        return states.server["theta"]

    def fedprox(mu):
        algorithm = fp.FedProx(mu=mu, local=MINIBATCHES)
        whole = fp.FederatedProcess(
            algorithm=algorithm, aggregator=fp.aggregators.Mean()
        )
        return problems.run(whole, problem, 10)[0].server["theta"]

    np.testing.assert_allclose(rounds(0.8), fedprox(0.8), **CLOSE)
    average = fedprox(0.0)  # FedAvg with uniform weights
    errors = [np.abs(rounds(mu) - average).max() for mu in (1e-3, 1e-5)]
    assert 1e-5 < errors[0] < 1e-2
    assert errors[0] == pytest.approx(100 * errors[1], rel=0.01)


@pytest.mark.wide
def test_the_schedule_of_eps_is_met():
    problem, mu = problems.waves(), 0.8
    local = fp.local.ToTolerance(learning_rate=0.4, tolerance=0.0)
    whole = process(2, mu=mu, eps_decay=0.8, weighting="examples", local=local)
    states, infos, _ = problems.run(whole, problem, 20)
    alpha = problem.alpha("examples")
    w, theta = states.server["theta"], states.clients.theta["theta"]
    slopes = problem.gradients(np.tile(w[0], (6, 1)))
    eps = np.square(alpha[:, None] * slopes).sum(axis=1)
    for number, cohort in enumerate(infos.cohort, 1):
        eps[cohort] *= 0.8
        np.testing.assert_allclose(states.clients.eps[number], eps, rtol=1e-12)
        # After the dual's step the residual is the gradient plus the new dual.
        dual = mu / 6 * states.clients.p["theta"][number]
        residual = alpha[:, None] * problem.gradients(theta[number]) + dual
        size = np.square(residual).sum(axis=1)
        assert (size <= eps * (1 + 1e-9))[cohort].all()
    assert not infos.client["unconverged"].any()


@pytest.mark.wide
def test_clients_without_examples_are_left_alone():
    problem = problems.waves()
    counts = problem.federation.train.num_examples.at[1].set(0)
    data = dataclasses.replace(problem.federation.train, num_examples=counts)
    federation = dataclasses.replace(problem.federation, train=data)
    empty = dataclasses.replace(problem, federation=federation)
    local = fp.local.ToTolerance(learning_rate=0.4)
    whole = process(rho=0.1, weighting="examples", local=local)
    states, infos, _ = problems.run(whole, empty, 3)
    for leaf in jax.tree.leaves((states.clients, states.server)):
        assert np.isfinite(leaf).all()
    assert (states.clients.p["theta"][:, 1] == 0).all()
    assert not infos.client["unconverged"].any()

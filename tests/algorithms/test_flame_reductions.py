"""What FLAME becomes in special cases, and one thing that it does not become.

The other methods are short loops in NumPy, or this library's own where the same keys
give the same minibatches. Tolerances of 1e-12 are some hundred roundings of numbers of
order one.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_pfl as fp
from fedjax_pfl.algorithms import common
from tests import problems
from tests.setups import process

CLOSE = {"rtol": 1e-12, "atol": 1e-12}


def no_duals(state):
    zeros = jax.tree.map(jnp.zeros_like, state.clients.p)
    rows = dataclasses.replace(state.clients, p=zeros)
    return dataclasses.replace(state, clients=rows)


def restart_from_w(state):
    start = jax.tree.map(
        lambda leaf, w: jnp.broadcast_to(w, leaf.shape),
        state.clients.theta,
        state.server,
    )
    rows = dataclasses.replace(state.clients, theta=start)
    return dataclasses.replace(state, clients=rows)


def test_without_duals_the_local_copy_is_a_pfedme_step():
    # w_i = w - eta lam (w - theta_i), eta = alpha/(lam alpha + rho); the upload
    # w_i + (w_i - w) goes twice as far.
    problem, lam, kappa = problems.waves(), 0.7, 3.0
    whole = process(
        fp.Flame(
            lam=lam,
            kappa=kappa,
            center="received",
            local=problems.full_gradient_steps(),
        )
    )
    states, _, _ = problems.run(whole, problem, 30, before=no_duals)
    eta = (1 / 6) / (lam / 6 + kappa * lam / 6)
    w = states.server["theta"][0]
    theta = np.tile(w, (6, 1))
    for number in range(1, 31):
        theta = np.stack([problem.descend(i, theta[i], w, lam, 3) for i in range(6)])
        step = common.local_consensus_update(theta, w, 0.0, share=1 / (1 + kappa))
        np.testing.assert_allclose(step, w - eta * lam * (w - theta), **CLOSE)
        np.testing.assert_allclose(
            states.clients.w_local["theta"][number], step, **CLOSE
        )
        w = np.mean(w - 2 * eta * lam * (w - theta), axis=0)
        np.testing.assert_allclose(states.server["theta"][number], w, **CLOSE)


@pytest.mark.wide
def test_restarted_from_w_at_kappa_1_is_fedprox_and_without_lam_fedavg():
    problem = problems.waves()
    fields = {"kappa": 1.0, "center": "received"}
    whole = process(fp.Flame(lam=0.7, local=problems.full_gradient_steps(), **fields))
    states, _, _ = problems.run(whole, problem, 30, before=restart_from_w)
    w = states.server["theta"][0]
    for number in range(30):  # FedProx, mu = lam, uniform weights
        w = np.mean([problem.descend(i, w, w, 0.7, 3) for i in range(6)], axis=0)
        np.testing.assert_allclose(states.server["theta"][number + 1], w, **CLOSE)

    local = fp.SGD(learning_rate=0.2, epochs=2, batch_size=2)
    averaging = fp.FedAvg(local=local, weighting="uniform")
    restarted = fp.Flame(lam=0.0, local=local, **fields)
    ours, _, _ = problems.run(process(restarted), problem, 10, before=restart_from_w)
    theirs, _, _ = problems.run(process(averaging), problem, 10)
    np.testing.assert_allclose(ours.server["theta"], theirs.server["theta"], **CLOSE)


@pytest.mark.wide
def test_lam_0_is_local_training_and_w_stays():
    problem = problems.waves()
    local = fp.SGD(learning_rate=0.2, epochs=2, batch_size=2)
    alone, _, _ = problems.run(process(fp.Local(local=local)), problem, 10)
    losses = [problem.losses(row).mean() for row in alone.clients["theta"]]
    assert losses[-1] < 0.9 * losses[0]
    for center in ("local", "joint"):
        algorithm = fp.Flame(lam=0.0, rho=0.3, center=center, local=local)
        states, _, values = problems.run(
            process(algorithm), problem, 10, diagnostics=True
        )
        theta, w = states.clients.theta["theta"], states.server["theta"]
        np.testing.assert_allclose(theta, alone.clients["theta"], **CLOSE)
        np.testing.assert_allclose(w, np.tile(w[0], (11, 1)), **CLOSE)
        np.testing.assert_allclose(values["objective"], losses, **CLOSE)
        np.testing.assert_allclose(values["lagrangian"], losses, **CLOSE)


def fedadmm(targets, curvature, rho, num_rounds):
    """FedADMM with exact solves and uniform alpha, from zero; yields w."""
    count = len(targets)
    pi, u = np.zeros_like(targets), np.zeros_like(targets)
    for _ in range(num_rounds):
        w = u.mean(axis=0)
        # argmin b/(2N) |x - target|^2 + <pi, x - w> + rho/2 |x - w|^2
        x = (curvature / count * targets + rho * w - pi) / (curvature / count + rho)
        pi = pi + rho * (x - w)
        u = x + pi / rho
        yield u.mean(axis=0)


@pytest.mark.wide
def test_large_lam_is_fedadmm_with_the_joint_center():
    problem, rho = problems.random_quadratics(curvature=0.6), 0.2
    expected = np.stack(list(fedadmm(problem.estimates, 0.6, rho, 30)))
    ours = fp.FedADMM(rho=rho, local=problems.exact_step(problem, 6 * rho))
    states, _, _ = problems.run(process(ours), problem, 30)
    np.testing.assert_allclose(states.server["theta"][1:], expected, **CLOSE)
    errors = {}
    for lam in (1e4, 1e6):
        pull = lam * rho / (lam / 6 + rho)  # lam kappa / (1 + kappa)
        algorithm = fp.Flame(
            lam=lam,
            kappa=6 * rho / lam,
            center="joint",
            local=problems.exact_step(problem, pull),
        )
        states, _, _ = problems.run(process(algorithm), problem, 30)
        errors[lam] = np.abs(states.server["theta"][1:] - expected).max()
    assert errors[1e6] < 1e-5
    assert errors[1e4] == pytest.approx(100 * errors[1e6], rel=0.05)


def test_large_lam_is_not_fedadmm_with_the_local_center():
    # theta_i and w_i hold each other: the larger lam, the closer w stays to its start.
    problem, rho = problems.random_quadratics(), 0.1
    optimum = problem.estimates.mean(axis=0)
    start = np.linalg.norm(optimum)
    *_, last = fedadmm(problem.estimates, 1.0, rho, 200)
    assert np.linalg.norm(last - optimum) < 1e-12
    distances = []
    for lam in (10.0, 100.0, 1e3, 1e4):
        algorithm = fp.Flame(lam=lam, rho=rho, local=problems.exact_step(problem, lam))
        states, _, _ = problems.run(process(algorithm), problem, 200)
        distances.append(np.linalg.norm(states.server["theta"][-1] - optimum))
    assert (np.diff(distances) > 0).all()
    assert distances[0] < 0.1 * start
    assert 0.95 * start < distances[-1] < start

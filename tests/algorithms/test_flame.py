"""FLAME: identities of a round, an independent version, solver, refusals.

The independent version keeps the unscaled dual pi, explicit rho and Python loops over
clients, in NumPy. Tolerances of 1e-12 are some hundred roundings of order-one numbers.
"""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_pfl as fp
from fedjax_pfl.round.parts import mailbox
from tests import problems
from tests.lanes import wide
from tests.setups import process

CLOSE = {"rtol": 1e-12, "atol": 1e-12}
OTHERS = [*map(wide, ("received", "joint"))]


def independent(
    problem,
    start,
    cohorts,
    *,
    lam,
    rho,
    alpha,
    center="local",
    cadence="round",
    steps=3,
):
    """Unscaled FLAME from a common start; yields `(theta, w_local, pi, u, w)`."""
    count = len(alpha)
    theta, w_local, u = (np.tile(start, (count, 1)) for _ in range(3))
    pi = np.zeros_like(theta)
    a = lam * alpha[:, None]

    def consensus(i, w):
        w_local[i] = (a[i] * theta[i] + rho * w - pi[i]) / (a[i] + rho)
        pi[i] = pi[i] + rho * (w_local[i] - w)

    for cohort in cohorts:
        w = u.mean(axis=0)
        for i in cohort:
            weight, c = lam, w_local[i] if center == "local" else w
            if center == "joint":
                weight, c = lam * rho / (lam * alpha[i] + rho), w - pi[i] / rho
            if cadence == "epoch":
                for _ in range(steps):
                    theta[i] = problem.descend(i, theta[i], c, weight, 1)
                    consensus(i, w)
                    c = w - pi[i] / rho if center == "joint" else w_local[i]
            else:
                theta[i] = problem.descend(i, theta[i], c, weight, steps)
                consensus(i, w)
            u[i] = w_local[i] + pi[i] / rho
        yield tuple(np.copy(x) for x in (theta, w_local, pi, u, u.mean(axis=0)))


def told(states):
    """Messages `[..., N, d]`, which are not kept beside the clients' states."""
    assert "messages" not in states.rows
    return states.clients.w_local["theta"] + states.clients.p["theta"]


def parts_of(states, rho):
    """`theta, w_local, pi, u [..., N, d]` and `w [..., d]` of one state or of many."""
    rows = states.clients
    messages = {"theta": told(states)}
    trees = (rows.theta, rows.w_local, rows.p, messages, states.server)
    theta, w_local, p, u, w = (np.asarray(tree["theta"]) for tree in trees)
    return theta, w_local, rho * p, u, w


def lagrangian(problem, parts, *, lam, rho, alpha):
    """The augmented Lagrangian from its definition."""
    theta, w_local, pi, _, w = parts
    value = alpha @ problem.losses(theta)
    value += lam / 2 * alpha @ np.square(theta - w_local).sum(axis=1)
    return value + (pi * (w_local - w)).sum() + rho / 2 * np.square(w_local - w).sum()


def random_state(whole, problem, seed=0):
    """Random iterates, duals and alpha, and the mean that belongs to them."""
    rng = np.random.default_rng(seed)
    state = problems.first_state(whole, problem)
    count, d = state.clients.theta["theta"].shape
    theta, w_local, p = (
        {"theta": jnp.asarray(x)} for x in rng.normal(size=(3, count, d))
    )
    alpha = jnp.asarray(rng.dirichlet(np.ones(count)))
    rows = dataclasses.replace(
        state.clients,
        theta=theta,
        w_local=w_local,
        p=p,
        alpha=alpha,
        ratio=1 / (count * alpha),
    )
    w = jax.tree.map(lambda a, b: (a + b).mean(axis=0), w_local, p)
    state = dataclasses.replace(state, clients=rows, server=w)
    return state.with_memory(mean=w)


@pytest.mark.parametrize(
    ("center", "participation"),
    [
        ("local", fp.UniformCohort(size=3)),
        wide("received", fp.AllClients()),
        wide("joint", fp.UniformCohort(size=3)),
    ],
)
def test_identities_hold_after_a_round_from_any_state(center, participation):
    # P1, P2, P3 and P5 do not need exact solves, a special start or a special rho.
    problem, lam, rho = problems.waves(), 0.7, 0.23
    whole = fp.FederatedProcess(
        algorithm=fp.Flame(
            lam=lam, rho=rho, center=center, local=problems.full_gradient_steps(steps=1)
        ),
        participation=participation,
    )
    for seed in range(4):
        start = random_state(whole, problem, seed)
        states, infos, values = problems.run(
            whole, problem, 1, state=start, diagnostics=True
        )
        cohort = infos.cohort[0]
        alpha = np.asarray(start.clients.alpha)
        a = lam * alpha[:, None]
        theta, w_local, pi, u, w = (x[1] for x in parts_of(states, rho))
        theta0, w_local0, pi0, _, w0 = (x[0] for x in parts_of(states, rho))

        picked = np.zeros(len(alpha), bool)
        picked[cohort] = True
        np.testing.assert_allclose(pi[picked], (a * (theta - w_local))[picked], **CLOSE)
        forms = [
            2 * w_local - w0 + pi0 / rho,
            (2 * a * theta + (rho - a) * (w0 - pi0 / rho)) / (a + rho),
        ]
        for form in forms:
            np.testing.assert_allclose(u[picked], form[picked], **CLOSE)
        np.testing.assert_allclose(
            (pi + rho * (w_local - w)).sum(axis=0), 0, atol=1e-12
        )

        def value(theta, w_local, pi, w, alpha=alpha):
            parts = (theta, w_local, pi, None, w)
            return lagrangian(problem, parts, lam=lam, rho=rho, alpha=alpha)

        after = value(theta, w_local, pi, w)
        shift = np.random.default_rng(seed).normal(size=w.shape)
        excess = value(theta, w_local, pi, w + shift) - after
        assert math.isclose(excess, rho * len(alpha) / 2 * shift @ shift, rel_tol=1e-10)

        e1 = after - value(theta, w_local, pi, w0)
        e2 = value(theta, w_local, pi, w0) - value(theta, w_local, pi0, w0)
        e3 = value(theta, w_local, pi0, w0) - value(theta, w_local0, pi0, w0)
        e4 = value(theta, w_local0, pi0, w0) - value(theta0, w_local0, pi0, w0)
        moved = np.square(w_local - w_local0).sum(axis=1)
        expected = (
            -rho * len(alpha) / 2 * np.square(w - w0).sum(),
            np.square(pi - pi0).sum() / rho,
            -((a[:, 0] + rho) / 2 * moved).sum(),
        )
        np.testing.assert_allclose((e1, e2, e3), expected, rtol=1e-10)
        change = np.diff(values["lagrangian"])[0]
        assert math.isclose(change, e1 + e2 + e3 + e4, rel_tol=1e-10)


def test_diagnostics_are_their_definitions_at_any_state():
    problem, lam, rho = problems.waves(), 0.7, 0.23
    algorithm = fp.Flame(
        lam=lam, rho=rho, eps_decay=0.9, local=fp.local.ToTolerance(learning_rate=0.5)
    )
    start = random_state(process(algorithm), problem)
    eps = np.linspace(0.1, 0.6, 6)
    rows = dataclasses.replace(start.clients, eps=jnp.asarray(eps))
    start = dataclasses.replace(start, clients=rows)
    found = algorithm.diagnostics(start, problem.model, problem.federation)

    alpha = np.asarray(rows.alpha)
    parts = parts_of(start, rho)
    theta, w_local, pi, _, w = parts
    value = lagrangian(problem, parts, lam=lam, rho=rho, alpha=alpha)
    slack = alpha * lam / 4
    gap = theta - w
    residual = problem.gradients(theta) + lam * gap
    expected = {
        "lagrangian": value,
        "lyapunov": value + (0.9 / (4 * slack * 0.1)) @ eps,
        "objective": alpha @ (problem.losses(theta) + lam / 2 * (gap**2).sum(axis=1)),
        "residual_theta": np.linalg.norm(residual, axis=1).max(),
        "residual_w": np.linalg.norm(w - alpha @ theta),
        "dual_sum": np.linalg.norm(pi.sum(axis=0)),
        "consensus_distance": np.sqrt(((w_local - w) ** 2).sum(axis=1).mean()),
    }
    assert found.keys() == expected.keys()
    for name, number in expected.items():
        np.testing.assert_allclose(found[name], number, rtol=1e-12, err_msg=name)


@pytest.mark.parametrize("cadence", [wide("round"), "epoch"])
@pytest.mark.parametrize("center", ["local", *OTHERS])
def test_scaled_equals_unscaled(center, cadence):
    # T4, and P4 along the run; alpha is not uniform and half of the clients take part.
    problem, lam, rho = problems.waves(), 0.7, 0.3
    alpha = problem.alpha("examples")
    whole = process(
        fp.Flame(
            lam=lam,
            rho=rho,
            center=center,
            dual_update=cadence,
            weighting="examples",
            local=problems.full_gradient_steps(),
        ),
        3,
    )
    states, infos, values = problems.run(whole, problem, 20, diagnostics=True)
    rounds = independent(
        problem,
        states.server["theta"][0],
        infos.cohort,
        lam=lam,
        rho=rho,
        alpha=alpha,
        center=center,
        cadence=cadence,
    )
    for number, expected in enumerate(rounds, 1):
        found = (x[number] for x in parts_of(states, rho))
        for one, other in zip(found, expected, strict=True):
            np.testing.assert_allclose(one, other, **CLOSE)
        np.testing.assert_allclose(
            values["lagrangian"][number],
            lagrangian(problem, expected, lam=lam, rho=rho, alpha=alpha),
            **CLOSE,
        )
    _, w_local, _, _, w = parts_of(states, rho)
    distances = np.square(w_local - w[:, None]).sum(axis=2)
    gap = values["lagrangian"] - values["objective"]
    np.testing.assert_allclose(gap, distances @ ((rho - lam * alpha) / 2), **CLOSE)


@pytest.mark.wide  # rho = kappa lam / N is one number for all clients of any alpha
def test_kappa_is_rho_over_the_mean_weight():
    problem, lam, kappa = problems.waves(), 0.7, 2.5
    rho = kappa * lam / 6
    found = []
    for penalty in ({"rho": rho}, {"kappa": kappa}):
        algorithm = fp.Flame(
            lam=lam,
            weighting="examples",
            local=problems.full_gradient_steps(),
            **penalty,
        )
        whole = process(algorithm)
        states, _, values = problems.run(whole, problem, 20, diagnostics=True)
        found.append((*parts_of(states, rho), values))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, **CLOSE), *found)


def test_kappa_1_is_the_default_and_makes_the_lagrangian_the_objective():
    problem = problems.waves()
    whole = process(fp.Flame(local=problems.full_gradient_steps()))
    states, _, values = problems.run(whole, problem, 10, diagnostics=True)
    np.testing.assert_allclose(values["lagrangian"], values["objective"], **CLOSE)
    np.testing.assert_allclose(told(states), states.clients.theta["theta"], **CLOSE)


def test_the_incremental_mean_is_recomputed_from_the_cache():
    # An error put into the running mean stays exactly until the round that recomputes.
    problem = problems.waves()
    whole = process(fp.Flame(kappa=2.0, local=problems.full_gradient_steps(steps=1)), 2)
    every = mailbox.RECOMPUTE_EVERY
    state = problems.first_state(whole, problem)
    wrong = jax.tree.map(lambda leaf: leaf + 1, state.memory["mean"])
    state = dataclasses.replace(
        state.with_memory(mean=wrong), round=jnp.asarray(every - 3, jnp.int32)
    )
    states, _, _ = problems.run(whole, problem, 5, state=state)
    error = states.server["theta"] - told(states).mean(axis=1)
    np.testing.assert_allclose(error[[1, 2]], 1, **CLOSE)
    np.testing.assert_allclose(error[3:], 0, atol=1e-12)


@pytest.mark.wide
def test_the_schedule_of_eps_belongs_to_the_client_and_is_met():
    problem, lam = problems.waves(), 0.7
    whole = process(
        fp.Flame(
            lam=lam,
            kappa=2.0,
            eps_decay=0.8,
            weighting="examples",
            local=fp.local.ToTolerance(learning_rate=0.5, tolerance=0.0),
        ),
        2,
    )
    states, infos, _ = problems.run(whole, problem, 25)
    alpha = problem.alpha("examples")
    theta, center = states.clients.theta["theta"], states.clients.w_local["theta"]
    squares = np.square(problem.gradients(theta[0])).sum(axis=1)
    times = np.zeros((26, 6))
    for number, cohort in enumerate(infos.cohort, 1):
        times[number] = times[number - 1]
        times[number, cohort] += 1
    eps = alpha**2 * squares * 0.8**times
    np.testing.assert_allclose(states.clients.eps, eps, rtol=1e-12)
    some_work = 0
    for number, cohort in enumerate(infos.cohort, 1):
        gap = theta[number] - center[number - 1]
        residual = problem.gradients(theta[number]) + lam * gap
        size = np.square(alpha[:, None] * residual).sum(axis=1)
        assert (size <= eps[number] * (1 + 1e-12))[cohort].all()
        some_work += (infos.client["gradient_evaluations"][number - 1] > 9).sum()
    assert some_work > 5
    assert not infos.client["unconverged"].any()


@pytest.mark.wide
def test_a_capped_solve_is_reported():
    problem = problems.waves()
    local = fp.local.ToTolerance(learning_rate=0.01, tolerance=1e-12, max_steps=2)
    whole = process(fp.Flame(eps_decay=0.0, local=local))
    result = fp.simulate(
        jax.random.key(0), whole, problem.model, problem.federation, 3, progress=False
    )
    np.testing.assert_array_equal(result.groups[0].per_round["unconverged"], [[6] * 3])


def test_official_is_the_release():
    official = fp.Flame.official()
    assert (official.center, official.dual_update) == ("received", "epoch")
    solver = official.local
    assert (solver.learning_rate, solver.momentum, solver.weight_decay) == (
        0.01,
        0.5,
        0.01,
    )
    assert (solver.batch_size, solver.epochs, official.lam) == (100, 1, 1.0)
    assert fp.Flame.official(lam=3.0, center="joint").center == "joint"

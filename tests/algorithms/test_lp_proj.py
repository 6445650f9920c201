"""Lp-Proj in both forms against NumPy, FLAME in rotated coordinates, and optima.

Tolerances of 1e-12 are some hundred roundings of numbers of order one.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_pfl as fp
from fedjax_pfl.algorithms import lp_proj
from fedjax_pfl.core import byte_counts
from tests import problems
from tests.lanes import wide

CLOSE = {"rtol": 1e-12, "atol": 1e-12}
KEY = jax.random.key(3, impl="threefry2x32")


def process(size=None, **fields):
    fields = {"dim": 2, "batch_size": problems.FULL_BATCH} | fields
    return fp.FederatedProcess(
        algorithm=fp.LpProj(**fields),
        participation=fp.AllClients() if size is None else fp.UniformCohort(size=size),
    )


def projection_of(states):
    """P `[dim, d]`, which does not change."""
    found = states.server.projection["theta"]
    assert (found == found[0]).all()
    return found[0]


def optimum(problem, rows, lam, decay):
    """`(theta [N, d], w [dim])` from all optimality conditions as one linear system."""
    (count, d), dim = problem.estimates.shape, len(rows)
    system = np.zeros((count * d + dim, count * d + dim))
    right = np.zeros(count * d + dim)
    mean = slice(count * d, None)
    for i in range(count):
        own = slice(i * d, (i + 1) * d)
        own_curvature = problem.curvature[i]
        system[own, own] = own_curvature + lam * rows.T @ rows + decay * np.eye(d)
        system[own, mean] = -lam * rows.T
        system[mean, own] = -rows / count
        right[own] = own_curvature @ problem.estimates[i]
    system[mean, mean] = np.eye(dim)
    found = np.linalg.solve(system, right)
    return found[: count * d].reshape(count, d), found[mean]


@pytest.mark.parametrize(("norm", "clip"), [(2, 0.13), wide(1, 0.13), wide(2, None)])
def test_original_rounds_are_the_equations_in_numpy(norm, clip):
    problem, lam, eta, rate, beta, decay = problems.waves(), 0.8, 0.3, 0.2, 0.7, 0.05
    whole = process(
        3,
        lam=lam,
        learning_rate=eta,
        inner_learning_rate=rate,
        server_learning_rate=beta,
        weight_decay=decay,
        clip_norm=clip,
        norm=norm,
        num_steps=2,
        inner_steps=3,
    )
    states, infos, _ = problems.run(whole, problem, 8)
    rows, theta = projection_of(states), np.copy(states.clients.theta["theta"][0])
    w, clipped = np.zeros(2), 0

    def slope(gap):
        return np.sign(gap) * np.abs(gap) ** (norm - 1)

    for number, cohort in enumerate(infos.cohort):
        np.testing.assert_allclose(states.server.w[number], w, **CLOSE)
        sent = []
        for i in cohort:
            own, point = w, theta[i]
            for _ in range(2):
                for _ in range(3):
                    gradient = problem.gradient(i, point)
                    length = np.linalg.norm(gradient)
                    if clip is not None and length > clip:
                        gradient, clipped = clip * gradient / length, clipped + 1
                    pull = -rows.T @ slope(own - rows @ point)
                    point = point - rate * (gradient + lam * pull + decay * point)
                own = own - eta * lam * slope(own - rows @ point)
            theta[i] = point
            sent.append(own)
        w = (1 - beta) * w + beta * np.mean(sent, axis=0)
        np.testing.assert_allclose(
            states.clients.theta["theta"][number + 1], theta, **CLOSE
        )
    assert (clip is None) == (clipped == 0)
    assert clipped < infos.cohort.size * 6
    counts = np.asarray(problem.federation.train.num_examples)
    work = infos.client["gradient_evaluations"]
    np.testing.assert_array_equal(work, 6 * counts[infos.cohort])
    for words in (infos.bytes_up, infos.bytes_down):
        np.testing.assert_array_equal(byte_counts.total(words), 3 * 2 * 8)


def test_admm_rounds_are_unscaled_flames_with_projections():
    # From random copies and duals: P1 and P2 need no special start and no exact solve.
    problem, lam, kappa = problems.waves(), 0.8, 1.7
    rho = kappa * lam / 6
    whole = process(
        3, form="admm", lam=lam, kappa=kappa, local=problems.full_gradient_steps()
    )
    state = problems.first_state(whole, problem)
    rng = np.random.default_rng(0)
    w_local, p = (jnp.asarray(x) for x in rng.normal(size=(2, 6, 2)))
    clients = dataclasses.replace(state.clients, w_local=w_local, p=p)
    mean = (w_local + p).mean(axis=0)
    server = dataclasses.replace(state.server, w=mean)
    state = dataclasses.replace(
        state.with_rows(messages=w_local + p).with_memory(mean=mean),
        clients=clients,
        server=server,
    )
    states, infos, _ = problems.run(whole, problem, 10, state=state)
    rows = projection_of(states)
    theta = np.copy(states.clients.theta["theta"][0])
    w_local, pi, u = np.array(w_local), rho * np.array(p), np.array(w_local + p)
    a = lam / 6
    for number, cohort in enumerate(infos.cohort, 1):
        w, before = u.mean(axis=0), np.copy(pi)
        for i in cohort:
            for _ in range(3):
                pull = rows.T @ (rows @ theta[i] - w_local[i])
                theta[i] -= 0.3 * (problem.gradient(i, theta[i]) + lam * pull)
            w_local[i] = (a * rows @ theta[i] + rho * w - pi[i]) / (a + rho)
            pi[i] += rho * (w_local[i] - w)
            u[i] = w_local[i] + pi[i] / rho
        found = states.clients
        ours = (
            found.theta["theta"],
            found.w_local,
            rho * found.p,
            states.rows["messages"],
        )
        for one, other in zip(ours, (theta, w_local, pi, u), strict=True):
            np.testing.assert_allclose(one[number], other, **CLOSE)
        np.testing.assert_allclose(states.server.w[number], u.mean(axis=0), **CLOSE)
        projected = ours[0][number] @ rows.T
        p1 = a * (projected - ours[1][number])
        np.testing.assert_allclose(ours[2][number][cohort], p1[cohort], **CLOSE)
        forms = [
            2 * ours[1][number] - w + before / rho,
            (2 * a * projected + (rho - a) * (w - before / rho)) / (a + rho),
        ]
        for form in forms:
            np.testing.assert_allclose(ours[3][number][cohort], form[cohort], **CLOSE)
    absent = np.setdiff1d(np.arange(6), infos.cohort[0])
    for leaf in jax.tree.leaves((states.clients, states.rows["messages"])):
        np.testing.assert_array_equal(leaf[1][absent], leaf[0][absent])


@pytest.mark.wide
def test_a_rotation_is_flame():
    problem, lam, kappa = problems.waves(), 0.8, 2.0
    local = fp.SGD(learning_rate=0.2, epochs=2, batch_size=2)
    flame = fp.FederatedProcess(
        algorithm=fp.Flame(lam=lam, kappa=kappa, local=local),
        participation=fp.UniformCohort(size=3),
    )
    theirs, _, _ = problems.run(flame, problem, 15)
    whole = process(
        3, form="admm", lam=lam, kappa=kappa, dim=3, orthogonal=True, local=local
    )
    ours, _, _ = problems.run(whole, problem, 15)
    sent = flame.messages_of(theirs)
    rotation = projection_of(ours)
    assert np.abs(rotation - np.diag(np.diag(rotation))).max() > 0.1
    pairs = [
        (ours.clients.theta["theta"], theirs.clients.theta["theta"]),
        (ours.clients.w_local @ rotation, theirs.clients.w_local["theta"]),
        (ours.clients.p @ rotation, theirs.clients.p["theta"]),
        (ours.rows["messages"] @ rotation, sent["theta"]),
        (ours.server.w @ rotation, theirs.server["theta"]),
    ]
    for one, other in pairs:
        np.testing.assert_allclose(one, other, **CLOSE)


@pytest.mark.parametrize("form", ["original", wide("admm")])
def test_the_fixed_point_solves_the_problem(form):
    problem, lam, decay = problems.regressions(), 1.5, 0.02
    rate = 1 / (problem.smoothness + 3 * lam)  # of rows of length 1, |P|^2 < 2
    fields = {
        "learning_rate": 0.5,
        "inner_learning_rate": rate,
        "weight_decay": decay,
        "clip_norm": None,
        "num_steps": 1,
        "inner_steps": 10,
    }
    if form == "admm":
        solver = problems.full_gradient_steps(10, rate, weight_decay=decay)
        fields = {"form": "admm", "kappa": 2.0, "local": solver}
    states, _, _ = problems.run(process(lam=lam, **fields), problem, 600)
    rows = projection_of(states)
    theta, w = optimum(problem, rows, lam, decay)
    np.testing.assert_allclose(states.server.w[-1], w, atol=1e-9)
    np.testing.assert_allclose(
        states.clients.theta["theta"][-1], theta, rtol=0, atol=1e-9
    )
    if form == "admm":
        np.testing.assert_allclose(states.clients.w_local[-1], np.tile(w, (5, 1)))
    assert np.abs(theta @ rows.T - w).max() > 1e-2


@pytest.mark.parametrize("norm", [1, 2])
def test_gradients_of_the_coupling(norm):
    rng = np.random.default_rng(0)
    theta = {"a": rng.normal(size=(2, 3)), "b": rng.normal(size=4)}
    rows = lp_proj.draw_projection(KEY, theta, 3, orthogonal=False)
    w = rng.normal(size=3)
    flat = np.concatenate([np.reshape(rows["a"], (3, 6)), rows["b"]], axis=1)
    gap = w - flat @ np.concatenate([theta["a"].ravel(), theta["b"]])
    slope = np.sign(gap) * np.abs(gap) ** (norm - 1)
    algorithm = fp.LpProj(norm=norm)
    value = algorithm.coupling(rows, theta, w)
    np.testing.assert_allclose(value, np.sum(np.abs(gap) ** norm) / norm, **CLOSE)
    by_theta, by_w = jax.grad(algorithm.coupling, argnums=(1, 2))(rows, theta, w)
    found = np.concatenate([by_theta["a"].ravel(), by_theta["b"]])
    np.testing.assert_allclose(found, -flat.T @ slope, **CLOSE)
    np.testing.assert_allclose(by_w, slope, **CLOSE)


@pytest.mark.parametrize("orthogonal", [False, True])
def test_rows_are_random_directions_of_length_1(orthogonal):
    params = {"a": jnp.zeros((20, 30)), "b": jnp.zeros(400)}
    rows = lp_proj.draw_projection(KEY, params, 50, orthogonal)
    assert jax.tree.map(jnp.shape, rows) == {"a": (50, 20, 30), "b": (50, 400)}
    flat = np.concatenate([np.reshape(rows["a"], (50, -1)), rows["b"]], axis=1)
    gram = flat @ flat.T
    np.testing.assert_allclose(np.diag(gram), 1, **CLOSE)
    others = gram[np.triu_indices(50, 1)]
    if orthogonal:
        np.testing.assert_allclose(others, 0, atol=1e-12)
    else:  # inner products of directions in 1000 dimensions: standard deviation 0.0316
        assert 0.028 < others.std() < 0.036
    # All 50,000 numbers have variance 1/1000: each leaf's share follows its size.
    assert np.square(flat[:, :600]).sum() == pytest.approx(30, abs=1.0)
    other = lp_proj.draw_projection(jax.random.key(4), params, 50, orthogonal)
    assert np.abs(np.asarray(other["b"]) - rows["b"]).max() > 0.01


def test_only_the_personal_model_predicts():
    problem, theta = problems.waves(), np.array([0.3, -1.0, 0.7])
    found = fp.LpProj().predictors(
        fp.ClientView(key=KEY, round=0, data=problem.federation.train.pool()),
        None,
        lp_proj.LpProjClient(theta={"theta": jnp.asarray(theta)}),
        problem.model,
    )
    assert list(found) == ["personal"]
    x = np.random.default_rng(0).normal(size=(5, 3))
    np.testing.assert_allclose(found["personal"](jnp.asarray(x)), x @ theta, **CLOSE)


def test_a_projection_larger_than_the_model_is_refused():
    problem = problems.waves()
    with pytest.raises(fp.InputError, match="at most the model's 3 numbers, got 4."):
        fp.simulate(
            KEY, process(dim=4), problem.model, problem.federation, 1, progress=False
        )

"""FedPG: rounds in NumPy, what descends, what settles, and what personal models are."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_pfl as fp
from fedjax_pfl import algorithms, attacks
from fedjax_pfl.algorithms import common_descent
from tests import bowls, problems
from tests.lanes import wide
from tests.setups import process, with_malicious

CLOSE = {"rtol": 1e-9, "atol": 1e-11}


def fedpg(rate=0.1, *, decay=None, epochs=1, **fields):
    solver = fp.SGD(learning_rate=rate, decay=decay)
    if fields.get("gradient") == "epochs":
        solver = problems.full_gradient_steps(epochs, rate, decay=decay)
    return algorithms.FedPG(local=solver, **fields)


def started(whole, problem, w):
    """The first state with another w."""
    state = problems.first_state(whole, problem)
    server = dataclasses.replace(state.server, model={"theta": jnp.asarray(w)})
    return dataclasses.replace(state, server=server)


def models_of(states):
    return states.server.model["theta"]


def v3():
    return bowls.bowls(
        [1, 2, 3], [[2, 0, 0, 0], [0, 1, 0, 0], [0, 0, -1, 1]], least=0.5
    )


V3_START = np.array([0.5, -0.5, 1, 0.5])


@pytest.mark.parametrize(
    ("fair_from", "ds", "sigma", "step", "trials"),
    [
        ("raw", (0.16903357, 0.33806714, -2.93940930, 0.69808048), 1.53840853, 0.5, 2),
        wide(
            "scaled",
            (-0.31239256, -0.62478512, -2.61590547, 1.39262275),
            4.07087728,
            0.125,
            4,
        ),
    ],
)
def test_v3_a_round_with_the_step_search(fair_from, ds, sigma, step, trials):
    search = common_descent.Armijo()
    whole = process(fedpg(0.5, fair_from=fair_from, search=search))
    problem = v3()
    states, infos, _ = problems.run(
        whole, problem, 1, state=started(whole, problem, V3_START)
    )
    report = infos.server
    np.testing.assert_allclose(infos.client["loss"][0], (2.375, 4.25, 7.625))
    np.testing.assert_allclose(report["sigma"][0], sigma, rtol=1e-8)
    assert (report["step"][0], report["trials"][0]) == (step, trials)
    assert report["rule"][0] == 1
    assert report["improved"][0] == 3
    moved = (models_of(states)[1] - V3_START) / step
    np.testing.assert_allclose(moved, ds, atol=1e-8)


def minimum_norm(rows):
    """Weights of the shortest combination of few rows, by trying all supports."""
    best = np.inf, None
    for support in range(1, 2 ** len(rows)):
        chosen = [j for j in range(len(rows)) if support >> j & 1]
        part = rows[chosen]
        system = np.ones((len(chosen) + 1,) * 2)
        system[:-1, :-1], system[-1, -1] = part @ part.T, 0
        found = np.linalg.lstsq(system, np.r_[np.zeros(len(chosen)), 1])[0][:-1]
        if (found > -1e-12).all() and np.linalg.norm(found @ part) < best[0]:
            weights = np.zeros(len(rows))
            weights[chosen] = found
            best = np.linalg.norm(found @ part), weights
    return best[1]


def test_rounds_are_the_equations_in_numpy_with_absent_clients():
    # Six clients, two per round: those heard within the last tau rounds are rows.
    problem, rate, decay = bowls.conflicting(6, 12), 0.05, 0.9
    whole = process(fedpg(rate, decay=decay, guard=0.0), 2)
    states, infos, _ = problems.run(whole, problem, 7)
    w, last = np.zeros(12), {}
    used_rows = []
    for number in range(7):
        cohort = infos.cohort[number]
        window = len(last) // 2 if len(last) > 2 else 0
        old = [j for j in last if j not in cohort and number - last[j][0] <= window]
        losses = np.array([problem.loss(i, w) for i in cohort])
        own = np.stack([problem.gradient(i, w) for i in cohort])
        mu = np.linalg.norm(own, axis=1).mean()  # of two, also their median
        gradients = np.stack([*own, *(last[j][1] for j in sorted(old))])
        rows = mu * gradients / np.linalg.norm(gradients, axis=1)[:, None]
        size = np.linalg.norm(losses)
        slopes = (losses.sum() * losses / size**2 - 1) / (np.sqrt(2) * size)
        fair = slopes @ rows[:2]
        rows = np.concatenate([rows, mu * fair[None] / np.linalg.norm(fair)])
        d = -minimum_norm(rows) @ rows
        sigma = np.linalg.norm(rows[:2].mean(axis=0)) / np.linalg.norm(d)
        w = w + rate * decay**number * sigma * d
        np.testing.assert_allclose(models_of(states)[number + 1], w, **CLOSE)
        for i, gradient in zip(cohort, own, strict=True):
            last[i] = number, gradient
        kept = states.rows["messages"]["theta"][number + 1]
        for i, (_, gradient) in last.items():
            np.testing.assert_allclose(kept[i], gradient, **CLOSE)
        assert infos.server["history_rows"][number] == len(old)
        used_rows.append(len(old))
        stayed = [i for i in range(6) if i not in cohort]
        theta = states.clients.theta["theta"]
        np.testing.assert_array_equal(theta[number + 1][stayed], theta[number][stayed])
    assert max(used_rows) > 2


def losses_along(problem, path):
    count = len(problem.estimates)
    return np.stack([[problem.loss(i, w) for i in range(count)] for w in path])


WIDELY = [0, wide(1)]


@pytest.mark.parametrize("fair_row", [wide(False), True])
@pytest.mark.parametrize("seed", WIDELY)
def test_p3_p4_p5_without_rescaling_all_clients_descend_linearly(fair_row, seed):
    # The unrescaled step is sigma times shorter: a rate of 1 / (Lip sigma).
    problem = bowls.conflicting(seed=seed)
    alg = fedpg(1.0, fair_row=fair_row, guard=0.0)

    def step(w, _):
        gradients = jnp.einsum(
            "nij,nj->ni", jnp.asarray(problem.curvature), w[None] - problem.estimates
        )
        losses = 1 + 0.5 * jnp.einsum(
            "ni,ni->n", gradients, w[None] - problem.estimates
        )
        fair = common_descent.fairness(losses)
        rows = common_descent.make_rows(
            {"w": gradients}, jnp.ones(5, bool), fair, fair_row=alg.fair_row
        )
        found = common_descent.common_descent(rows, guard=0.0)
        # Rows have norm mu, gradients n_i: the step that is safe for all of them.
        rate = jnp.minimum(1, (rows.norms[:5] / rows.mu).min()) / problem.smoothness
        moved = w + rate / found.sigma * found.vector["w"]
        return moved, (moved, found.norm / rows.mu)

    start = jnp.zeros(10)
    _, (path, norms) = jax.jit(lambda w: jax.lax.scan(step, w, None, length=600))(start)
    path = np.concatenate([start[None], path])
    values = losses_along(problem, path)
    assert (np.diff(values, axis=0) <= 1e-12).all()
    assert norms[-1] < 1e-6
    away = np.linalg.norm(path - path[-1], axis=1)
    far = away[1:] > 1e-5 * away[0]
    assert (away[1:][far] / away[:-1][far]).max() < 1  # nearer in every step


@pytest.mark.wide
@pytest.mark.parametrize("s", [1, wide(5)])
@pytest.mark.parametrize("seed", WIDELY)
def test_p6_with_the_search_all_losses_fall_and_the_iterates_settle(s, seed):
    problem = bowls.conflicting(seed=seed)
    search = common_descent.Armijo(doublings=s)
    states, infos, _ = problems.run(process(fedpg(search=search)), problem, 40)
    values = losses_along(problem, models_of(states))
    fair = -values.sum(axis=1) / (np.linalg.norm(values, axis=1) * np.sqrt(5))
    by_armijo = infos.server["rule"] == 1
    assert by_armijo.mean() > 0.6
    assert (np.diff(values, axis=0)[by_armijo] <= 1e-12).all()
    kept = by_armijo & infos.server["fair_row"] & ~infos.server["guarded"]
    assert (np.diff(fair)[kept] <= 1e-12).all()
    assert infos.server["descent_norm"][-1] < 1e-6


@pytest.mark.wide
def test_p7_the_largest_safe_step_raises_no_clients_loss():
    problem = bowls.conflicting(seed=3)
    whole = process(fedpg(1.0))
    path, w = [], np.zeros(10)
    state = started(whole, problem, w)
    step = jax.jit(lambda state: whole.round(state, problem.model, problem.federation))
    for _ in range(60):
        gradients = problem.gradients(np.stack([w] * 5))
        sizes = np.linalg.norm(gradients, axis=1)
        _, info = step(state)
        sigma = float(info.server["sigma"])
        safe = 2 * sizes.min() / np.median(sizes) / (sigma * problem.smoothness)
        state = dataclasses.replace(state, round=jnp.zeros((), jnp.int32))
        moved = step(state)[0].server.model["theta"]  # with a step of 1
        new = w + safe * (np.asarray(moved) - w)
        path.append(w)
        w = new
        state = started(whole, problem, w)
    assert (np.diff(losses_along(problem, path), axis=0) <= 1e-12).all()


@pytest.mark.wide
def test_with_a_constant_step_the_iterates_hover_in_proportion_to_it():
    problem = bowls.conflicting(seed=1)
    ends = []
    for rate in (0.1, 0.02, 0.004):
        _, infos, _ = problems.run(process(fedpg(rate)), problem, 400)
        ends.append(np.median(infos.server["descent_norm"][-100:]))
    assert ends[0] > 2 * ends[1] > 4 * ends[2] > 0


@pytest.mark.wide
def test_v2_the_guard_moves_on_where_all_could_improve():
    # Points a +- v with |v|^2 = 2, so that every loss is 1 at its minimizer.
    problem = bowls.bowls([1, 1, 1], [[1, 0], [0, 1], [-1, -1]])
    for guard, moves in ((0.0, False), (0.01, True)):
        whole = process(fedpg(0.1, guard=guard))
        state = started(whole, problem, [2.0, 1.0])
        states, infos, _ = problems.run(whole, problem, 1, state=state)
        np.testing.assert_allclose(infos.client["loss"][0], (2, 3, 7.5))
        assert infos.server["stationary"][0] != moves
        assert infos.server["guarded"][0] == moves
        fell = np.diff(losses_along(problem, models_of(states)), axis=0) < 0
        assert (
            fell.all() if moves else (states.server.model["theta"][0] == [2, 1]).all()
        )


@pytest.mark.wide
def test_at_full_participation_history_changes_nothing():
    problem = bowls.conflicting()
    paths = [
        models_of(problems.run(process(fedpg(history=kind)), problem, 5)[0])
        for kind in ("window", "last_round", "none")
    ]
    np.testing.assert_allclose(paths[0], paths[1], **CLOSE)
    np.testing.assert_allclose(paths[0], paths[2], **CLOSE)


@pytest.mark.wide
def test_epochs_at_gamma_one_leave_the_local_models():
    problem = bowls.conflicting()
    algorithm = fedpg(0.02, epochs=4, gradient="epochs", gamma=1.0)
    states, infos, _ = problems.run(process(algorithm), problem, 3)
    for number in range(3):
        w = models_of(states)[number]
        for i in range(5):
            local = problem.descend(i, w, w, 0.0, 4, 0.02)
            theta = states.clients.theta["theta"][number + 1][i]
            np.testing.assert_allclose(theta, local, **CLOSE)
    assert (infos.client["gradient_evaluations"] == 4 * 11).all()


@pytest.mark.wide
def test_protected_models_descend_for_themselves_and_hurt_nobody():
    problem = bowls.conflicting(4, 20)
    states, _, _ = problems.run(process(fedpg(1e-5)), problem, 2)
    for number in range(2):
        w = models_of(states)[number]
        before = problem.losses(np.stack([w] * 4))
        for i in range(4):
            theta = states.clients.theta["theta"][number + 1][i]
            change = problem.losses(np.stack([theta] * 4)) - before
            assert change[i] < 0
            # First order is level at most; the rest is of the square of the step.
            assert (np.delete(change, i) < 1e-3 * -change[i]).all()


@pytest.mark.wide
def test_where_no_direction_is_protected_the_personal_model_is_the_global_one():
    problem = bowls.bowls([1, 1], [[1, 0], [-1, 0]])
    states, infos, _ = problems.run(process(fedpg()), problem, 1)
    assert (infos.client["protected_norm"] == 0).all()
    np.testing.assert_array_equal(states.clients.theta["theta"][1], 0)


@pytest.mark.wide
def test_fresh_personal_models_are_made_of_everybodys_gradients_at_the_latest_model():
    problem = bowls.conflicting()
    stored = process(fedpg(0.02, history="none"))
    state = problems.first_state(stored, problem)
    step = jax.jit(lambda state: stored.round(state, problem.model, problem.federation))
    for _ in range(2):
        state, _ = step(state)
    fresh = dataclasses.replace(stored.algorithm, personal="refresh")
    found = jax.jit(
        lambda state: fresh.before_evaluation(state, problem.model, problem.federation)
    )(state)
    following, _ = step(state)  # with everybody it stores what is fresh now
    np.testing.assert_allclose(
        found.clients.theta["theta"], following.clients.theta["theta"], **CLOSE
    )
    kept = stored.algorithm.before_evaluation(state, problem.model, problem.federation)
    assert kept is state


@pytest.mark.wide
@pytest.mark.parametrize("scale", ["median", wide("mean")])
def test_a_client_that_multiplies_its_gradient_owns_the_mean_not_the_median(scale):
    problem = bowls.conflicting()
    attacked = with_malicious(problem, 2)
    paths = [
        models_of(problems.run(whole, attacked, 20)[0])
        for whole in (
            process(fedpg(0.02, scale=scale)),
            process(fedpg(0.02, scale=scale), attack=attacks.Scaling(factor=100.0)),
        )
    ]
    clean, dirty = (np.linalg.norm(np.diff(p, axis=0), axis=1).mean() for p in paths)
    if scale == "median":
        assert dirty < 2 * clean
    else:
        assert dirty > 10 * clean


def test_equal_losses_and_losses_below_zero_leave_the_fairness_row_out_aloud():
    equal = bowls.bowls([1, 1], [[1, 0], [0, 1]])
    _, infos, _ = problems.run(process(fedpg()), equal, 1)
    assert not infos.server["fair_row"][0]
    zero = bowls.bowls([1, 1], [[0, 0], [0, 1]], least=0.0)  # at its minimizer
    states, infos, _ = problems.run(process(fedpg()), zero, 1)
    assert not infos.server["fair_row"][0]
    assert np.isfinite(models_of(states)).all()


def test_a_cohort_of_one_is_warned_of():
    with pytest.warns(UserWarning, match="one client per round"):
        process(fedpg(history="none"), 1).check_cohort(1, 5)
    process(fedpg(), 1).check_cohort(1, 5)  # with history it is fine


@pytest.mark.wide
def test_a_cohort_of_one_follows_its_gradient():
    problem = bowls.conflicting()
    alone = process(fedpg(0.01, history="none"), 1)
    states, infos, _ = problems.run(alone, problem, 2)
    i = infos.cohort[0, 0]
    expected = -0.01 * problem.gradient(i, np.zeros(10))
    np.testing.assert_allclose(models_of(states)[1], expected, **CLOSE)


@pytest.mark.wide
def test_diagnostics_tell_pareto_points_from_points_with_a_fairness_row():
    problem = bowls.bowls([1, 1, 1], [[1, 0], [0, 1], [-1, -1]])
    whole = process(fedpg())
    measure = jax.jit(
        lambda state: whole.algorithm.diagnostics(
            state, problem.model, problem.federation
        )
    )
    for w, pareto, fair in (([2.0, 1.0], False, True), ([0.0, 0.0], True, True)):
        found = measure(started(whole, problem, w))
        assert (found["pareto_norm"] < 1e-6) == pareto
        assert (found["pareto_norm_fair"] < 1e-6) == fair

"""Propositions 1-4, Theorems 1-2 and Corollary 1 of Fed+, and what breaks them."""

import dataclasses
import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize

import fedjax_pfl as fp
from fedjax_pfl.algorithms import phi
from tests import problems
from tests.algorithms import fedplus_oracles as oracles
from tests.lanes import wide
from tests.setups import process

PHIS = {
    "sq": phi.Squared(),
    "l2": phi.L2(),
    "l1": phi.L1(),
    "indicator": phi.Indicator(),
}
WIDELY = [*map(wide, ("sq", "l1", "indicator"))]
ALPHA, RHO = 0.6, 0.5
TIGHT = {
    "l2": fp.GeometricMedian(
        rho=RHO, tolerance=1e-13, start="reference", max_iterations=1000
    )
}


@functools.cache
def regressions():
    """Seven clients with Hessians of their own; the last is an outlier."""
    problem = problems.regressions(num_clients=7)
    train = problem.federation.train
    mine = np.asarray(train.index[6, : int(train.num_examples[6])])
    y = np.asarray(train.y).copy()
    y[mine] += np.asarray(train.x)[mine] @ np.array([8.0, -6.0, 5.0])
    federation = dataclasses.replace(
        problem.federation, train=dataclasses.replace(train, y=jnp.asarray(y))
    )
    estimates = problem.estimates.copy()
    estimates[6] += [8.0, -6.0, 5.0]

    def loss(i, t):
        away = t - estimates[i]
        rest = problem.loss(i, problem.estimates[i])  # the residual of least squares
        return 0.5 * away @ problem.curvature[i] @ away + rest

    return dataclasses.replace(
        problem,
        federation=federation,
        estimates=estimates,
        loss=loss,
        gradient=lambda i, t: problem.curvature[i] @ (t - estimates[i]),
    )


@functools.cache
def fixed_point(name, rho=RHO, rounds=200):
    """`w [K, d]`, `z [K, d]` and `c` after many rounds of exact local solves."""
    problem = regressions()
    solver = fp.local.ToTolerance(
        learning_rate=1 / (problem.smoothness + ALPHA), tolerance=1e-28, max_steps=4000
    )
    choice = phi.Zero() if name == "zero" else PHIS[name]
    algorithm = fp.FedPlus(
        phi=choice, alpha=ALPHA, rho=rho, aggregate_over="all", local=solver
    )
    whole = process(algorithm, aggregator=TIGHT.get(name))
    states, _, _ = problems.run(whole, problem, rounds)
    w, c = states.clients["theta"][-1], states.server.c["theta"][-1]
    z = np.stack([c + oracles.prox(name, row - c, rho) for row in w])
    return w, z, c


def envelope_gradients(problem, z):
    """Of `ft_k(z) = min_w f_k(w) + alpha/2 |w - z|^2`: gradients `[K, d]`, values."""
    eye = np.eye(z.shape[1])
    pairs = zip(problem.curvature, problem.estimates, z, strict=True)
    w = np.stack(
        [np.linalg.solve(a + ALPHA * eye, a @ b + ALPHA * p) for a, b, p in pairs]
    )
    return ALPHA * (z - w), problem.losses(w) + ALPHA / 2 * ((w - z) ** 2).sum(axis=1)


@pytest.mark.parametrize("name", ["l2", *WIDELY])
def test_theorem_1_holds_with_gradients_and_not_as_printed(name):
    w, z, c = fixed_point(name)
    slopes, values = envelope_gradients(regressions(), z)
    np.testing.assert_allclose(slopes.mean(axis=0), 0, atol=1e-10)
    np.testing.assert_allclose(w, z - slopes / ALPHA, atol=1e-10)
    np.testing.assert_allclose(
        c, oracles.center(name, w, np.full(7, 1 / 7), RHO), atol=1e-10
    )
    assert values.mean() > 0.1  # which the paper prints as 0
    assert np.abs(slopes).max() > 0.1


@pytest.mark.parametrize("name", ["l2", *WIDELY])
def test_the_fixed_point_minimizes_the_objective(name):
    """All of the gradient of F vanishes, and no generic optimizer finds less."""
    problem = regressions()
    w, z, _ = fixed_point(name)
    np.testing.assert_allclose(problem.gradients(w) + ALPHA * (w - z), 0, atol=1e-10)
    best = oracles.objective(problem, w, name, ALPHA, RHO)

    def objective(flat):
        return oracles.objective(problem, flat.reshape(w.shape), name, ALPHA, RHO)

    def slope(flat):  # the derivative through the center vanishes where it is optimal
        rows = flat.reshape(w.shape)
        c = oracles.center(name, rows, np.full(7, 1 / 7), RHO)
        anchors = np.stack([c + oracles.prox(name, row - c, RHO) for row in rows])
        return ((problem.gradients(rows) + ALPHA * (rows - anchors)) / 7).ravel()

    found = scipy.optimize.minimize(
        *(objective, problem.estimates.ravel()),
        **{"jac": slope, "method": "BFGS", "options": {"gtol": 1e-9}},
    )
    np.testing.assert_allclose(found.fun, best, atol=1e-10)


@pytest.mark.wide
def test_corollary_1a_without_phi_everyone_is_alone():
    problem = regressions()
    # Proximal points: an error shrinks by alpha / (alpha + smallest eigenvalue).
    factor = ALPHA / (ALPHA + np.linalg.eigvalsh(problem.curvature).min())
    rounds = int(np.log(1e-12) / np.log(factor)) + 1
    w, _, _ = fixed_point("zero", rounds=rounds)
    np.testing.assert_allclose(w, regressions().estimates, atol=1e-10)


def test_corollary_1b_the_center_minimizes_the_mean_envelope_not_the_mean_loss():
    problem = regressions()
    w, _, c = fixed_point("indicator")
    slopes, _ = envelope_gradients(problem, np.tile(c, (7, 1)))
    np.testing.assert_allclose(slopes.mean(axis=0), 0, atol=1e-10)
    np.testing.assert_allclose(w, c - slopes / ALPHA, atol=1e-10)
    moments = np.einsum("kij,kj->i", problem.curvature, problem.estimates)
    fedavg = np.linalg.solve(problem.curvature.sum(axis=0), moments)
    assert np.linalg.norm(c - fedavg) > 0.1


@pytest.mark.parametrize("gamma", [0.2, 0.7])
def test_corollary_1c_mixed_anchors(gamma):
    w, z, c = fixed_point("sq", rho=gamma / (1 - gamma))
    np.testing.assert_allclose(z, (1 - gamma) * w + gamma * c, atol=1e-12)
    slopes, _ = envelope_gradients(regressions(), z)
    np.testing.assert_allclose(w, c - slopes / (ALPHA * gamma), atol=1e-9)


def by(aggregator):
    """An aggregator as a function of rows `[7, 3]`."""
    rule = jax.jit(
        lambda rows: aggregator(jax.random.key(0), rows, jnp.ones(7), jnp.zeros(3))[0]
    )
    return lambda rows: np.asarray(rule(rows))


RULES = {
    "mean": lambda rows: rows.mean(axis=0),
    "geometric": by(fp.GeometricMedian(rho=0.1, tolerance=1e-13, max_iterations=2000)),
    "coordinate": by(fp.CoordinateMedian()),
    "trimmed": lambda rows: np.sort(rows, axis=0)[1:-1].mean(axis=0),
}


@pytest.mark.parametrize("rule", RULES)
def test_proposition_3_for_any_equivariant_rule_and_own_gammas(rule):
    """`A(grad ft_k(z_k) / (alpha gamma_k)) = 0` at the fixed point."""
    problem = regressions()
    gammas = np.random.default_rng(2).uniform(0.3, 1.0, size=(7, 1))
    w = problem.estimates.copy()
    c = RULES[rule](w)
    for _ in range(150):
        z = (1 - gammas) * w + gammas * c
        w = z - envelope_gradients(problem, z)[0] / ALPHA
        c = RULES[rule](w)
    slopes, _ = envelope_gradients(problem, (1 - gammas) * w + gammas * c)
    scaled = slopes / (ALPHA * gammas)
    np.testing.assert_allclose(w, c - scaled, atol=1e-9)
    np.testing.assert_allclose(RULES[rule](scaled), 0, atol=1e-9)
    assert np.abs(scaled).max() > 0.1


@pytest.mark.parametrize("name", PHIS)
def test_proposition_1_the_split_problem_has_the_same_minimum(name):
    """Over Z at `c + prox(w - c)`, over c at the aggregate; nothing near is lower."""
    rng = np.random.default_rng(4)
    rows, p = 2 * rng.normal(size=(7, 3)), np.full(7, 1 / 7)
    c = oracles.center(name, rows, p, RHO)
    z = np.stack([c + oracles.prox(name, row - c, RHO) for row in rows])

    def split(z, c):
        norms = {
            "sq": 0.5 * ((z - c) ** 2).sum(axis=1),
            "l2": np.linalg.norm(z - c, axis=1),
            "l1": np.abs(z - c).sum(axis=1),
            "indicator": np.where((z == c).all(axis=1), 0, np.inf),
        }
        coupled = ALPHA / 2 * ((rows - z) ** 2).sum(axis=1)
        return p @ (coupled + ALPHA * RHO * norms[name])

    best = split(z, c)
    pulls = [oracles.envelope(name, row - c, RHO) for row in rows]
    np.testing.assert_allclose(best, ALPHA * RHO * p @ np.array(pulls), rtol=1e-12)
    for scale in (1e-4, 1e-2, 1.0):
        for _ in range(50):
            shift = scale * rng.normal(size=3)
            apart = 0 if name == "indicator" else scale * rng.normal(size=z.shape)
            assert split(z + shift + apart, c + shift) >= best - 1e-12


# Descent (Proposition 4, Theorem 2): plain gradient steps of size 1/L, lam = 0.

KINDS = {"convex": regressions, "nonconvex": problems.waves}
DEFAULT = {("l2", "nonconvex"), ("sq", "convex")}
cases = pytest.mark.parametrize(
    ("name", "kind"),
    [
        pytest.param(*pair, marks=[] if pair in DEFAULT else pytest.mark.wide)
        for pair in itertools.product(PHIS, KINDS)
    ],
)


def steps_of(problem, count):
    """That many full gradient steps at most."""
    return problems.full_gradient_steps(count, 1 / problem.smoothness)


def descend(name, problem, rounds, *, size=None, lam=0.0, aggregator=None, **fields):
    """States and reports; every client has a number of steps of its own."""
    algorithm = fp.FedPlus(
        phi=PHIS[name],
        alpha=ALPHA,
        rho=RHO,
        lam=lam,
        local=steps_of(problem, 5),
        **({"aggregate_over": "all"} | fields),
    )
    rule = TIGHT.get(name) if aggregator is None else aggregator
    work = fp.local.ClientBudgets(epochs=(1, 5, 2, 3))
    return problems.run(
        process(algorithm, size, aggregator=rule, work=work), problem, rounds
    )[:2]


def client_values(problem, name, w, c):
    """F_k at `w [K, d]` with anchors and center of the round, and its gradients."""

    def value(k, row, z):
        away = row - z
        return problem.loss(k, row) + ALPHA / 2 * away @ away

    z = np.stack([c + oracles.prox(name, row - c, RHO) for row in w])
    slopes = problem.gradients(w) + ALPHA * (w - z)
    return value, z, slopes


@functools.cache
def with_two_members(name, kind):
    return descend(name, KINDS[kind](), 15, size=2)


@cases
def test_proposition_4_every_member_descends_enough(name, kind):
    problem = KINDS[kind]()
    states, infos = with_two_members(name, kind)
    w, c = states.clients["theta"], states.server.c["theta"]
    bound = 2 * (problem.smoothness + ALPHA)
    for number, members in enumerate(infos.cohort):
        value, z, slopes = client_values(problem, name, w[number], c[number])
        for k in members:
            before = value(k, w[number, k], z[k])
            after = value(k, w[number + 1, k], z[k])
            assert after <= before - slopes[k] @ slopes[k] / bound + 1e-12


@pytest.mark.wide
def test_proposition_4_fails_where_the_start_is_mixed_with_the_center():
    problem = regressions()
    states, _ = descend("l2", problem, 200, lam=0.05)
    w, c = states.clients["theta"], states.server.c["theta"]
    value, z, slopes = client_values(problem, "l2", w[-2], c[-2])
    bound = 2 * (problem.smoothness + ALPHA)
    excess = [
        value(k, w[-1, k], z[k]) - value(k, w[-2, k], z[k]) + slope @ slope / bound
        for k, slope in enumerate(slopes)
    ]
    assert max(excess) > 1e-4


def objectives(problem, name, states):
    """F after every round, with the center of all models."""
    return np.array(
        [
            oracles.objective(problem, w, name, ALPHA, RHO)
            for w in states.clients["theta"]
        ]
    )


@pytest.mark.parametrize("size", [wide(None), 2])
@cases
def test_theorem_2_the_objective_decreases_enough(name, size, kind):
    problem = KINDS[kind]()
    states, infos = (
        descend(name, problem, 15) if size is None else with_two_members(name, kind)
    )
    values = objectives(problem, name, states)
    w, c = states.clients["theta"], states.server.c["theta"]
    bound = 2 * (problem.smoothness + ALPHA)
    for number, members in enumerate(infos.cohort):
        _, _, slopes = client_values(problem, name, w[number], c[number])
        gain = (slopes[members] ** 2).sum() / len(w[0]) / bound
        assert values[number + 1] <= values[number] - gain + 1e-11


@pytest.mark.wide
@pytest.mark.parametrize("name", ["l2", wide("l1")])
def test_theorem_2_the_limit_is_the_optimum_at_a_rate_of_one_over_t(name):
    problem = regressions()
    states, _ = descend(name, problem, 400)
    rows = states.clients["theta"]
    best = oracles.objective(problem, fixed_point(name)[0], name, ALPHA, RHO)
    times = np.array([1, 2, 5, 10, 20, 50, 100, 200, 400])
    gaps = np.array(
        [oracles.objective(problem, rows[t], name, ALPHA, RHO) - best for t in times]
    )
    assert gaps[-1] == pytest.approx(0, abs=1e-10)
    scaled = times * gaps  # bounded: it does not grow in the end
    assert scaled[times >= 50].max() <= scaled[times < 50].max()


def test_theorem_2_needs_the_center_of_all_models():
    """Over the members only, the objective rises, and again and again."""
    problem = regressions()
    states, _ = descend("l2", problem, 120, size=2, aggregate_over="cohort")
    values = objectives(problem, "l2", states)
    best = oracles.objective(problem, fixed_point("l2")[0], "l2", ALPHA, RHO)
    assert np.diff(values).max() > 1e-2
    assert (values[60:] - best).mean() > 1e-3


@pytest.mark.wide  # as Proposition 4 does
def test_theorem_2_needs_lam_0():
    problem = regressions()
    states, _ = descend("l2", problem, 200, lam=0.05)
    values = objectives(problem, "l2", states)
    best = oracles.objective(problem, fixed_point("l2")[0], "l2", ALPHA, RHO)
    assert values[-1] - best > 1e-4


@pytest.mark.wide
@pytest.mark.parametrize("start", ["reference", wide("mean")])
@pytest.mark.parametrize("method", ["prox", wide("weiszfeld")])
def test_one_inner_step_is_enough_from_the_last_center_not_from_the_mean(start, method):
    """The value with the server's center, which one step does not make the best."""
    problem = regressions()
    rule = fp.GeometricMedian(rho=RHO, method=method, start=start, max_iterations=1)
    states, _ = descend("l2", problem, 400, aggregator=rule)
    pairs = zip(states.clients["theta"], states.server.c["theta"], strict=True)
    values = np.array(
        [oracles.objective(problem, w, "l2", ALPHA, RHO, c) for w, c in pairs]
    )
    best = oracles.objective(problem, fixed_point("l2")[0], "l2", ALPHA, RHO)
    if start == "reference":
        assert np.diff(values).max() < 1e-12
        assert values[-1] - best < 1e-9
    else:
        assert values[-1] - best > 1e-3


def test_the_diagnostics_are_the_objective_and_the_residual():
    problem = regressions()
    algorithm = fp.FedPlus(
        phi=phi.L2(),
        alpha=ALPHA,
        rho=RHO,
        aggregate_over="all",
        local=steps_of(problem, 3),
    )
    states, _, seen = problems.run(process(algorithm), problem, 5, diagnostics=True)
    for number in range(6):
        w, c = states.clients["theta"][number], states.server.c["theta"][number]
        value = oracles.objective(problem, w, "l2", ALPHA, RHO, c)
        np.testing.assert_allclose(seen["objective"][number], value, rtol=1e-9)
        _, _, slopes = client_values(problem, "l2", w, c)
        largest = np.linalg.norm(slopes, axis=1).max()
        np.testing.assert_allclose(seen["residual"][number], largest, rtol=1e-9)
        typical = np.median(np.linalg.norm(w - c, axis=1)) or 1.0
        shift = np.linalg.norm(w.mean(axis=0) - c) / typical
        np.testing.assert_allclose(seen["center_shift"][number], shift, rtol=1e-9)
    by_theta = dataclasses.replace(
        algorithm, alpha=None, theta=1 / (1 + ALPHA / problem.smoothness)
    )
    state = jax.tree.map(jnp.asarray, jax.tree.map(lambda leaf: leaf[-1], states))
    diagnostics = jax.jit(by_theta.diagnostics, static_argnums=1)
    found = diagnostics(state, problem.model, problem.federation)
    for name, value in found.items():
        np.testing.assert_allclose(value, seen[name][-1], rtol=1e-9)

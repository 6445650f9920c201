"""FLAME against its theory: fixtures by hand, descent, fixed points, rates.

Sections: worked rounds, descent of the Lyapunov value and where it fails, fixed points
against closed forms, contraction factors against spectral radii.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_pfl as fp
from experiments.theory import closed_forms
from tests import problems
from tests.lanes import wide
from tests.setups import process

HAND = {"rtol": 0, "atol": 5e-12}  # the numbers are given to twelve places


def worked_run(center, penalty, num_rounds):
    problem = problems.quadratics([(1, 0), (0, 2), (-1, 1)], curvature=2.0)
    algorithm = fp.Flame(
        lam=1.0, center=center, local=problems.exact_step(problem, 1.0), **penalty
    )
    whole = process(algorithm)
    return problems.run(whole, problem, num_rounds, diagnostics=True)


@pytest.mark.parametrize(
    ("center", "penalty", "w", "lagrangian"),
    [
        (
            "local",
            {"rho": 0.5},
            (0.657777777778, 0.749037037037),
            (0.541083127572, 0.489326646548),
        ),
        wide(
            "received",
            {"kappa": 1.5},
            (0.728888888889, 0.827259259259),
            (0.492464197531, 0.463395379973),
        ),
    ],
)
def test_worked_rounds(center, penalty, w, lagrangian):
    # b = 2, lam = 1, rho = 0.5, alpha = 1/3: kappa = 1.5, all from zero.
    states, _, values = worked_run(center, penalty, 200)
    targets = np.array([(1, 0), (0, 2), (-1, 1)])
    theta, w_local, pi = (
        np.asarray(tree["theta"])
        for tree in (states.clients.theta, states.clients.w_local, states.clients.p)
    )
    pi = 0.5 * pi
    np.testing.assert_allclose(theta[1], 2 / 3 * targets, **HAND)
    np.testing.assert_allclose(w_local[1], 4 / 15 * targets, **HAND)
    np.testing.assert_allclose(pi[1], 2 / 15 * targets, **HAND)

    server = states.server["theta"]
    np.testing.assert_allclose(server[:4, 0], 0, **HAND)
    np.testing.assert_allclose(server[:4, 1], (0, 8 / 15, *w), **HAND)
    np.testing.assert_allclose(
        values["lagrangian"][:4], (7 / 3, 0.605925925926, *lagrangian), **HAND
    )
    if center == "local":
        np.testing.assert_allclose(
            theta[3, 0], (0.714074074074, 0.106666666667), **HAND
        )
        np.testing.assert_allclose(pi[3, 2], (-0.224592592593, 0.071703703704), **HAND)

    limit = np.array([(2 / 3, 1 / 3), (0, 5 / 3), (-2 / 3, 1)])
    duals = np.array([(2 / 9, -2 / 9), (0, 2 / 9), (-2 / 9, 0)])
    np.testing.assert_allclose(server[-1], (0, 1), atol=1e-9)
    np.testing.assert_allclose(theta[-1], limit, atol=1e-9)
    np.testing.assert_allclose(pi[-1], duals, atol=1e-9)
    np.testing.assert_allclose(values["lagrangian"][-1], 4 / 9, atol=1e-9)
    assert (
        max(values[n][-1] for n in ("residual_theta", "residual_w", "dual_sum")) < 1e-9
    )


@fp.pytree_dataclass
class Edge(fp.local.ToTolerance):
    """Solves tightly, then moves away as far as the tolerance surely allows.

    The displacement is `sqrt(tolerance) / smoothness`, which meets the tolerance with
    equality where the objective is a quadratic of that curvature. Even clients move up
    and odd ones down where `alternate`; else in random directions.
    """

    smoothness: float = 1.0
    alternate: bool = fp.static_field(default=False)

    def solve(self, view, objective, params, context, *, tolerance=None):
        tight, context, info = super().solve(
            view, objective, params, context, tolerance=jnp.asarray(1e-26)
        )
        even = 1 - 2 * (view.data.client_id % 2)
        direction = jnp.ones_like(tight["theta"]) * even
        if not self.alternate:
            direction = jax.random.normal(view.key, direction.shape)
        direction = direction / jnp.linalg.norm(direction)
        move = jnp.sqrt(tolerance) / self.smoothness * direction
        return {"theta": tight["theta"] + move}, context, info


@pytest.mark.parametrize("size", [wide(6), 2])
def test_lyapunov_value_falls_by_what_the_theory_promises(size):
    # Nonconvex, adversarially inexact; L = 0.1 lam and kappa = 12 make both factors
    # positive with k = 1 and the slack s = alpha lam / 4 of the diagnostic.
    problem, lam, kappa = problems.waves(height=0.2), 2.0, 12.0
    alpha = problem.alpha("uniform")
    rho = kappa * lam / 6
    copies, personal = closed_forms.descent_factors(
        alpha, lam, rho, problem.smoothness, slack=alpha * lam / 4
    )
    assert copies.min() > 0
    assert personal.min() > 0
    smoothness = lam + problem.smoothness
    local = Edge(learning_rate=1 / smoothness, smoothness=smoothness)
    whole = fp.FederatedProcess(
        algorithm=fp.Flame(lam=lam, kappa=kappa, eps_decay=0.9, local=local),
        participation=fp.UniformCohort(size=size) if size < 6 else fp.AllClients(),
    )
    for seed in range(6):
        states, infos, values = problems.run(
            whole, problem, 60, seed=seed, diagnostics=True
        )
        assert not infos.client["unconverged"].any()
        rows = states.clients
        moved_w, moved_copies, moved_theta = (
            np.square(np.diff(tree["theta"], axis=0)).sum(axis=-1)
            for tree in (states.server, rows.w_local, rows.theta)
        )
        promised = (
            rho * 6 / 2 * moved_w + moved_copies @ copies + moved_theta @ personal
        )
        decrease = -np.diff(values["lyapunov"])
        assert (decrease >= promised - 1e-10).all()
        assert promised[:20].min() > 1e-6
        theta, center = rows.theta["theta"][-1], rows.w_local["theta"][-2]
        residual = problem.gradients(theta) + lam * (theta - center)
        used = np.square(alpha[:, None] * residual).sum(axis=1) / rows.eps[-1]
        used = used[infos.cohort[-1]]  # curvatures are lam -+ 0.2: (1.8 / 2.2)^2 = 0.67
        assert ((used > 0.6) & (used < 1 + 1e-6)).all()


def test_printed_lyapunov_weight_fails_and_the_corrected_one_holds():
    # m = 10 flat parabolas at their minimum; every client returns the worst theta that
    # the criterion allows.
    rho, kappa, decay = 0.1, 4.25, 0.5
    alpha = np.full(10, 0.1)
    lam = rho / kappa / 0.1
    problem = problems.quadratics(np.zeros((10, 1)), curvature=0.02)
    smoothness = lam + 0.02
    local = Edge(learning_rate=1 / smoothness, smoothness=smoothness, alternate=True)
    whole = process(fp.Flame(lam=lam, rho=rho, eps_decay=decay, local=local))
    start = problems.first_state(whole, problem)
    rows = dataclasses.replace(start.clients, eps=jnp.ones(10))
    start = dataclasses.replace(start, clients=rows)
    states, _, values = problems.run(whole, problem, 1, state=start, diagnostics=True)
    worst = np.sqrt(0.5) / (0.1 * (0.02 + lam)) * (-1.0) ** np.arange(10)
    np.testing.assert_allclose(
        states.clients.theta["theta"][1, :, 0], worst, rtol=1e-12
    )
    np.testing.assert_allclose(states.clients.eps[1], 0.5)

    paper = closed_forms.paper_conditions(alpha, lam, rho, 0.02, decay)
    assert (paper.c1 & paper.c2 & paper.c3).all()
    np.testing.assert_allclose(paper.c, 0.00380968858131, rtol=1e-10)
    drop = -np.diff(values["lagrangian"])[0]

    def with_weight(iota):
        return drop + 0.5 * iota.sum()

    moved = [
        np.square(np.diff(tree["theta"], axis=0)).sum()
        for tree in (states.server, states.clients.w_local, states.clients.theta)
    ]
    claimed = paper.descent * (10 * moved[0] + moved[1] + moved[2])
    assert claimed == pytest.approx(6.8771, abs=1e-4)
    assert with_weight(paper.printed_iota) == pytest.approx(-82.3197, abs=1e-4)
    assert with_weight(paper.iota) == pytest.approx(547.653, abs=1e-3)
    assert with_weight(decay * paper.iota) == pytest.approx(219.542, abs=1e-3)


def largest_rise(center, kappa):
    """Largest rise of L in 60 exact rounds over 8 seeds of 20 % participation."""
    problem = problems.random_quadratics(num_clients=10, curvature=0.1)
    algorithm = fp.Flame(
        lam=1.0, kappa=kappa, center=center, local=problems.exact_step(problem, 1.0)
    )
    whole = process(algorithm, 2)
    runs = [
        problems.run(whole, problem, 60, seed=seed, diagnostics=True)[2]
        for seed in range(8)
    ]
    return max(np.diff(values["lagrangian"]).max() for values in runs)


@pytest.mark.wide
def test_the_lagrangian_rises_at_kappa_1_but_not_above_the_convex_bound():
    assert largest_rise("local", 1.0) > 1e-4
    assert largest_rise("local", 1.01 * closed_forms.smallest_kappa(0.0)) <= 1e-12
    # About the received w, kappa = 1 makes L = f and the round a descent over blocks.
    assert largest_rise("received", 1.0) <= 1e-12


@pytest.mark.parametrize(
    ("center", "weighting"),
    [
        ("local", "uniform"),
        wide("local", "examples"),
        wide("received", "examples"),
        wide("joint", "examples"),
    ],
)
def test_fixed_point_is_the_minimizer_for_any_curvature(center, weighting):
    # Inexact warm-started solves have the same fixed points; three clients take part.
    problem, lam = problems.regressions(), 1.3
    alpha = problem.alpha(weighting)
    local = problems.full_gradient_steps(8, 1 / (problem.smoothness + lam))
    whole = process(
        fp.Flame(lam=lam, kappa=1.5, center=center, weighting=weighting, local=local), 3
    )
    states, _, _ = problems.run(whole, problem, 600)
    theta, w = problem.moreau_optimum(lam, alpha)
    closed_w, closed_theta = closed_forms.regression_optimum(
        problem.curvature, problem.estimates, lam, alpha
    )
    np.testing.assert_allclose(closed_w, w, atol=1e-12)
    np.testing.assert_allclose(closed_theta, theta, atol=1e-12)
    assert np.abs(w - alpha @ problem.estimates).max() > 0.01  # not just a mean

    last = jax.tree.map(lambda leaf: leaf[-1], states)
    np.testing.assert_allclose(last.server["theta"], w, atol=1e-10)
    np.testing.assert_allclose(last.clients.theta["theta"], theta, atol=1e-10)
    copies = np.tile(w, (len(alpha), 1))
    np.testing.assert_allclose(last.clients.w_local["theta"], copies, atol=1e-10)
    pi = lam * 1.5 / len(alpha) * last.clients.p["theta"]
    np.testing.assert_allclose(pi, lam * alpha[:, None] * (theta - w), atol=1e-10)


@pytest.mark.parametrize("epochs", [wide(1), 3])
def test_official_profile_has_the_fixed_point_with_its_weight_decay(epochs):
    problem, lam = problems.regressions(), 1.0
    learning_rate = 0.5 / (problem.smoothness + lam)
    local = problems.full_gradient_steps(
        epochs, learning_rate, momentum=0.5, weight_decay=0.01
    )
    algorithm = fp.Flame.official(lam=lam, kappa=0.7, local=local)
    states, _, _ = problems.run(process(algorithm), problem, 600)
    theta, w = problem.moreau_optimum(lam, problem.alpha("uniform"), weight_decay=0.01)
    np.testing.assert_allclose(states.server["theta"][-1], w, atol=1e-10)
    np.testing.assert_allclose(states.clients.theta["theta"][-1], theta, atol=1e-10)


@pytest.mark.parametrize(
    ("center", "kappa", "expected"),
    [
        wide("local", 2.0, 0.8333),
        ("local", 4.0, 0.9000),
        wide("received", 2.0, 0.7887),
        ("received", 4.0, 0.8873),
    ],
)
def test_error_shrinks_by_the_spectral_radius(center, kappa, expected):
    problem = problems.random_quadratics(curvature=1.0)
    algorithm = fp.Flame(
        lam=1.0, kappa=kappa, center=center, local=problems.exact_step(problem, 1.0)
    )
    states, _, _ = problems.run(process(algorithm), problem, 60)
    _, w = problem.moreau_optimum(1.0, problem.alpha("uniform"))
    size = np.linalg.norm(states.clients.w_local["theta"] - w, axis=(1, 2))
    measured = (size[60] / size[30]) ** (1 / 30)
    name = {"local": "local", "received": "global"}[center]
    assert measured == pytest.approx(expected, abs=1e-3)
    radius = max(closed_forms.convergence_factors(kappa, 1.0, name))
    assert measured == pytest.approx(radius, abs=1e-3)


@pytest.mark.parametrize("lam", [0.5, wide(3.0)])
def test_at_kappa_1_the_received_w_shrinks_exactly(lam):
    problem = problems.random_quadratics(curvature=1.0)
    local = problems.exact_step(problem, lam)
    algorithm = fp.Flame(lam=lam, kappa=1.0, center="received", local=local)
    states, _, _ = problems.run(process(algorithm), problem, 12)
    _, w = problem.moreau_optimum(lam, problem.alpha("uniform"))
    error = states.server["theta"] - w
    # Errors shrink to 1e-6; their ratios are then good to 1e-16 / 1e-6.
    np.testing.assert_allclose(error[1:], error[:-1] / (1 + 1 / lam), rtol=1e-8)

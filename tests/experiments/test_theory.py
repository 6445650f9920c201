"""Closed forms against the fixtures of the specification, gradients and simulation."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.theory import closed_forms
from fedjax_pfl.core import checks

F2 = closed_forms.Regression(
    params=np.array([[1, 0], [0, 2], [-1, 1], [0.5, -0.5]]),
    num_examples=10,
    noise_variance=0.5,
    curvature=2.0,
    lam=1.0,
)
LAST = np.array([False, False, False, True])
NOBODY = np.zeros(4, bool)
Q = closed_forms.shrinkage(2.0, 1.0, kappa=0.5 / (1.0 * 0.25))
COLUMNS = {  # attack: GM(q), PM(q), GM(1), PM(1), q*_GM, q*_PM
    "none": (1.846604938272, 0.452091906722, 1.731250000000, 0.442361111111)
    + (0.970149253731, 0.910447761194),
    "same_value": (2.042129629630, 0.473816872428, 1.667708333333, 0.435300925926)
    + (1.311475409836, 1.267759562842),
    "sign_flip": (2.011618771442, 0.470426777074, 1.642876255071, 0.432541806119)
    + (1.255240124908, 1.215087302287),
}
COLUMNS["gaussian"] = COLUMNS["same_value"]


def _setting(attack, problem=F2):
    """The setting of a column of F2."""
    if attack == "none":
        return closed_forms.OneRound(problem=problem, malicious=NOBODY)
    return closed_forms.OneRound(problem=problem, malicious=LAST, attack=attack)


@pytest.mark.parametrize("attack", COLUMNS)
def test_one_round_losses_and_thresholds_of_f2(attack):
    setting = _setting(attack)
    values = (*setting.losses(Q), *setting.losses(1.0), *setting.thresholds())
    np.testing.assert_allclose(values, COLUMNS[attack], atol=1e-12)
    assert Q < 2 * min(setting.thresholds()) - 1  # worse than q = 1


def test_fairness_of_f2():
    assert np.isclose(F2.squared_distance_variance(Q), 0.727430555556, atol=1e-12)
    assert np.isclose(F2.squared_distance_variance(1.0), 0.07421875)
    assert not F2.is_fairer(Q) and not F2.is_fairer(0.999)


def _problem(params, **fields):
    """F2 with other true parameters."""
    defaults = {"num_examples": 10, "noise_variance": 0.5, "curvature": 2.0, "lam": 1.0}
    return closed_forms.Regression(
        params=np.asarray(params, float), **(defaults | fields)
    )


def test_f3_counterexamples():
    problem = _problem([[1], [2], [3]])
    assert np.isclose(problem.squared_distance_variance(0.5), 2.888888888889)
    assert np.isclose(problem.squared_distance_variance(1.0), 0.222222222222)
    assert not problem.is_fairer(0.5)
    setting = _setting("same_value", _problem(0.5 * F2.params))
    assert np.isclose(setting.thresholds()[0], 1.25)
    values = (*setting.losses(4 / 9), *setting.losses(1.0))
    expected = (0.708796296, 0.325668724, 0.620833333, 0.318981481)
    np.testing.assert_allclose(values, np.array(expected)[[0, 1, 2, 3]], atol=1e-9)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("attack", COLUMNS)
def test_losses_are_parabolas_about_their_thresholds(attack, seed):
    rng = np.random.default_rng(seed)
    problem = _problem(rng.normal(size=(4, 3)), noise_variance=40.0, lam=0.7)
    setting = _setting(attack, problem)
    for which, best in enumerate(setting.thresholds()):
        left, middle, right = (setting.losses(best + h)[which] for h in (-0.3, 0, 0.3))
        assert np.isclose(left, right, rtol=1e-12) and middle < left
        for q in (0.2, 0.6, 0.9):
            no_worse = setting.losses(q)[which] <= setting.losses(1.0)[which]
            assert (q >= 2 * best - 1) == no_worse


def test_fairness_criterion_is_exact():
    rng = np.random.default_rng(0)
    answers = []
    for _ in range(100):
        problem = _problem(rng.normal(size=(5, 4)) + rng.normal())
        for q in (0.3, 0.8):
            fairer = problem.squared_distance_variance(
                q
            ) <= problem.squared_distance_variance(1.0)
            assert problem.is_fairer(q) == fairer
            answers.append(fairer)
    assert 0 < np.mean(answers) < 1
    params = rng.normal(size=(5, 4))
    assert _problem(params / np.linalg.norm(params, axis=1, keepdims=True)).is_fairer(
        0.1
    )


def _estimates(rng, problem, runs):
    """Least-squares estimates `[runs, m, d]`."""
    noise = rng.normal(size=(runs, *problem.params.shape))
    return problem.params + np.sqrt(problem.estimate_variance) * noise


def _losses(problem, models, benign):
    """Expected test loss of given models `[runs, m, d]`, mean over benign clients."""
    square = np.square(models - problem.params).sum(axis=2)[:, benign].mean(axis=1)
    return problem.noise_variance / 2 + problem.curvature / 2 * square


def _personal(problem, estimates, w):
    """Every client's solution about w."""
    b, lam = problem.curvature, problem.lam
    return (b * estimates + lam * w[:, None]) / (b + lam)


def _assert_mean(values, expected):
    standard_error = values.std(ddof=1) / np.sqrt(len(values))
    assert abs(values.mean() - expected) < 4 * standard_error


@pytest.mark.parametrize("attack", COLUMNS)
def test_one_round_losses_by_simulation(attack):
    rng = np.random.default_rng(5)
    runs, q = 100_000, 0.6
    setting = _setting(attack)
    estimates = _estimates(rng, F2, runs)
    uploads = q * estimates
    xi = np.sqrt(0.1) * rng.normal(size=(runs, 1, 1))
    if attack == "same_value":
        uploads[:, LAST] = xi
    elif attack == "sign_flip":
        uploads[:, LAST] *= -np.abs(xi)
    elif attack == "gaussian":
        uploads[:, LAST] = np.sqrt(0.1) * rng.normal(size=(runs, 1, 2))
    w = uploads.mean(axis=1)
    shared, personal = setting.losses(q)
    benign = ~setting.malicious
    broadcast = np.broadcast_to(w[:, None], estimates.shape)
    _assert_mean(_losses(F2, broadcast, benign), shared)
    _assert_mean(_losses(F2, _personal(F2, estimates, w), benign), personal)


def test_optimum_losses_by_simulation():
    rng = np.random.default_rng(6)
    problem = _problem(F2.params, lam=0.6)
    estimates = _estimates(rng, problem, 100_000)
    w = estimates.mean(axis=1)
    shared, personal = problem.optimum_losses()
    benign = np.ones(4, bool)
    broadcast = np.broadcast_to(w[:, None], estimates.shape)
    _assert_mean(_losses(problem, broadcast, benign), shared)
    _assert_mean(_losses(problem, _personal(problem, estimates, w), benign), personal)
    assert np.isclose(closed_forms.OneRound(problem, NOBODY).losses(1.0)[0], shared)


def _random_designs(seed=2):
    rng = np.random.default_rng(seed)
    design = rng.normal(size=(5, 8, 3))
    curvature = np.einsum("ink,inl->ikl", design, design) / 8
    alpha = rng.dirichlet(np.ones(5))
    return curvature, rng.normal(size=(5, 3)), alpha


@pytest.mark.parametrize("uniform", [True, False])
def test_optimum_is_stationary(uniform):
    curvature, estimates, alpha = _random_designs()
    lam = 0.8
    weights = np.full(5, 0.2) if uniform else alpha

    def objective(w, theta):
        error = theta - estimates
        fit = jnp.einsum("ij,ijk,ik->i", error, curvature, error) / 2
        return weights @ (fit + lam / 2 * jnp.square(theta - w[None]).sum(axis=1))

    given = None if uniform else alpha
    w, theta = closed_forms.regression_optimum(curvature, estimates, lam, given)
    gradients = jax.grad(objective, argnums=(0, 1))(jnp.asarray(w), jnp.asarray(theta))
    assert max(jnp.abs(g).max() for g in gradients) < 1e-13
    np.testing.assert_allclose(w, weights @ theta, atol=1e-13)


def test_the_optimum_of_isotropic_problems():
    """Means weighted by b / (b + lam): of estimates, then of an estimate and w."""
    _, estimates, _ = _random_designs()
    b = np.array([0.5, 1, 2, 3, 0.1])
    curvature = b[:, None, None] * np.eye(3)
    w, theta = closed_forms.regression_optimum(curvature, estimates, 0.8)
    share = (b / (b + 0.8))[:, None]
    np.testing.assert_allclose(w, np.average(estimates, 0, share[:, 0]), atol=1e-13)
    np.testing.assert_allclose(theta, share * estimates + (1 - share) * w, atol=1e-13)


TABLE = {  # kappa: (deviation, mean) at h = 1
    "local": {
        0.2: (0.6455, 0.5833),
        0.5: (0.5774, 0.6667),
        1: (0.5, 0.75),
        2: (0.4082, 0.8333),
        4: (0.3162, 0.9),
    },
    "global": {
        0.2: (0.8333, 0.6455),
        0.5: (0.6667, 0.5774),
        1: (0.5, 0.5),
        2: (0.3333, 0.7887),
        4: (0.2, 0.8873),
    },
}


@pytest.mark.parametrize("center", TABLE)
def test_convergence_factors_of_the_table(center):
    for kappa, expected in TABLE[center].items():
        factors = closed_forms.convergence_factors(kappa, 1.0, center)
        np.testing.assert_allclose(factors, expected, atol=6e-5)


@pytest.mark.parametrize("center", ["local", "global"])
@pytest.mark.parametrize("kappa", [2.0, 4.0])
def test_convergence_factors_of_the_iteration(center, kappa):
    b, lam = 1.4, 0.7
    estimates = np.random.default_rng(3).normal(size=(4, 2))
    best = estimates.mean(axis=0)
    copies, dual, w = np.zeros((4, 2)), np.zeros((4, 2)), np.zeros(2)
    errors = []
    for _ in range(60):
        received = copies if center == "local" else w
        theta = (b * estimates + lam * received) / (b + lam)
        copies = (theta + kappa * (w - dual)) / (1 + kappa)
        dual = dual + copies - w
        w = (copies + dual).mean(axis=0)
        errors.append(np.linalg.norm(w - best))
    observed = (errors[59] / errors[29]) ** (1 / 30)
    assert np.isclose(
        observed,
        max(closed_forms.convergence_factors(kappa, b / lam, center)),
        atol=1e-3,
    )


def test_both_centers_are_stable():
    for kappa in np.geomspace(0.02, 10, 9):
        for h in np.geomspace(0.01, 100, 9):
            for center in ("local", "global"):
                assert max(closed_forms.convergence_factors(kappa, h, center)) < 1


def test_paper_conditions_of_f4():
    alpha = np.full(10, 0.1)
    lam = 1 / 4.25
    found = closed_forms.paper_conditions(alpha, lam, 0.1, 0.02, decay=0.5)
    assert found.c1.all() and found.c2.all() and found.c3.all()
    np.testing.assert_allclose(found.c, 0.00380968858131, rtol=1e-11)
    # One round from a stationary zero to the edge of the criterion, signs alternating.
    theta = np.sqrt(0.5) / (0.1 * (0.02 + lam)) * (-1.0) ** np.arange(10)
    copies = theta / 5.25
    assert np.isclose(found.descent * (theta @ theta + copies @ copies), 6.8771)
    fit = 0.02 / 2 * theta**2 + lam / 2 * (theta - copies) ** 2
    rise = (0.1 * fit + 0.1 * copies**2 + 0.1 / 2 * copies**2).sum()
    assert np.isclose((found.printed_iota * 0.5).sum() - rise, -82.3197)
    assert np.isclose((found.iota * 0.5).sum() - rise, 547.653)


@pytest.mark.parametrize(
    ("rho", "low", "high"),
    [
        (0.2, 3.0, 3.098),
        (0.1, 4.217, 4.449),
        (0.05, 6.0, 6.316),
        (0.01, 13.722, 14.141),
    ],
)
def test_the_paper_conditions_hold_in_a_narrow_band(rho, low, high):
    for kappa, expected in [
        (low - 2e-3, False),
        (low + 2e-3, True),
        (high - 2e-3, True),
        (high + 2e-3, False),
    ]:
        lam = rho / (0.1 * kappa)
        found = closed_forms.paper_conditions(np.full(10, 0.1), lam, rho, 0.0)
        assert (found.c1 & found.c2 & found.c3).all() == expected


@pytest.mark.parametrize("ratio", [-1.0, 0.0, 0.25, 0.5, 0.75, 0.9])
def test_smallest_kappa_is_the_border_of_the_descent_conditions(ratio):
    alpha, lam = np.array([0.2, 0.8]), 0.7
    border = closed_forms.smallest_kappa(ratio)
    for kappa, expected in [(border * 0.999, False), (border * 1.001, True)]:
        holds = []
        for balance in np.geomspace(1e-3, 1e3, 20001):
            for client in (0, 1):  # rho such that this client has this kappa
                rho = kappa * lam * alpha[client]
                copies, personal = closed_forms.descent_factors(
                    alpha[client], lam, rho, ratio * lam, balance=balance
                )
                holds.append(copies > 0 and personal > 0)
        assert any(holds) == expected


def test_smallest_kappa_of_the_specification():
    values = [closed_forms.smallest_kappa(r) for r in (0, 0.25, 0.5, 0.75, 0.9)]
    np.testing.assert_allclose(
        values, [2.5616, 3.1487, 4.372, 8.217, 20.095], rtol=1e-4
    )
    with pytest.raises(checks.InputError, match="below 1, got 1.0"):
        closed_forms.smallest_kappa(1.0)


def test_slack_lowers_the_personal_factor_only():
    alpha = np.full(3, 1 / 3)
    exact = closed_forms.descent_factors(alpha, 1.0, 2.0, 0.5)
    slack = closed_forms.descent_factors(alpha, 1.0, 2.0, 0.5, slack=0.01)
    np.testing.assert_array_equal(exact[0], slack[0])
    np.testing.assert_allclose(exact[1] - slack[1], 0.01)


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: _problem(F2.params, lam=0.0), "lam .* above 0, got 0.0"),
        (lambda: _problem(F2.params, num_examples=0), "num_examples"),
        (lambda: closed_forms.OneRound(F2, np.ones(4, bool)), "one benign client"),
        (lambda: closed_forms.OneRound(F2, LAST, "flip"), "Unknown attack 'flip'"),
        (lambda: closed_forms.convergence_factors(1.0, 1.0, "own"), "prox center"),
    ],
)
def test_wrong_settings_are_named(make, match):
    with pytest.raises(checks.InputError, match=match):
        make()

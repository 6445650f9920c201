"""Errata that a few numbers show; those of whole methods are in the methods' tests."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import optimize

from fedjax_pfl.algorithms import common_descent, phi
from tests import gradients as gradients_


def envelope(loss, center, lam):
    """The Moreau envelope of a loss of one number."""
    found = optimize.minimize_scalar(lambda x: loss(x) + lam / 2 * (x - center) ** 2)
    return found.fun


def test_flame_1_the_envelope_approaches_the_loss_for_large_lam():
    def loss(x):
        return np.log(np.cosh(x - 3))  # least value 0

    gaps = [loss(0.5) - envelope(loss, 0.5, lam) for lam in (1e-6, 0.1, 1, 10, 100)]
    assert gaps == sorted(gaps, reverse=True)
    assert gaps[0] == pytest.approx(loss(0.5), abs=1e-4) and gaps[-1] < 0.01


def test_flame_2_both_problems_have_one_value():
    def losses(x):
        return np.log(np.cosh(x - np.array([-2.0, 0.5, 3.0])))

    def together(point):
        return np.mean(losses(point[1:]) + 0.7 / 2 * (point[1:] - point[0]) ** 2)

    def nested(center):
        return np.mean(
            [envelope(lambda x, k=k: losses(x)[k], center, 0.7) for k in range(3)]
        )

    both = optimize.minimize(together, np.zeros(4), tol=1e-10).fun
    assert both == pytest.approx(optimize.minimize_scalar(nested).fun, abs=1e-8)
    assert both > 0.1


class Flame:
    """The paper's rounds for models of one number; `prox(i, center)` trains one."""

    def __init__(self, prox, count, lam, rho):
        self.prox, self.lam, self.rho = prox, lam, rho
        self.alpha, self.w = 1 / count, 0.0
        self.w_local, self.dual, self.theta = np.zeros((3, count))
        self.sent = np.zeros(count)

    def round(self, cohort):
        a = self.lam * self.alpha
        for i in cohort:
            self.theta[i] = self.prox(i, self.w_local[i])
            total = a * self.theta[i] + self.rho * self.w - self.dual[i]
            self.w_local[i] = total / (a + self.rho)
            self.dual[i] += self.rho * (self.w_local[i] - self.w)
            self.sent[i] = self.w_local[i] + self.dual[i] / self.rho
        self.w = self.sent.mean()


def test_flame_7_the_identity_behind_lemma_2_needs_all_clients():
    targets, lam, rho = np.array([1.0, -2.0, 4.0]), 1.0, 0.5
    run = Flame(lambda i, c: (targets[i] + lam * c) / (1 + lam), 3, lam, rho)
    run.round([0, 1, 2])
    before, dual = run.w, run.dual.copy()
    run.round([0, 1])
    gaps = run.w_local - before - (run.dual - dual) / rho
    np.testing.assert_allclose(gaps[:2], 0, atol=1e-12)
    assert abs(gaps[2]) > 0.1


def test_flame_8_smooth_losses_alone_leave_the_iterates_unbounded():
    run = Flame(lambda i, c: c + 1.0, 3, lam=1.0, rho=0.5)  # f(x) = -x
    places = []
    for _ in range(400):
        run.round([0, 1, 2])
        places.append(run.w)
    steps = np.diff(places)
    assert places[-1] > 50 and steps[-1] == pytest.approx(steps[-100], rel=1e-6)


def test_fedplus_8_the_variant_with_the_last_center_diverges():
    models = np.array([0.0, 1.0, 5.0])
    soft = phi.L1()

    def iterate(start, center, rounds):
        for _ in range(rounds):
            shift = soft.prox({"x": jnp.asarray(models - center)}, 0.5)["x"].mean()
            center = (models.mean() if start is None else center) - float(shift)
        return center

    right = iterate(None, models.mean(), 200)
    assert right == pytest.approx(1, abs=1e-3)  # within 0.5 of one model, between two
    first = iterate("last", models.mean(), 1)
    assert first == pytest.approx(iterate(None, models.mean(), 1))
    assert abs(iterate("last", models.mean(), 60)) > 1e6


def test_fedpg_4_the_decrease_has_the_factor_of_the_condition():
    """An accepted step of a convex loss falls by less than its length promises."""
    slope, step, factor = 2.0, 0.8, 0.1  # of x^2 at 1; d = -slope
    fall = 1 - (1 - step * slope) ** 2
    assert factor * step * slope**2 <= fall < step * slope**2


def test_fedpg_5_rounds_grow_like_the_square_of_the_accuracy():
    """Gradient descent on the convex x^-p, p small: one client, so d = -gradient."""
    power = 0.1

    def rounds(accuracy):
        x, count = 1.0, 0
        while power * x ** (-power - 1) > accuracy:
            x, count = x + 9 * power * x ** (-power - 1), count + 1
        return count

    ratio = rounds(1 / 3200) / rounds(1 / 640)
    assert ratio == pytest.approx(5 ** ((power + 2) / (power + 1)), rel=0.05)
    assert ratio > 4 * 5


def test_fedpg_6_weights_of_the_combined_objective_change_and_can_be_negative():
    seen = []
    for seed in range(10):
        rng = np.random.default_rng(seed)
        losses = rng.uniform(0.1, 5, 3)
        rows = gradients_.rows_of(rng.normal(size=(3, 3)), losses)
        weights = np.asarray(gradients_.find(rows).weights[0] * rows.scales)
        fair = weights[3] * np.asarray(
            common_descent.fairness(jnp.asarray(losses)).slopes
        )
        combined = weights[:3] + fair
        seen.append(combined / np.abs(combined).sum())
    assert np.min(seen) < -0.1 and np.std(seen, axis=0).min() > 0.1


def test_fedpg_7_the_fairness_objective_of_convex_losses_is_not_convex():
    x = np.linspace(-4, 4, 81)
    losses = jnp.asarray(np.stack([1 + x**2, 1 + (x - 1) ** 2], axis=1))
    values = jax.vmap(lambda pair: common_descent.fairness(pair).value)(losses)
    bends = np.diff(np.asarray(values), 2)
    assert bends.min() < -1e-4 < 1e-4 < bends.max()

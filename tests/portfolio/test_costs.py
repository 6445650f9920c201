"""Cost factors against the cash identity, bisection and finite differences."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import test_util

from fedjax_pfl import portfolio
from fedjax_pfl.core import checks

exact_factor = jax.jit(portfolio.exact_factor)
first_order_factor = jax.jit(portfolio.first_order_factor)
COSTS = [0.0, 0.0005, 0.002, 0.01, 0.1]


def simplex(count, size=10, seed=0, concentration=0.3):
    """Weights, corners of the simplex among them."""
    rng = np.random.default_rng(seed)
    drawn = rng.dirichlet(np.full(size, concentration), count)
    return np.concatenate([drawn, np.eye(size)])


def pairs(seed=0):
    before, weights = simplex(200, seed=seed), simplex(200, seed=seed + 1)
    order = np.random.default_rng(seed + 2).permutation(len(before))
    return before[order], weights


def cash_gap(factor, before, weights, cost):
    """Cash that is left after paying for all purchases; 0 at the exact factor."""
    sold = np.maximum(before - factor * weights, 0)[1:].sum()
    bought = np.maximum(factor * weights - before, 0)[1:].sum()
    cash = before[0] + (1 - cost) * sold - factor * weights[0]
    return (1 - cost) * cash - bought


def bisected(before, weights, cost):
    """The factor by bisection of the cash identity, which falls as the factor rises."""
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        enough = cash_gap(middle, before, weights, cost) > 0
        low, high = (middle, high) if enough else (low, middle)
    return (low + high) / 2


@pytest.mark.parametrize("cost", COSTS)
def test_exact_factor_is_the_root_of_the_cash_identity(cost):
    before, weights = pairs()
    found = np.asarray(exact_factor(before, weights, cost))
    rows = list(zip(before, weights, strict=True))
    expected = [bisected(*row, cost) for row in rows]
    # Sums of ten numbers of size 1, divided by at least 0.9: some 20 roundings.
    np.testing.assert_allclose(found, expected, atol=20 * np.finfo(float).eps)
    gaps = [cash_gap(b, *row, cost) for b, row in zip(found, rows, strict=True)]
    np.testing.assert_allclose(gaps, 0, atol=20 * np.finfo(float).eps)


@pytest.mark.parametrize("cost", COSTS)
def test_exact_factor_in_32_bits(cost):
    before, weights = (np.float32(w) for w in pairs())
    found = exact_factor(before, weights, cost)
    assert found.dtype == np.float32
    exact = exact_factor(np.float64(before), np.float64(weights), cost)
    np.testing.assert_allclose(found, exact, atol=20 * np.finfo(np.float32).eps)


@pytest.mark.parametrize("cost", COSTS)
def test_first_order_differs_by_the_square_of_the_cost(cost):
    before, weights = pairs()
    exact = exact_factor(before, weights, cost)
    first = first_order_factor(before, weights, cost)
    difference = np.asarray(exact) - np.asarray(first)
    assert np.abs(difference).max() <= cost**2 + 1e-15
    # From one asset into another: everything is sold, then everything bought.
    swap = exact_factor(np.eye(3)[1], np.eye(3)[2], cost)
    np.testing.assert_allclose(swap, (1 - cost) ** 2, rtol=1e-15)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_nothing_is_paid_where_nothing_is_traded(dtype):
    weights = simplex(50).astype(dtype)
    for cost in COSTS:
        exact = exact_factor(weights, weights, cost)
        np.testing.assert_array_equal(exact, 1)
        first = first_order_factor(weights, weights, cost)
        np.testing.assert_array_equal(first, 1)


@pytest.mark.parametrize("factor", [first_order_factor, exact_factor])
def test_gradients_agree_with_differences(factor):
    before, weights = (jnp.asarray(w[:3]) for w in pairs(5))
    weights = 0.9 * weights + 0.1 * 0.1  # away from the kinks at 0
    test_util.check_grads(
        lambda w: jnp.log(factor(before, w, 0.01)).sum(), (weights,), 1, ["rev"]
    )


def test_gradient_is_finite_where_nothing_is_traded():
    weights = jnp.eye(4)

    def value(w):
        return first_order_factor(weights, w, 0.002).sum()

    np.testing.assert_array_equal(jax.grad(value)(weights), 0)
    exact = jax.grad(lambda w: exact_factor(weights, w, 0.002).sum())
    assert np.isfinite(exact(weights)).all()


@pytest.mark.parametrize("cost", [-0.001, 0.2, float("nan"), "0.002"])
def test_bad_costs_get_one_sentence(cost):
    with pytest.raises(checks.InputError, match="Expected cost to be a finite number"):
        portfolio.exact_factor(jnp.eye(2), jnp.eye(2), cost)


def test_drift_follows_the_values_of_holdings():
    weights, growth = simplex(20), np.random.default_rng(3).uniform(0.5, 2, (30, 10))
    money = weights * growth
    expected = money / money.sum(axis=1)[:, None]
    np.testing.assert_allclose(portfolio.drifted(weights, growth), expected, rtol=1e-15)

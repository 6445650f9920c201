"""Back-tests against a trader who counts money and shares; metrics against NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_pfl import portfolio
from tests.portfolio import test_costs

COST = 0.002
DAYS, ASSETS = 40, 5
backtest = jax.jit(portfolio.backtest, static_argnames="is_exact")
summary = jax.jit(portfolio.summary)


def problem(seed=0):
    rng = np.random.default_rng(seed)
    weights = rng.dirichlet(np.full(ASSETS + 1, 0.5), DAYS)
    growth = np.exp(rng.normal(0, 0.03, (DAYS, ASSETS + 1)))
    growth[:, 0] = 1
    return weights, growth


def traded(weights, growth, cost):
    """Values by a trader with an account of money: fees are paid in cash."""
    holdings, values = np.eye(ASSETS + 1)[0], [1.0]
    for target, relative in zip(weights, growth, strict=True):
        total = holdings.sum()
        factor = test_costs.bisected(holdings / total, target, cost)
        after = factor * total * target
        sold = np.maximum(holdings - after, 0)[1:].sum()
        bought = np.maximum(after - holdings, 0)[1:].sum()
        cash = holdings[0] + (1 - cost) * sold - bought / (1 - cost)
        np.testing.assert_allclose(cash, after[0], atol=1e-14)
        holdings = after * relative
        values.append(holdings.sum())
    return np.array(values)


@pytest.mark.parametrize("cost", [0.0, COST, 0.05])
def test_values_are_those_of_a_trader(cost):
    weights, growth = problem()
    found = backtest(weights, growth, np.ones(DAYS), cost)
    # 40 days of some 20 roundings each.
    np.testing.assert_allclose(found.values, traded(weights, growth, cost), rtol=2e-13)


@pytest.mark.parametrize("is_exact", [True, False])
def test_rewards_telescope_to_the_final_value(is_exact):
    weights, growth = problem(1)
    mask = np.ones(DAYS)
    found = backtest(weights, growth, mask, COST, is_exact=is_exact)
    assert found.values[0] == 1
    rewards = np.log1p(np.asarray(found.returns))
    np.testing.assert_allclose(np.exp(rewards.sum()), found.values[-1], rtol=1e-13)
    np.testing.assert_allclose(np.diff(found.values), found.values[:-1] * found.returns)


def test_first_order_costs_are_close_to_exact_ones():
    weights, growth = problem(2)
    mask = np.ones(DAYS)
    exact = backtest(weights, growth, mask, COST).values
    first = backtest(weights, growth, mask, COST, is_exact=False).values
    assert 0 < np.abs(first / exact - 1).max() <= DAYS * COST**2 * 1.01


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("is_exact", [True, False])
def test_cash_returns_exactly_nothing(is_exact, dtype):
    growth = problem()[1].astype(dtype)
    weights = np.zeros_like(growth)
    weights[:, 0] = 1
    mask = np.ones(DAYS, dtype)
    found = backtest(weights, growth, mask, COST, is_exact=is_exact)
    np.testing.assert_array_equal(found.returns, 0)
    np.testing.assert_array_equal(found.values, 1)
    np.testing.assert_array_equal(found.turnover, 0)
    for name, value in summary(found, mask).items():
        assert value == 0, name


@pytest.mark.parametrize("rubbish", [0.0, np.nan, 1e38])
def test_padding_contributes_nothing(rubbish):
    weights, growth = problem(3)
    count = 25
    mask = np.arange(DAYS) < count
    wrong_weights, wrong_growth = weights.copy(), growth.copy()
    wrong_weights[count:], wrong_growth[count:] = rubbish, rubbish
    found = backtest(wrong_weights, wrong_growth, mask, COST)
    short = backtest(weights[:count], growth[:count], mask[:count], COST)
    np.testing.assert_array_equal(found.returns[:count], short.returns)
    np.testing.assert_array_equal(found.values[: count + 1], short.values)
    np.testing.assert_array_equal(found.values[count:], short.values[-1])
    np.testing.assert_array_equal(found.turnover[count:], 0)
    expected = summary(short, mask[:count])
    for name, value in summary(found, mask).items():
        np.testing.assert_allclose(value, expected[name], rtol=1e-12, err_msg=name)
    held = np.asarray(jax.jit(portfolio.buy_and_hold_weights)(wrong_growth))
    assert np.isfinite(held[:count]).all()


def test_final_value_has_finite_gradients_with_padding():
    weights, growth = problem(4)
    growth[30:] = np.nan
    mask = np.arange(DAYS) < 30

    def final(weights):
        return backtest(weights, growth, mask, COST).values[-1]

    gradient = np.asarray(jax.jit(jax.grad(final))(weights))
    assert np.isfinite(gradient).all()
    np.testing.assert_array_equal(gradient[30:], 0)


def test_holding_trades_once_and_uniform_rebalancing_every_day():
    growth = problem(5)[1]
    mask = np.ones(DAYS)
    held = portfolio.buy_and_hold_weights(growth)
    found = backtest(held, growth, mask, COST)
    np.testing.assert_allclose(found.turnover[0], 1)
    np.testing.assert_allclose(found.turnover[1:], 0, atol=1e-14)
    # Fees leave (1 - c), which grows as the mean of the assets does.
    mean = np.cumprod(growth[:, 1:], axis=0).mean(axis=1)
    np.testing.assert_allclose(found.values[1:], (1 - COST) * mean, rtol=1e-13)
    uniform = portfolio.uniform_weights(growth)
    np.testing.assert_allclose(uniform, [[0] + [1 / ASSETS] * ASSETS] * DAYS)
    assert backtest(uniform, growth, mask, COST).turnover[1:].min() > 0


def test_metrics_against_numpy():
    rng = np.random.default_rng(6)
    returns = rng.normal(0.0005, 0.01, 300)
    mask = np.ones(300)
    values = np.cumprod(np.append(1, 1 + returns))
    annual = values[-1] ** (252 / 300) - 1
    np.testing.assert_allclose(
        portfolio.annualized_return(returns, mask), annual, rtol=1e-11
    )
    ratio = returns.mean() / returns.std() * np.sqrt(252)
    np.testing.assert_allclose(portfolio.sharpe_ratio(returns, mask), ratio, rtol=1e-11)
    falls = [1 - values[t] / values[: t + 1].max() for t in range(301)]
    np.testing.assert_allclose(portfolio.max_drawdown(values), max(falls), rtol=1e-11)
    year = np.full(252, 1.2 ** (1 / 252) - 1)
    found = portfolio.annualized_return(year, np.ones(252))
    np.testing.assert_allclose(found, 0.2, rtol=1e-11)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_ratio_of_constant_returns_is_zero(dtype):
    for value in (0.0, 1e-4, -0.02):
        returns = (1 + np.full(252, value, dtype)) - dtype(1)
        assert portfolio.sharpe_ratio(returns, np.ones(252)) == 0


def test_a_lost_fortune_has_finite_metrics():
    returns, mask = jnp.asarray([0.1, -1.0, 0.2]), np.ones(3)
    assert portfolio.annualized_return(returns, mask) == -1
    values = jnp.cumprod(jnp.append(1.0, 1 + returns))
    assert portfolio.max_drawdown(values) == 1


@pytest.mark.parametrize("days", [5, 400])
def test_drawdown_of_a_value_that_is_lost_is_not_known(days):
    values = np.ones((300, days), np.float32)
    values[7, days // 2] = np.nan
    found = np.asarray(jax.jit(portfolio.max_drawdown)(values))
    np.testing.assert_array_equal(np.isnan(found), np.arange(300) == 7)


def test_no_day_has_no_metrics():
    weights, growth = problem()
    mask = np.zeros(DAYS)
    found = summary(backtest(weights, growth, mask, COST), mask)
    assert found.pop("max_drawdown") == 0
    assert all(np.isnan(value) for value in found.values())

"""Back-tests with trading costs, their metrics, and two strategies without learning.

Buying and selling assets costs the share c of their value. With the drifted weights w'
and the new ones w, the factor b of the portfolio's value solves (Jiang, Xu and Liang)

    b = [1 - c w'_0 - (2c - c^2) sum_{i>=1} max(w'_i - b w_i, 0)] / (1 - c w_0),

equivalently, the remaining cash pays for the purchases:

    (1 - c) [w'_0 + (1 - c) sell - b w_0] = buy,
    sell = sum_{i>=1} max(w'_i - b w_i, 0),  buy = sum_{i>=1} max(b w_i - w'_i, 0).

To first order in c, `b = 1 - c sum_{i>=1} |w'_i - w_i|`; the difference is of order
c^2. (A printed version has b = c sum |w'_i - w_i|, which would leave at most 2c of
the money.)

In metrics a year has 252 trading days, the risk-free rate is 0, and padding contributes
zero.
"""

import math

import jax
import jax.numpy as jnp
from jax import lax

from fedjax_pfl.core import checks, struct

__all__ = [
    "MAX_COST",
    "YEAR_DAYS",
    "Backtest",
    "annualized_return",
    "backtest",
    "buy_and_hold_weights",
    "drifted",
    "exact_factor",
    "first_order_factor",
    "max_drawdown",
    "mean_turnover",
    "sharpe_ratio",
    "summary",
    "turnover",
    "uniform_weights",
]

YEAR_DAYS = 252
MAX_COST = 0.1
"""Largest cost rate c that functions accept; typical rates are 0.0005 to 0.005."""


def drifted(weights: jax.Array, growth: jax.Array) -> jax.Array:
    """Returns the weights after prices have moved and before anything is traded.

    Args:
      weights: `[..., m+1]` on the simplex.
      growth: `[..., m+1]` relative prices, positive.

    Returns:
      `[..., m+1]` on the simplex.
    """
    grown = weights * growth
    return grown / grown.sum(axis=-1, keepdims=True)


def turnover(before: jax.Array, weights: jax.Array) -> jax.Array:
    """Sums the shares of the portfolio that are bought or sold, cash not counted.

    Args:
      before: `[..., m+1]` drifted weights.
      weights: `[..., m+1]` new weights.

    Returns:
      `[...]` in [0, 2]. Its gradient at equal weights is 0.
    """
    traded = (before - weights)[..., 1:]
    return (traded * jnp.sign(traded)).sum(axis=-1)  # slope 0 at 0, unlike `abs`


def first_order_factor(
    before: jax.Array, weights: jax.Array, cost: jax.Array | float
) -> jax.Array:
    """Returns the factor `1 - c * turnover`, for training.

    Args:
      before: `[..., m+1]` drifted weights.
      weights: `[..., m+1]` new weights.
      cost: `[]` rate c in [0, `MAX_COST`].

    Returns:
      `[...]` in [1 - 2c, 1]; exactly 1 without a trade.

    Raises:
      InputError: if a concrete rate is out of range.
    """
    checks.number("cost", cost, at_least=0, at_most=MAX_COST)
    return 1 - cost * turnover(before, weights)


def exact_factor(
    before: jax.Array, weights: jax.Array, cost: jax.Array | float
) -> jax.Array:
    """Solves the cash identity for the factor, for back-tests.

    Iterates the equation of the module's docstring from the first-order value. Its
    right side is a contraction of b with constant `2c - c^2` at most, 0.004 at c =
    0.002 and 0.19 at the largest allowed rate, for which the number of iterations
    reaches the resolution of the dtype: 7 in 32 bits, 19 in 64.

    Args:
      before: `[..., m+1]` drifted weights.
      weights: `[..., m+1]` new weights.
      cost: `[]` rate c in [0, `MAX_COST`]. Larger traced ones converge more slowly, and
        not from 1 on.

    Returns:
      `[...]` in (0, 1]; exactly 1 without a trade.

    Raises:
      InputError: if a concrete rate is out of range.
    """
    start = first_order_factor(before, weights, cost)
    is_idle = turnover(before, weights) == 0
    # b = [1 - c w'_0 - (2c - c^2) sum max(w'_i - b w_i, 0)] / (1 - c w_0).
    contraction = 2 * cost - cost**2
    left = 1 - cost * before[..., 0]

    def iterate(_: jax.Array, factor: jax.Array) -> jax.Array:
        sold = before - factor[..., None] * weights
        sold = jnp.maximum(sold, 0)[..., 1:].sum(axis=-1)
        return (left - contraction * sold) / (1 - cost * weights[..., 0])

    # The error of the start is at most c^2; this many contractions bring it below eps.
    gain = jnp.finfo(start.dtype).eps / MAX_COST**2
    count = math.ceil(math.log(gain) / math.log(2 * MAX_COST - MAX_COST**2))
    factor = lax.fori_loop(0, count, iterate, start)
    # Compiled quotients of equal numbers need not be 1.
    return jnp.where(is_idle, jnp.ones_like(factor), factor)


@struct.pytree_dataclass
class Backtest:
    """Course of one portfolio, starting with cash, over B successive decisions.

    Attributes:
      returns: `[B]` daily simple returns, costs included; 0 for padding.
      values: `[B+1]` products of `1 + returns`: 1, then the portfolio's value at the
        close that follows each decision. Padding repeats the last value.
      turnover: `[B]` shares that each decision bought or sold; 0 for padding.
    """

    returns: jax.Array
    values: jax.Array
    turnover: jax.Array


def backtest(
    weights: jax.Array,
    growth: jax.Array,
    mask: jax.Array,
    cost: jax.Array | float,
    *,
    is_exact: bool = True,
) -> Backtest:
    """Trades successive decisions, beginning with cash.

    Decision i costs the factor b_i of the value, and then the portfolio grows: `1 +
    returns[i] = b_i (growth[i] . weights[i])`. The final sale of all assets is
    free here.

    Args:
      weights: `[B, m+1]` on the simplex, in order of time.
      growth: `[B, m+1]` relative prices that each decision earns; entry 0 is 1.
      mask: `[B]` whether a row is a decision; padding is at the end and contributes
        zero, whatever its rows hold.
      cost: `[]` rate c in [0, `MAX_COST`].
      is_exact: use the exact cost factor instead of the first-order one.

    Returns:
      The course. A portfolio of cash returns exactly 0.

    Raises:
      InputError: if a concrete rate is out of range.
    """
    real = mask > 0
    cash = jnp.zeros_like(weights[:1]).at[:, 0].set(1)
    # Padding may hold anything; cash that does not grow earns nothing.
    weights = jnp.where(real[:, None], weights, cash)
    growth = jnp.where(real[:, None], growth, 1)
    # Before the first decision everything is cash.
    holdings = drifted(weights[:-1], growth[:-1])
    holdings = jnp.concatenate([cash, holdings])
    factor_of = exact_factor if is_exact else first_order_factor
    factor = factor_of(holdings, weights, cost) * (weights * growth).sum(axis=-1)
    factor = jnp.where(real, factor, 1)
    return Backtest(
        returns=factor - 1,
        values=jnp.concatenate([jnp.ones_like(factor[:1]), jnp.cumprod(factor)]),
        turnover=jnp.where(real, turnover(holdings, weights), 0),
    )


def uniform_weights(growth: jax.Array) -> jax.Array:
    """Returns the weights of uniform rebalancing: equal shares every day, no cash.

    Args:
      growth: `[B, m+1]` relative prices; only the shape counts.

    Returns:
      `[B, m+1]` weights.
    """
    share = jnp.full_like(growth, 1 / (growth.shape[-1] - 1))
    return share.at[..., 0].set(0)


def buy_and_hold_weights(growth: jax.Array) -> jax.Array:
    """Returns weights that are uniform on the first day and never traded again.

    Args:
      growth: `[B, m+1]` relative prices. Rows that are not positive, such as padding,
        count as 1.

    Returns:
      `[B, m+1]` weights: the drifted ones of the day before.
    """
    growth = jnp.where(growth > 0, growth, 1)

    def hold(weights: jax.Array, row: jax.Array) -> tuple[jax.Array, jax.Array]:
        return drifted(weights, row), weights

    return lax.scan(hold, uniform_weights(growth[0]), growth)[1]


def annualized_return(returns: jax.Array, mask: jax.Array) -> jax.Array:
    """Annualizes the geometric return, `(P_end / P_start)^(252 / N) - 1`.

    Args:
      returns: `[..., B]` daily simple returns, at least -1.
      mask: `[..., B]` whether a day counts; N days do.

    Returns:
      `[...]` at least -1, exactly 0 where every return is; NaN without a day. Few days
      of large returns can overflow to infinity.
    """
    returns, days = _select(returns, mask)
    return jnp.expm1(jnp.log1p(returns).sum(axis=-1) * YEAR_DAYS / days)


def sharpe_ratio(returns: jax.Array, mask: jax.Array) -> jax.Array:
    """Computes the annualized Sharpe ratio, `mean / std * sqrt(252)`.

    Args:
      returns: `[..., B]` daily simple returns.
      mask: `[..., B]` whether a day counts; N days do.

    Returns:
      `[...]` with the standard deviation of N (`ddof=0`). It is 0, not infinite, where
      the standard deviation is at most 4 eps times the largest `1 + return`, which is
      what rounding makes of a constant: cash has ratio 0. NaN without a day.
    """
    returns, days = _select(returns, mask)
    mean = returns.sum(axis=-1) / days
    deviation, _ = _select(returns - mean[..., None], mask)
    std = jnp.sqrt((deviation**2).sum(axis=-1) / days)
    # Rounding gives a constant return a deviation of a few eps of the values.
    largest = jnp.abs(1 + returns).max(axis=-1)
    varies = std > 4 * jnp.finfo(returns.dtype).eps * largest
    ratio = mean / jnp.where(varies, std, 1) * math.sqrt(YEAR_DAYS)
    return jnp.where(varies | jnp.isnan(mean), ratio, 0)


def max_drawdown(values: jax.Array) -> jax.Array:
    """Returns the largest relative fall of the value below an earlier one.

    Args:
      values: `[..., B+1]` positive values; padding repeats the last one.

    Returns:
      `[...]` in [0, 1]; NaN if a value is.
    """
    highest = jax.lax.cummax(values, axis=values.ndim - 1)
    largest = (1 - values / highest).max(axis=-1)
    # Restored by hand, because maxima on a CPU ignore NaN (docs/platforms.md).
    return jnp.where(jnp.isnan(values).any(axis=-1), jnp.nan, largest)


def mean_turnover(turnover: jax.Array, mask: jax.Array) -> jax.Array:
    """Averages the share that is bought or sold per day.

    Args:
      turnover: `[..., B]`.
      mask: `[..., B]` whether a day counts.

    Returns:
      `[...]` in [0, 2]; NaN without a day.
    """
    turnover, days = _select(turnover, mask)
    return turnover.sum(axis=-1) / days


def summary(course: Backtest, mask: jax.Array) -> dict[str, jax.Array]:
    """Computes all metrics of one back-test.

    Args:
      course: result of `backtest`.
      mask: `[B]` whether a day counts.

    Returns:
      `[]` by name: `annualized_return`, `sharpe`, `max_drawdown`, `turnover`.
    """
    return {
        "annualized_return": annualized_return(course.returns, mask),
        "sharpe": sharpe_ratio(course.returns, mask),
        "max_drawdown": max_drawdown(course.values),
        "turnover": mean_turnover(course.turnover, mask),
    }


def _select(values: jax.Array, mask: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Returns the values `[..., B]` with 0 for padding, and the number of days."""
    real = mask > 0
    return jnp.where(real, values, 0), real.sum(axis=-1).astype(values.dtype)

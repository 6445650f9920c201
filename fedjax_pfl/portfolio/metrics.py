"""Performance metrics of a back-test; padding contributes nothing.

A year has 252 trading days, and the risk-free rate is 0.
"""

import math

import jax
import jax.numpy as jnp

from fedjax_pfl.portfolio.backtesting import Backtest

__all__ = [
    "YEAR_DAYS",
    "annualized_return",
    "max_drawdown",
    "mean_turnover",
    "sharpe_ratio",
    "summary",
]

YEAR_DAYS = 252


def annualized_return(returns: jax.Array, mask: jax.Array) -> jax.Array:
    """Annualizes the geometric return, `(P_end / P_start)^(252 / N) - 1`.

    Args:
      returns: `[..., B]` daily simple returns, at least -1.
      mask: `[..., B]` whether a day counts; N of them do.

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
      mask: `[..., B]` whether a day counts; N of them do.

    Returns:
      `[...]` with the standard deviation of N (`ddof=0`). It is 0, not infinite, where
      the standard deviation is at most 4 eps times the largest `1 + return`, which is
      what rounding makes of a constant: cash has ratio 0. NaN without a day.
    """
    returns, days = _select(returns, mask)
    mean = returns.sum(axis=-1) / days
    deviation, _ = _select(returns - mean[..., None], mask)
    std = jnp.sqrt((deviation**2).sum(axis=-1) / days)
    largest = jnp.abs(1 + returns).max(axis=-1)
    varies = std > 4 * jnp.finfo(returns.dtype).eps * largest
    ratio = mean / jnp.where(varies, std, 1) * math.sqrt(YEAR_DAYS)
    return jnp.where(varies | jnp.isnan(mean), ratio, 0)


def max_drawdown(values: jax.Array) -> jax.Array:
    """Returns the largest relative fall of the value below an earlier one.

    Args:
      values: `[..., B+1]` positive values; padding repeats the last one.

    Returns:
      `[...]` in [0, 1]; NaN where a value is.
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

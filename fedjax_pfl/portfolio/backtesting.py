"""Back-tests with trading costs, and two strategies that need no learning."""

import jax
import jax.numpy as jnp
from jax import lax

from fedjax_pfl.core import struct
from fedjax_pfl.portfolio import costs

__all__ = ["Backtest", "backtest", "buy_and_hold_weights", "uniform_weights"]


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
    returns[i] = b_i (growth[i] . weights[i])`. Selling everything in the end costs
    nothing here.

    Args:
      weights: `[B, m+1]` on the simplex, in order of time.
      growth: `[B, m+1]` relative prices that each decision earns; entry 0 is 1.
      mask: `[B]` whether a row is a decision; padding is at the end and contributes
        nothing, whatever its rows hold.
      cost: `[]` rate c in [0, `costs.MAX_COST`].
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
    before = costs.drifted(weights[:-1], growth[:-1])
    before = jnp.concatenate([cash, before])
    factor_of = costs.exact_factor if is_exact else costs.first_order_factor
    factor = factor_of(before, weights, cost) * (weights * growth).sum(axis=-1)
    factor = jnp.where(real, factor, 1)
    return Backtest(
        returns=factor - 1,
        values=jnp.concatenate([jnp.ones_like(factor[:1]), jnp.cumprod(factor)]),
        turnover=jnp.where(real, costs.turnover(before, weights), 0),
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
        return costs.drifted(weights, row), weights

    return lax.scan(hold, uniform_weights(growth[0]), growth)[1]

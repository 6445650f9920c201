"""Costs of rebalancing: the factor by which trading shrinks a portfolio's value.

Buying and selling assets costs the share c of their value. With the drifted weights w'
and the new ones w, the factor b of the portfolio's value solves (Jiang, Xu and Liang)

    b = [1 - c w'_0 - (2c - c^2) sum_{i>=1} max(w'_i - b w_i, 0)] / (1 - c w_0),

equivalently, the remaining cash pays for the purchases:

    (1 - c) [w'_0 + (1 - c) sell - b w_0] = buy,
    sell = sum_{i>=1} max(w'_i - b w_i, 0),  buy = sum_{i>=1} max(b w_i - w'_i, 0).

To first order in c, `b = 1 - c sum_{i>=1} |w'_i - w_i|`; the difference is of order
c^2. (A printed version has b = c sum |w'_i - w_i|, which would leave at most 2c of
the money.)
"""

import math

import jax
import jax.numpy as jnp
from jax import lax

from fedjax_pfl.core import checks

__all__ = [
    "MAX_COST",
    "drifted",
    "exact_factor",
    "first_order_factor",
    "turnover",
]

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
      `[...]` in [1 - 2c, 1]; exactly 1 where nothing is traded.

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
      `[...]` in (0, 1]; exactly 1 where nothing is traded.

    Raises:
      InputError: if a concrete rate is out of range.
    """
    start = first_order_factor(before, weights, cost)
    is_idle = turnover(before, weights) == 0
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

"""Rows of any finite size, brought to lengths whose squares float32 can hold."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from fedjax_pfl import struct

__all__ = ["Lengths", "magnitudes", "measure", "median", "precision"]

_HUGE = 2.0**50  # in multiples of the median row; its square is far from overflow


def median(values: jax.Array, p: jax.Array) -> jax.Array:
    """Lower median of `[K]` under the probabilities p; `inf` if there are none."""
    mass = jnp.where(values[None, :] <= values[:, None], p[None, :], 0).sum(axis=1)
    half = (1 - p.shape[0] * jnp.finfo(p.dtype).eps) / 2  # less the sum's rounding
    return jnp.where((p > 0) & (mass >= half), values, jnp.inf).min()


def magnitudes(matrix: jax.Array) -> jax.Array:
    """Largest absolute values `[K]` of the rows of `[K, D]`; NaN if there is one.

    Two plain reductions, since a CPU would write all absolute values to memory first.
    """
    return jnp.maximum(matrix.max(axis=1), -matrix.min(axis=1))


def _norms(matrix: jax.Array, largest: jax.Array, divisor: jax.Array) -> jax.Array:
    """Norms `[K]` of rows over their divisors, which only odd sizes need inside."""
    square = jnp.square(matrix).sum(axis=1)
    limits = jnp.finfo(matrix.dtype)
    exact = jnp.isfinite(square) & (square > limits.tiny / limits.eps**2)

    def divided() -> jax.Array:
        return jnp.sqrt(jnp.square(matrix / divisor[:, None]).sum(axis=1))

    ordinary = (exact | (largest == 0)).all()
    return lax.cond(ordinary, lambda: jnp.sqrt(square) / divisor, divided)


def precision(dtype: Any) -> float:
    """What rounding leaves of a dimensionless number of order one."""
    return 1e-10 if dtype == jnp.float64 else 1e-6


@struct.pytree_dataclass
class Lengths:
    """How rows become rows of about unit size.

    Attributes:
      valid: `bool[K]` rows that take part; the others become zeros.
      scale: `[]` a power of two, the unit of the result.
      divisor: `[K]` the scale, or more for a row that would overflow.
      factor: `[K]` 1, or less for a row that is shortened.
      norm: `[K]` lengths of the result.
    """

    valid: jax.Array
    scale: jax.Array
    divisor: jax.Array
    factor: jax.Array
    norm: jax.Array

    @property
    def shortened(self) -> jax.Array:
        """Which rows `bool[K]` count as less long than they are."""
        return self.factor < 1

    def rows(self, matrix: jax.Array, center: jax.Array | None = None) -> jax.Array:
        """The rows `[K, D]`, less a center `[D]` if there is one, in one pass."""
        found = matrix / self.divisor[:, None] * self.factor[:, None]
        if center is not None:
            found = found - center[None]
        return jnp.where(self.valid[:, None], found, 0)


def measure(matrix: jax.Array, valid: jax.Array, p: jax.Array, rho: Any = 0) -> Lengths:
    """Measures rows, so that no square overflows and none hides the others.

    A row that is far longer than the median row and rho counts as that long: as an
    outlier among rows of ordinary size it then is as far away as numbers can tell.

    Args:
      matrix: `[K, D]`; rows that take no part may hold anything.
      valid: `bool[K]` rows that take part, which are finite.
      p: `[K]` their probabilities, 0 for the others.
      rho: `[]` a length that is no outlier's.

    Returns:
      The lengths.
    """
    rho = jnp.asarray(rho, matrix.dtype)
    largest = jnp.where(valid, magnitudes(matrix), 0)
    exponent = jnp.frexp(jnp.maximum(median(largest, p), rho))[1] - 1
    smallest = jnp.finfo(matrix.dtype).tiny
    scale = jnp.maximum(jnp.ldexp(jnp.ones((), matrix.dtype), exponent), smallest)
    divisor = jnp.maximum(scale, largest / _HUGE)
    norm = jnp.where(valid, _norms(matrix, largest, divisor), 0)
    limit = jnp.maximum(median(norm, p), rho / scale) / precision(matrix.dtype)
    long = norm > limit
    factor = jnp.where(long, limit / jnp.where(long, norm, 1), 1)
    return Lengths(
        valid=valid,
        scale=scale,
        divisor=divisor,
        factor=factor,
        norm=factor * norm,
    )

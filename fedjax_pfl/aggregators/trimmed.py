"""Means of every coordinate without its outermost values.

With n rows in use, up to f malicious, the trimmed mean drops the f smallest
and the f largest values of a coordinate; MeaMed keeps the n - f values that are nearest
to the median, the midpoint of the two middle values. Both need 2 f < n (`sorting` has
the search).

References: Yin, Chen, Ramchandran, Bartlett, "Byzantine-Robust Distributed Learning:
Towards Optimal Statistical Rates"; Xie, Koyejo, Gupta, "Generalized Byzantine-tolerant
SGD".
"""

from typing import ClassVar

import jax
import jax.numpy as jnp
from jax import lax

from fedjax_pfl.aggregators import base
from fedjax_pfl.core import struct
from fedjax_pfl.numerics import order_statistics, sorting

__all__ = ["MeaMed", "TrimmedMean", "nearest_to_median"]


def nearest_to_median(
    matrix: jax.Array, valid: jax.Array, count: jax.Array
) -> jax.Array:
    """Returns the mean `[D]` of the `count` values nearest to each median."""
    # A branch, else selection would be compiled into everything that reads it.
    median = lax.cond(
        valid.any(),
        lambda: order_statistics.midpoint(*order_statistics.middle_rows(matrix, valid)),
        lambda: jnp.zeros_like(matrix[0]),
    )
    return sorting.mean_of_nearest(matrix, valid, median, count)


@struct.pytree_dataclass
class TrimmedMean(base.Counting):
    """Mean per coordinate without the f smallest and the f largest values.

    Rows of weight 0 and rows with a non-finite value take no part and do not count
    among the n rows; if none is left, the reference is returned. Other weights do not
    matter. Bounded by honest values while at most f rows are not honest.

    Before anything is traced, a number f with 2 f + 1 > K is refused; a traced one, or
    one that is too large because messages are lost later, counts as the largest that
    leaves a value: the median.

    Attributes:
      num_malicious: `[]` f, a whole number, or None.
      malicious_fraction: static, f as a share of the n rows, rounded; or None. Without
        either f is the largest with 2 f < n, and the result the median.

    Example:
      >>> rows, weights = jnp.array([1.0, 9.0, 2.0, 2.5, 1.5]), jnp.ones(5)
      >>> rule = TrimmedMean(num_malicious=1)
      >>> float(rule(jax.random.key(0), rows, weights, jnp.array(0.0))[0])
      2.0
    """

    chooses: ClassVar[str] = "which values are left out"

    def combine(
        self, matrix: jax.Array, valid: jax.Array, weights: jax.Array, center: jax.Array
    ) -> tuple[jax.Array, None]:
        """Averages what lies between the outermost values of every coordinate."""
        n = valid.sum(dtype=jnp.int32)
        f = self.minority(n, len(valid))
        # Rows left out come last in every column, beyond all ranks that are averaged.
        rows = jnp.where(valid[:, None], matrix, jnp.inf)
        return sorting.mean_of_ranks(rows, f, jnp.maximum(n, 1) - f), None


@struct.pytree_dataclass
class MeaMed(base.Counting):
    """Mean per coordinate of the n - f values that are nearest to the median.

    Of two values at one distance the lower one is taken. Rows of weight 0 and rows with
    a non-finite value take no part and do not count among the n rows; if none is left,
    the reference is returned. Other weights do not matter.

    Before anything is traced, a number f with 2 f + 1 > K is refused; a traced one, or
    one that is too large because messages are lost later, counts as the largest with
    2 f < n.

    Attributes:
      num_malicious: `[]` f, a whole number, or None.
      malicious_fraction: static, f as a share of the n rows, rounded; or None. Without
        either f is the largest with 2 f < n.

    Example:
      >>> rows, weights = jnp.array([1.0, 9.0, 2.0, 2.5, 1.5]), jnp.ones(5)
      >>> rule = MeaMed(num_malicious=1)
      >>> float(rule(jax.random.key(0), rows, weights, jnp.array(0.0))[0])
      1.75
    """

    no_derivative: ClassVar[str] = "finds the nearest values by their bits"

    def combine(
        self, matrix: jax.Array, valid: jax.Array, weights: jax.Array, center: jax.Array
    ) -> tuple[jax.Array, None]:
        """Averages the values near the median of every coordinate."""
        n = valid.sum(dtype=jnp.int32)
        # One value at least, also without rows: the reference is returned then.
        count = jnp.maximum(n - self.minority(n, len(valid)), 1)
        return nearest_to_median(matrix, valid, count), None

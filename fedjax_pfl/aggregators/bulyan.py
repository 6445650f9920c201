"""Bulyan: a selection by Krum, then per coordinate a mean around the median.

With n rows in use, up to f malicious, theta = n - 2 f rows are selected: the row of
lowest Krum score, then the same among the remaining n' rows, with scores of
`max(1, n' - f - 2)` neighbors. Rows that tie are selected together, and
theta counts them. Of every coordinate the theta - 2 f values that are nearest to the
median of the selected rows are averaged.

Distances come from one Gram matrix (`pairwise_distances`); every row's are sorted once,
so that a selection after the first costs K^2 comparisons without a sort.

Reference: El Mhamdi, Guerraoui, Rouault, "The Hidden Vulnerability of Distributed
Learning in Byzantium". Their guarantee needs 4 f + 3 <= n.
"""

from typing import ClassVar

import jax
import jax.numpy as jnp
from jax import lax

from fedjax_pfl.aggregators import base, trimmed
from fedjax_pfl.core import struct
from fedjax_pfl.numerics import pairwise_distances

__all__ = ["Bulyan", "BulyanInfo"]


@struct.pytree_dataclass
class BulyanInfo:
    """Report of a round's selection.

    Attributes:
      selected: `bool[K]` rows that were selected by their scores.
    """

    selected: jax.Array


def _one_by_one(
    distance: jax.Array, valid: jax.Array, f: jax.Array, count: jax.Array
) -> jax.Array:
    """Selects `count` rows by Krum as `bool[K]`, each among the remaining, or ties."""
    # Sorted once: every selection after the first costs K^2 comparisons.
    order = jnp.argsort(distance, axis=1)
    near = jnp.take_along_axis(distance, order, axis=1)

    last = valid.sum(dtype=jnp.int32) - count

    def select(_: jax.Array, remaining: jax.Array) -> jax.Array:
        is_other = remaining[order] & jnp.isfinite(near)
        number = remaining.sum(dtype=jnp.int32)
        # The max(1, n' - f - 2) nearest of the remaining n' rows.
        is_near = jnp.cumsum(is_other, axis=1) <= jnp.maximum(number - f - 2, 1)
        score = jnp.where(is_other & is_near, near, 0).sum(axis=1)
        best = pairwise_distances.smallest(jnp.where(remaining, score, jnp.inf), 1)
        # Tied rows leave together; once theta rows are selected the rest stays.
        return remaining & (~best | (number <= last))

    return valid & ~lax.fori_loop(0, count, select, valid)


@struct.pytree_dataclass
class Bulyan(base.Counting):
    """Mean around the median of the rows that Krum selects one after the other.

    Rows of weight 0 and rows with a non-finite value take no part and do not count
    among the n rows; if none is left, the reference is returned. Other weights do not
    matter. Rows with tied scores are selected together, so that theta grows and no
    order of rows matters: for f <= 2 the last scores have one neighbor, and the two
    nearest rows always tie. Of two values at one distance from the median the lower one
    is averaged. Scores closer than about 1e-5 of their size in float32 tie; in them a
    row that is 1e6 times as long as the median row (1e10 in float64) counts as that
    long.

    Before anything is traced, a number f with 4 f + 3 > K is refused; a traced f, or
    one that is too large because messages are lost later, counts as the largest that
    leaves a row to be selected, and a value to be averaged.

    Attributes:
      num_malicious: `[]` f, a whole number, or None.
      malicious_fraction: static, f as a share of the n rows, rounded; or None. Without
        either f is the largest with 4 f + 3 <= n.
      one_shot: static, whether the theta rows of lowest score are selected at once.

    Example:
      >>> rows = jnp.array([1.0, 90.0, 2.0, 2.5, 1.5, 3.0, 1.25])
      >>> aggregate, info = Bulyan()(
      ...     jax.random.key(0), rows, jnp.ones(7), jnp.array(0.0)
      ... )
      >>> round(float(aggregate), 3), info.selected.tolist()[:3]
      (2.0, [False, False, True])
    """

    one_shot: bool = struct.static_field(default=False)
    factor: ClassVar[int] = 4
    margin: ClassVar[int] = 3
    no_derivative: ClassVar[str] = "finds the nearest values by their bits"
    of_pairs: ClassVar[bool] = True

    def combine(
        self, matrix: jax.Array, valid: jax.Array, weights: jax.Array, center: jax.Array
    ) -> tuple[jax.Array, BulyanInfo]:
        """Selects rows, and averages the values near their median."""
        n = valid.sum(dtype=jnp.int32)
        f = self.minority(n, len(valid))
        # theta rows by their scores, then theta - 2 f values around the median.
        theta = n - 2 * f
        _, search = pairwise_distances.search(matrix, valid, jnp.maximum(n - f - 2, 1))
        if self.one_shot:
            selected = valid & pairwise_distances.smallest(search.scores, theta)
        else:
            selected = _one_by_one(search.distance, valid, f, theta)
        count = jnp.maximum(selected.sum(dtype=jnp.int32) - 2 * f, 1)
        mean = trimmed.nearest_to_median(matrix, selected, count)
        return mean, BulyanInfo(selected=selected)

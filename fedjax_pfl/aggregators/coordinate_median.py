"""The median of every coordinate: exact, with a dynamic number of rows."""

from typing import Any

import jax
import jax.numpy as jnp

from fedjax_pfl import clients, struct, types
from fedjax_pfl.aggregators import selection

__all__ = ["CoordinateMedian"]


def _median_rows(matrix: jax.Array, valid: jax.Array) -> jax.Array:
    """Median `[D]` of the valid rows of `[K, D]`; 0 where no row is valid.

    Of the others one half counts as -inf and one half as inf, the odd one as inf, so
    that the middle stays in the middle.
    """
    rows, num_valid = valid.shape[0], valid.sum(dtype=jnp.int32)
    position = jnp.cumsum(~valid, dtype=jnp.int32)
    fill = jnp.where(position <= (rows - num_valid) // 2, -jnp.inf, jnp.inf)
    fill = jnp.where(num_valid > 0, fill, 0).astype(matrix.dtype)
    low, high = selection.middle(jnp.where(valid[:, None], matrix, fill[:, None]))
    odd = num_valid % 2 == 1
    if rows % 2:
        low = jnp.where(odd, high, low)
    else:
        high = jnp.where(odd, low, high)
    return low / 2 + high / 2  # the sum of two large values would overflow


@struct.pytree_dataclass
class CoordinateMedian:
    """Median per coordinate over the rows of positive weight, otherwise unweighted.

    With an even number of rows it is the midpoint of the two middle values. Rows of
    weight 0 and rows with a non-finite value take no part; if none is left, the
    reference is returned. Bounded by honest values as long as fewer than half of the
    rows are not honest.

    Example:
      >>> import jax
      >>> rows, weights = jax.numpy.array([1.0, 9.0, 2.0]), jax.numpy.ones(3)
      >>> aggregate, _ = CoordinateMedian()(
      ...     jax.random.key(0), rows, weights, jax.numpy.array(0.0)
      ... )
      >>> float(aggregate)
      2.0
    """

    @property
    def incremental(self) -> None:
        """None: the median of all clients needs all messages."""
        return None

    def __call__(
        self, key: types.Key, messages: Any, weights: jax.Array, reference: Any
    ) -> tuple[Any, None]:
        """Takes the median of every coordinate.

        Args:
          key: `[]` unused.
          messages: pytree of `[K, *P]` with one dtype.
          weights: `[K]`; 0 means dropped, other values do not matter.
          reference: pytree of `[*P]`, returned if no row takes part.

        Returns:
          Pytree of `[*P]`, and None.
        """
        del key
        valid = (weights > 0) & clients.finite_rows(messages, weights.shape[0])
        matrix, unravel = clients.ravel_rows(messages)
        median = unravel(_median_rows(matrix, valid))
        some = valid.any()
        return jax.tree.map(lambda m, r: jnp.where(some, m, r), median, reference), None

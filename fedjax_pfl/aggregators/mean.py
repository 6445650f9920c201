"""Means of the messages; the only rules with an incremental aggregate."""

from typing import Any

import jax
import jax.numpy as jnp

from fedjax_pfl import core
from fedjax_pfl.core import client_rows, struct

__all__ = ["Mean", "WeightedMean"]


class _Averaging(core.Aggregator):
    """A mean of messages; `incremental` is the weighting of the mean that is kept."""

    def __call__(
        self,
        key: core.Key,
        messages: core.Message,
        weights: jax.Array,
        reference: core.Message,
    ) -> tuple[Any, None]:
        """Averages rows `[K, *P]`; without rows of positive weight, the reference."""
        finite = client_rows.finite_rows(messages, weights.shape[0])
        # Weights say who takes part, and for the weighted mean also how much.
        if self.incremental == "uniform":
            weights = (weights > 0).astype(weights.dtype)
        shares = jnp.where(finite, weights, 0)
        mean = client_rows.weighted_mean(messages, shares)
        some = shares.sum() > 0
        return jax.tree.map(lambda m, r: jnp.where(some, m, r), mean, reference), None


@struct.pytree_dataclass
class Mean(_Averaging):
    """Uniform mean over the rows of positive weight, `(1/n) sum_k x_k`.

    Rows of weight 0 and rows with a non-finite value take no part; if none is left, the
    reference is returned. Not robust: one row decides the result, and a finite row of
    1e38 leaves about 1e38 / n, in which rows of ordinary size are lost to rounding.

    Example:
      >>> import jax
      >>> rows, weights = jax.numpy.array([1.0, 3.0]), jax.numpy.array([10.0, 30.0])
      >>> float(Mean()(jax.random.key(0), rows, weights, jax.numpy.array(0.0))[0])
      2.0
    """

    incremental = "uniform"


@struct.pytree_dataclass
class WeightedMean(_Averaging):
    """Mean weighted by the clients' numbers of examples, `sum_k n_k x_k / sum_k n_k`.

    Rows of weight 0 and rows with a non-finite value take no part; if none is left, the
    reference is returned. Not robust: one row decides the result, and a finite row of
    1e38 leaves about 1e38 / n, in which rows of ordinary size are lost to rounding.

    Example:
      >>> import jax
      >>> rows, weights = jax.numpy.array([1.0, 3.0]), jax.numpy.array([10.0, 30.0])
      >>> reference = jax.numpy.array(0.0)
      >>> float(WeightedMean()(jax.random.key(0), rows, weights, reference)[0])
      2.5
    """

    incremental = "weighted"

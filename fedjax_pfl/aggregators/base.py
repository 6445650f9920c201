"""Base of rules that work on a matrix with the messages as rows."""

from typing import Any, Literal

import jax
import jax.numpy as jnp

from fedjax_pfl import core
from fedjax_pfl.core import client_rows, columns

__all__ = ["MatrixRule", "Weighting", "in_use"]

Weighting = Literal["uniform", "examples"]
"""Whether rows count alike or by the weights of their uploads."""


FIXED_RADIUS = "its radius, so that they are not exact"
"""What derivatives hold fixed of a rule whose radius is a quantile."""


class MatrixRule(core.Aggregator):
    """A rule for the rows of a matrix, one per message; subclasses define `combine`."""

    # Rows of weight 0 and non-finite rows are not valid; without valid rows the result
    # is the reference. With `by_columns` each device calls `combine` with a part of the
    # columns, and sums over columns by `core.columns` alone.
    def combine(
        self, matrix: jax.Array, valid: jax.Array, weights: jax.Array, center: jax.Array
    ) -> tuple[jax.Array, Any]:
        """Combines rows `[K, D]`, where valid, to `[D]`, and reports; center `[D]`."""
        raise NotImplementedError

    def __call__(
        self,
        key: core.Key,
        messages: core.Message,
        weights: jax.Array,
        reference: core.Message,
    ) -> tuple[Any, Any]:
        """Combines messages `[K, *P]` of one dtype, and reports."""
        args = (self, key, messages, weights, reference)
        return columns.apply(_combined, *args) if self.by_columns else _combined(*args)


def _combined(
    rule: MatrixRule,
    key: core.Key,
    messages: core.Message,
    weights: jax.Array,
    reference: core.Message,
) -> tuple[Any, Any]:
    """Combines messages as one matrix."""
    matrix, center, unravel = client_rows.ravel_about(messages, reference)
    valid = (weights > 0) & in_use(messages, weights.shape[0])
    row, report = rule.combine(matrix, valid, weights, center)
    # Without a valid row the reference remains, whatever `combine` returned.
    return unravel(jnp.where(valid.any(), row, center)), report


def in_use(messages: core.Message, num_rows: int) -> jax.Array:
    """Returns `bool[K]`: which messages are finite; columns may be a part of all."""
    return columns.every(client_rows.finite_rows(messages, num_rows))

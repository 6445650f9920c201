"""Base of rules that work on a matrix with the messages as rows."""

from typing import Any, Literal

import jax
import jax.numpy as jnp

from fedjax_pfl import core
from fedjax_pfl.core import client_rows, columns

__all__ = ["MatrixRule", "Weighting", "applied", "in_use"]

Weighting = Literal["uniform", "examples"]
"""Whether rows count alike or by the weights of their uploads."""


FIXED_RADIUS = "its radius, so that they are not exact"
"""What derivatives hold fixed of a rule whose radius is a quantile."""


class MatrixRule(core.Aggregator):
    """A rule for the rows of a matrix, one per message; subclasses define `combine`.

    Rows of weight 0 and rows with a non-finite value take no part; if none is left, the
    reference is returned.

    A rule that chooses among rows or values has an attribute `chooses`, a text, which
    derivatives of trainings hold fixed and say.

    With `by_columns` several devices each call `combine` with a part of the columns,
    which it sums over by `core.columns` alone.
    """

    def combine(
        self, matrix: jax.Array, valid: jax.Array, weights: jax.Array, center: jax.Array
    ) -> tuple[jax.Array, Any]:
        """Combines rows.

        Args:
          matrix: `[K, D]`; rows that are not valid may hold anything.
          valid: `bool[K]` rows that take part.
          weights: `[K]` of all rows.
          center: `[D]` the reference, which may hold anything.

        Returns:
          `[D]`, any values if no row is valid, and a report.
        """
        raise NotImplementedError

    def __call__(
        self,
        key: core.Key,
        messages: core.Message,
        weights: jax.Array,
        reference: core.Message,
    ) -> tuple[Any, Any]:
        """Combines messages.

        Args:
          key: `[]` unused.
          messages: pytree of `[K, *P]` with one dtype.
          weights: `[K]`, at least 0; 0 means dropped.
          reference: pytree of `[*P]`, returned if no row takes part.

        Returns:
          Pytree of `[*P]`, and the rule's report.
        """
        apply = columns.apply if self.by_columns else applied
        return apply(_combined, self, key, messages, weights, reference)


def applied(rule: columns.Rule, *args: Any) -> tuple[Any, Any]:
    """Applies a rule that needs all columns together."""
    return rule(*args)


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
    return unravel(jnp.where(valid.any(), row, center)), report


def in_use(messages: core.Message, num_rows: int) -> jax.Array:
    """Returns `bool[K]`: which messages are finite; columns may be a part of all."""
    return columns.every(client_rows.finite_rows(messages, num_rows))

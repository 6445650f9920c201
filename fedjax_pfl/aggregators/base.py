"""Bases of rules that work on a matrix with the messages as rows."""

import numbers
from typing import Any, ClassVar, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from fedjax_pfl import core
from fedjax_pfl.core import checks, client_rows, columns, struct

__all__ = ["FIXED_RADIUS", "Counting", "MatrixRule", "Weighting", "in_use"]

Weighting = Literal["uniform", "examples"]
"""Whether rows count alike or by the weights of their uploads."""

FIXED_RADIUS = "its radius, so that they are not exact"
"""What derivatives hold fixed of a rule whose radius is a quantile."""


class MatrixRule(core.Aggregator):
    """A rule for the rows of a matrix, one per message; subclasses define `combine`."""

    by_columns: ClassVar[bool] = True

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
        rule = type(self)._combined
        return columns.apply(rule, *args) if self.by_columns else rule(*args)

    def _combined(
        self,
        key: core.Key,
        messages: core.Message,
        weights: jax.Array,
        reference: core.Message,
    ) -> tuple[Any, Any]:
        """Combines messages as one matrix, or a part of its columns."""
        matrix, center, unravel = client_rows.ravel_about(messages, reference)
        valid = (weights > 0) & in_use(messages, weights.shape[0])
        row, report = self.combine(matrix, valid, weights, center)
        # Without a valid row the reference remains, whatever `combine` returned.
        return unravel(jnp.where(valid.any(), row, center)), report


def in_use(messages: core.Message, num_rows: int) -> jax.Array:
    """Returns `bool[K]`: which messages are finite; columns may be a part of all."""
    return columns.every(client_rows.finite_rows(messages, num_rows))


@struct.pytree_dataclass
class Counting(MatrixRule):
    """A rule that takes f of its rows for malicious; abstract."""

    # f, a whole number, or as a share of the n rows. Guarantees hold while
    # factor * f + margin <= n.
    num_malicious: float | None = struct.traced_field(default=None, at_least=0)
    malicious_fraction: float | None = struct.static_field(
        default=None, at_least=0, at_most=1
    )
    factor: ClassVar[int] = 2
    margin: ClassVar[int] = 1

    def __post_init__(self):
        fraction = self.malicious_fraction
        is_number = isinstance(fraction, numbers.Real)
        if fraction is not None and (self.num_malicious is not None or not is_number):
            raise checks.InputError(
                "Expected at most one of num_malicious and malicious_fraction, which"
                f" is a Python number, got num_malicious={self.num_malicious!r} and"
                f" malicious_fraction={fraction!r}."
            )

    def check_cohort(self, size: int) -> None:
        """Refuses an f that is not whole, or with `factor f + margin > K`."""
        self._check_number(size, needed=True)

    def _check_number(self, size: int, *, needed: bool) -> None:
        """Refuses an f that does not fit K rows, or f = K without a guarantee."""
        # A traced number is bounded by `minority` instead.
        if isinstance(self.num_malicious, Tracer):
            return
        rule = type(self).__name__
        if self.malicious_fraction is None:
            f = 0.0 if self.num_malicious is None else float(self.num_malicious)
            subject = f"num_malicious of {rule} to be a whole number f"
            got = f"{f:g}"
        else:
            f = round(float(self.malicious_fraction) * size)
            subject = f"malicious_fraction of {rule} to give a number f"
            got = f"{self.malicious_fraction:g}, so f={f},"
        fits = self.factor * f + self.margin <= size if needed else f < size
        if f % 1 or not fits:
            bound = f"{self.factor} f + {self.margin} <= K" if needed else "f < K"
            raise checks.InputError(
                f"Expected {subject} with {bound}, got {got} with K={size} messages per"
                " round."
            )

    def target_count(self, num_valid: jax.Array, num_rows: int) -> jax.Array:
        """Returns the requested f `int32[]` of n valid rows, of K in all."""
        if self.malicious_fraction is not None:
            # A table: in float32 a product could round to another number than that of
            # the federation.
            share = float(self.malicious_fraction)
            counts = [round(share * count) for count in range(num_rows + 1)]
            return jnp.asarray(np.array(counts, np.int32))[num_valid]
        if self.num_malicious is None:  # the largest f with the guarantee
            return jnp.maximum((num_valid - self.margin) // self.factor, 0)
        return jnp.asarray(self.num_malicious).astype(jnp.int32)

    def minority(self, num_valid: jax.Array, num_rows: int) -> jax.Array:
        """Bounds the number by the largest f with `2 f < n`, and by 0."""
        # Messages can be lost after `check_cohort`, so that f no longer fits.
        f = jnp.minimum(self.target_count(num_valid, num_rows), (num_valid - 1) // 2)
        return jnp.maximum(f, 0)

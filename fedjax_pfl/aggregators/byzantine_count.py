"""The number f of rows that a rule takes for malicious."""

import numbers
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import core

from fedjax_pfl.aggregators import base
from fedjax_pfl.core import checks, struct

__all__ = ["Counting"]


@struct.pytree_dataclass
class Counting(base.MatrixRule):
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
        if isinstance(self.num_malicious, core.Tracer):
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

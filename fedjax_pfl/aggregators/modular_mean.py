"""The mean as secure aggregation computes it: a sum of integers modulo a power of two.

A server learns only the sum modulo 2^b of masked messages. So clients send
whole numbers: `q_k = round((x_k - ref) / step)`, cut to b bits; the server has
`s = sum_k q_k mod 2^b`, between `-2^(b-1)` and `2^(b-1) - 1`, and takes
`ref + step s / n`. The masks of clients that drop out are taken out in the protocol, so
that the sum is over the n that are left. Masks cancel exactly, and are not computed.

The result is within `step / 2` of the mean, as long as no sum leaves the b bits: then
it is wrong by a multiple of `2^b step / n`, which a server cannot see. A simulator can:
it adds up the same integers without a modulus.

Reference: Bonawitz, Ivanov, Kreuter, Marcedone, McMahan, Patel, Ramage, Segal, Seth,
"Practical Secure Aggregation for Privacy-Preserving Machine Learning".
"""

import dataclasses
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from fedjax_pfl import core
from fedjax_pfl.core import checks, client_rows, struct

__all__ = ["ModularInfo", "ModularMean", "modular_sum"]

_HALF = 15  # bits of the lower half of a number; sums have up to 2^16 terms
_MOST = 2**16 - 1


@struct.pytree_dataclass
class ModularInfo:
    """Report of a round's sums.

    Attributes:
      overflowed: `int32[]` coordinates with sums beyond b bits.
      cut: `int32[]` numbers of clients that did not fit into b bits.
    """

    overflowed: jax.Array
    cut: jax.Array


def modular_sum(rows: jax.Array, bits: int) -> tuple[jax.Array, jax.Array]:
    """Adds `int32[K, ...]` modulo `2^bits`; sums, and `bool[...]` which overflowed."""
    rows = rows.astype(jnp.int32)
    unused = 32 - bits
    # Shifts up and down wrap around at 2^bits, and keep the sign.
    total = (rows.sum(axis=0, dtype=jnp.int32) << unused) >> unused
    low_mask = (1 << _HALF) - 1
    # The sum without a modulus, in two halves.
    low = (rows & low_mask).sum(axis=0, dtype=jnp.int32)
    high = (rows >> _HALF).sum(axis=0, dtype=jnp.int32) + (low >> _HALF)
    same = (total >> _HALF == high) & (total & low_mask == low & low_mask)
    return total, ~same


@struct.pytree_dataclass
class ModularMean(core.Aggregator):
    """Uniform mean through sums of b-bit integers, as secure aggregation has them.

    Rows of weight 0, and rows with a non-finite value, have dropped out; if none is
    left, the reference is returned. The report counts sums that overflowed and numbers
    that were cut. A message takes b bits a number.

    Attributes:
      bits: static b, from 2 to 31.
      step: `[]` distance of two numbers that can be sent, > 0.

    Example:
      >>> rows, weights = jnp.array([1.0, 2.0]), jnp.array([10.0, 30.0])
      >>> mean, _ = ModularMean(step=0.25)(None, rows, weights, jnp.array(0.0))
      >>> float(mean)
      1.5
    """

    bits: int = struct.static_field(default=24, at_least=2, at_most=31)
    step: float = struct.traced_field(default=2.0**-16, above=0)
    sees_messages: ClassVar[bool] = False
    no_derivative: ClassVar[str] = "rounds messages"

    def check_cohort(self, size: int) -> None:
        """Refuses more rows than are added exactly; before tracing."""
        if size > _MOST:
            raise checks.InputError(
                f"Expected at most {_MOST:,} clients in a modular sum, got {size:,}."
            )

    def __call__(
        self,
        key: core.Key | None,
        messages: core.Message,
        weights: jax.Array,
        reference: core.Message,
    ) -> tuple[Any, ModularInfo]:
        """Averages rows `[K, *P]` by sums of integers, and reports overflows."""
        is_in = (weights > 0) & client_rows.finite_rows(messages, weights.shape[0])
        count = jnp.maximum(is_in.sum(), 1)
        limit = 2 ** (self.bits - 1) - 1

        def mean(rows: jax.Array, point: jax.Array) -> tuple[jax.Array, ...]:
            # q_k = round((x_k - ref) / step).
            moves = jnp.round((rows - point[None]) / self.step)
            moves = client_rows.select_rows(is_in, moves, jnp.zeros_like(moves))
            fits = jnp.abs(moves) <= limit
            steps = jnp.clip(moves, -limit, limit).astype(jnp.int32)
            steps = jnp.clip(steps, -limit, limit)  # 2^30 - 1 is no float32
            total, overflowed = modular_sum(steps, self.bits)
            value = point + self.step * total.astype(point.dtype) / count
            return value.astype(point.dtype), overflowed.sum(), (~fits).sum()

        leaves, structure = jax.tree.flatten(messages)
        points = jax.tree.leaves(reference)
        values, overflowed, cut = zip(*map(mean, leaves, points), strict=True)
        info = ModularInfo(
            overflowed=jnp.asarray(sum(overflowed), jnp.int32),
            cut=jnp.asarray(sum(cut), jnp.int32),
        )
        return structure.unflatten(values), info

    def encoding(self, before: Any) -> Any:
        """Returns how a message is written down: b bits a number."""
        before.check_whole("ModularMean")
        return dataclasses.replace(before, value_bits=self.bits, side_bits=0)

"""Numbers rounded at random to a few levels."""

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp

from fedjax_pfl import core
from fedjax_pfl.core import client_rows, struct
from fedjax_pfl.messages import base
from fedjax_pfl.messages.encoding import Encoding

__all__ = ["QSGD"]


@struct.pytree_dataclass
class QSGD(base.Compression):
    """Rounds every array to s levels of its norm, up or down at random.

    A number x of an array of norm n becomes `sign(x) n l / s` with l one of the two
    whole numbers around `s |x| / n`, drawn so that the mean is x: unbiased, with
    `E |C(x) - x|^2 <= min(D / s^2, sqrt(D) / s) |x|^2` for an array of D numbers. A
    number takes a sign and `ceil(log2(s + 1))` bits for its level, and every array its
    norm in full. Zeros stay zeros, so that it may follow `TopK` or `RandomK`.

    Attributes:
      levels: static s, at least 1.
      error_feedback: static; whether clients add the last error to the next message.

    Example:
      >>> sent = QSGD(levels=1).fit(jax.random.key(0), jax.numpy.array([3.0, -4.0]))
      >>> sorted({abs(number) for number in sent.tolist()} | {0.0, 5.0})
      [0.0, 5.0]

    Reference: Alistarh, Grubic, Li, Tomioka, Vojnovic, "QSGD: Communication-Efficient
    SGD via Gradient Quantization and Encoding".
    """

    levels: int = struct.static_field(default=7, at_least=1, at_most=2**16 - 1)
    no_derivative: ClassVar[str] = "rounds messages"

    def fit(self, key: core.Key, message: core.Message) -> core.Message:
        """Rounds the message, array by array."""
        leaves, structure = jax.tree.flatten(message)

        def rounded(key: core.Key, x: jax.Array) -> jax.Array:
            norm, unit = client_rows.norm(x)
            level = self.levels * jnp.abs(x / unit) / jnp.where(norm > 0, norm, 1)
            level = jnp.minimum(level, self.levels)  # rounding may exceed it
            low = jnp.floor(level)
            # A sum of level and draw would round, and reach s + 1.
            is_up = jax.random.uniform(key, x.shape, x.dtype) < level - low
            return jnp.sign(x) * (norm / self.levels * (low + is_up)) * unit

        keys = jax.random.split(key, len(leaves))
        return structure.unflatten(map(rounded, keys, leaves))

    def encoding(self, before: Encoding) -> Encoding:
        """Counts a sign and a level per number, and a norm per array."""
        norms = len(before.shapes) * before.float_bits
        return dataclasses.replace(
            before,
            value_bits=1 + self.levels.bit_length(),
            side_bits=before.side_bits + norms,
        )

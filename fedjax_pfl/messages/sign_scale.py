"""Signs of a message, and the size of its numbers."""

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp

from fedjax_pfl import core
from fedjax_pfl.core import client_rows, struct
from fedjax_pfl.messages import base
from fedjax_pfl.messages.encoding import Encoding

__all__ = ["SignScale"]


@struct.pytree_dataclass
class SignScale(base.Compression):
    """Sends the sign of every number, and per array the mean of absolute values.

    An array x of D numbers becomes `(|x|_1 / D) sign(x)`, zeros counting as positive.
    A number takes one bit, and every array its mean in full. Biased, a contraction by
    `1 - |x|_1^2 / (D |x|^2)`: it needs error feedback, which is the default.

    Attributes:
      error_feedback: static; whether clients add the last error to the next message.

    Example:
      >>> SignScale().fit(None, jax.numpy.array([3.0, -1.0])).tolist()
      [2.0, -2.0]

    Reference: Karimireddy, Rebjock, Stich, Jaggi, "Error Feedback Fixes SignSGD and
    other Gradient Compression Schemes".
    """

    error_feedback: bool = struct.static_field(default=True)
    no_derivative: ClassVar[str] = "takes signs"

    def fit(self, key: core.Key | None, message: core.Message) -> core.Message:
        """Returns signs times a size, array by array."""

        def signs(x: jax.Array) -> jax.Array:
            # The sum of absolute values must not overflow.
            scaled, unit = client_rows.rescale(x)
            size = unit * (jnp.abs(scaled).sum() / max(x.size, 1))
            return jnp.where(x < 0, -size, size)

        return jax.tree.map(signs, message)

    def encoding(self, before: Encoding) -> Encoding:
        """Counts a bit per number, and a size per array."""
        before.check_whole("SignScale")
        sizes = len(before.shapes) * before.float_bits
        return dataclasses.replace(
            before, value_bits=1, side_bits=before.side_bits + sizes
        )

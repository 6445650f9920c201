"""Sizes of messages on their way to the server, in bits."""

import dataclasses
import math

import jax
import jax.numpy as jnp

from fedjax_pfl import core
from fedjax_pfl.core import checks, struct

__all__ = ["Encoding"]


@dataclasses.dataclass(frozen=True)
class Encoding:
    """The encoding of ONE client's message.

    Attributes:
      shapes: shapes of the message's arrays.
      float_bits: bits of one of the message's numbers in memory.
      values: how many numbers are sent.
      value_bits: bits of one number that is sent.
      side_bits: bits of side information: places, norms.
    """

    shapes: tuple[tuple[int, ...], ...]
    float_bits: int
    values: int
    value_bits: int
    side_bits: int = 0

    __post_init__ = struct.check_fields

    @classmethod
    def plain(cls, message: core.Message) -> "Encoding":
        """Returns the encoding of an uncompressed message `[*P]`."""
        leaves = jax.tree.leaves(message)
        shapes = tuple(jnp.shape(leaf) for leaf in leaves)
        bits = 8 * jnp.result_type(*leaves).itemsize if leaves else 0
        values = sum(map(math.prod, shapes))
        return cls(shapes=shapes, float_bits=bits, values=values, value_bits=bits)

    @property
    def size(self) -> int:
        """Numbers of the message itself, D."""
        return sum(map(math.prod, self.shapes))

    @property
    def num_bytes(self) -> int:
        """Whole bytes of the message."""
        return -(-(self.values * self.value_bits + self.side_bits) // 8)

    def check_whole(self, name: str) -> None:
        """Refuses a transform that needs all numbers after one that drops some.

        Args:
          name: name of the transform.

        Raises:
          InputError: if not all numbers of the message are sent.
        """
        if self.values != self.size:
            raise checks.InputError(
                f"Expected {name} to see whole messages, got it after a transform that"
                f" drops {self.size - self.values:,} of {self.size:,} numbers."
            )

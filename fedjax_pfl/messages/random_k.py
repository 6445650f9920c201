"""Numbers of a message at random places."""

import dataclasses

import jax
import jax.numpy as jnp

from fedjax_pfl import core
from fedjax_pfl.core import struct
from fedjax_pfl.messages import base, top_k
from fedjax_pfl.messages.encoding import Encoding

__all__ = ["RandomK"]


@struct.pytree_dataclass
class RandomK(base.Compression):
    """Sends the numbers at k random places, drawn for every client and round.

    Of D numbers `k = floor(fraction D)` are sent, without their places: the server
    draws them from the same key. They are multiplied by D / k, which makes the message
    unbiased with `E |C(x)|^2 = (D/k) |x|^2`; with error feedback they are not scaled,
    which is a contraction by `1 - k/D` on average.

    Attributes:
      fraction: static; share of the numbers that is sent, in (0, 1].
      error_feedback: static; whether clients add the last error to the next message.

    Example:
      >>> sent = RandomK(fraction=0.5).fit(jax.random.key(0), jax.numpy.ones(4))
      >>> sorted(sent.tolist())
      [0.0, 0.0, 2.0, 2.0]

    Reference: Konečný, McMahan, Yu, Richtárik, Suresh, Bacon, "Federated Learning:
    Strategies for Improving Communication Efficiency".
    """

    fraction: float = struct.static_field(default=0.1, above=0, at_most=1)

    def fit(self, key: core.Key, message: core.Message) -> core.Message:
        """Keeps the numbers at places drawn by `key`; the others are zero."""
        if not jax.tree.leaves(message):
            return message
        x, back = base.flatten(message)
        count = base.count("RandomK", self.fraction, x.size)
        # The k largest of random integers are k random places, without a sort.
        draws = jax.random.bits(key, x.shape, jnp.uint32) >> 1
        mask = top_k.largest(draws.astype(jnp.int32), count)
        # D / k makes the message unbiased; error feedback needs a contraction instead.
        scale = 1 if self.error_feedback else x.size / count
        return back(jnp.where(mask, scale * x, 0))

    def encoding(self, before: Encoding) -> Encoding:
        """Counts k numbers."""
        before.check_whole("RandomK")
        count = base.count("RandomK", self.fraction, before.size)
        return dataclasses.replace(before, values=count)

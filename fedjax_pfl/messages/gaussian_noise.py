"""Gaussian noise of the server, for differential privacy of clients."""

from typing import Any

import jax
import jax.numpy as jnp

from fedjax_pfl import core
from fedjax_pfl.core import struct
from fedjax_pfl.messages.encoding import Encoding

__all__ = ["GaussianNoise"]


@struct.pytree_dataclass
class GaussianNoise:
    """Makes what the server releases differentially private for whole clients.

    Behind `ClipNorm` with the norm c, the server adds `N(0, (z c)^2 I)` once to the sum
    of messages of which it takes the uniform mean, or to every message in front of a
    robust rule. One client in place of another moves either by 2 c at most.

    Attributes:
      multiplier: `[]` z, at least 0; without noise epsilon is infinite.
      delta: `[]` for which epsilon is reported, in (0, 1).

    Reference: McMahan, Ramage, Talwar, Zhang, "Learning Differentially Private
    Recurrent Language Models".
    """

    multiplier: Any = struct.traced_field(default=1.0, at_least=0)
    delta: Any = struct.traced_field(default=1e-5, above=0, below=1)

    def init(self, message: Any) -> None:
        """Returns None: nothing is remembered."""

    def send(self, key: core.Key, memory: None, message: Any) -> tuple[Any, None]:
        """Returns the message: noise is the server's."""
        return message, None

    def fit(self, key: core.Key, message: Any) -> Any:
        """Returns the message."""
        return message

    def receive(self, key: core.Key, message: Any) -> Any:
        """Returns the message: noise waits for the aggregate."""
        return message

    def encoding(self, before: Encoding) -> Encoding:
        """Returns the encoding."""
        return before

    def add(self, key: core.Key, tree: Any, scale: Any) -> Any:
        """Adds noise to a sum, a mean or a message.

        Args:
          key: `[]` key of Threefry, whatever the run draws with.
          tree: pytree of `[*P]`.
          scale: `[]` c, or `c / n` for a mean of n.

        Returns:
          Pytree of `[*P]`.
        """
        leaves, structure = jax.tree.flatten(tree)
        keys = jax.random.split(key, len(leaves))
        deviation = self.multiplier * scale

        def noisy(key: core.Key, x: jax.Array) -> jax.Array:
            draw = jax.random.normal(key, x.shape, x.dtype)
            return x + jnp.asarray(deviation, x.dtype) * draw

        return structure.unflatten(map(noisy, keys, leaves))

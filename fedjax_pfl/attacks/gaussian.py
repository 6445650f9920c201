"""Gaussian attack: malicious clients send noise."""

import jax
import jax.numpy as jnp

from fedjax_pfl import core
from fedjax_pfl.attacks import base, honest
from fedjax_pfl.core import struct

__all__ = ["Gaussian"]


@struct.pytree_dataclass
class Gaussian(base.Alone):
    """Replaces malicious messages by `N(0, std^2 I)`, drawn again in every round.

    Attributes:
      std: `[]` standard deviation, at least 0; `sqrt(0.1)` in FLAME's paper, 1 in its
        released code (`official`) and in FedPG's experiments.
      about: static; `message` sends the noise alone, `reference` adds it to the model
        that clients received, as FedPG's experiments do (A1).

    Example:
      >>> import jax
      >>> keys = jax.random.split(jax.random.key(0), 2)
      >>> messages, malicious = jax.numpy.array([1.0, 2.0]), jax.numpy.array([0, 1]) > 0
      >>> sent, _ = Gaussian()(keys, None, messages, malicious, jax.numpy.array(0.0))
      >>> (sent == messages).tolist()
      [True, False]
    """

    std: float = struct.traced_field(default=0.1**0.5, at_least=0)
    about: honest.About = "message"

    @classmethod
    def official(cls) -> "Gaussian":
        """Returns the strength of FLAME's released code: std 1."""
        return cls(std=1.0)

    def one(
        self, key: core.Key, message: core.Message, reference: core.Message
    ) -> core.Message:
        """Draws noise, about zero or the received model."""
        leaves, structure = jax.tree.flatten(message)
        # One key per leaf, or leaves of one shape would get the same noise.
        keys = jax.random.split(key, len(leaves))
        centers = jax.tree.leaves(honest.origin(self.about, message, reference))

        def noise(key: core.Key, u: jax.Array, center: jax.Array) -> jax.Array:
            draw = jax.random.normal(key, u.shape, u.dtype)
            return center + jnp.asarray(self.std, u.dtype) * draw

        return structure.unflatten(map(noise, keys, leaves, centers))

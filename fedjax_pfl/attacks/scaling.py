"""Scaling: malicious clients send a multiple of their honest message."""

import jax
import jax.numpy as jnp

from fedjax_pfl import core
from fedjax_pfl.attacks import base, honest
from fedjax_pfl.core import struct

__all__ = ["Scaling"]


@struct.pytree_dataclass
class Scaling(base.Alone):
    """Replaces a malicious message u by `r + factor (u - r)`, r the attack's zero.

    Attributes:
      factor: `[]`; 100 in FedPG's experiments (A2). 1 only changes rounding, a
        negative one flips.
      about: static; `reference` scales the update `u - reference`, `message` u itself
        (r = 0), which is the same for methods that send changes or gradients.

    Example:
      >>> import jax
      >>> messages, malicious = jax.numpy.array([1.0, 2.0]), jax.numpy.array([0, 1]) > 0
      >>> Scaling()(None, None, messages, malicious, jax.numpy.array(1.5))[0].tolist()
      [1.0, 51.5]
    """

    factor: float = struct.traced_field(default=100.0)
    about: honest.About = "reference"

    def one(
        self, key: core.Key, message: core.Message, reference: core.Message
    ) -> core.Message:
        """Returns the message or its update, scaled."""

        def scale(u: jax.Array, center: jax.Array) -> jax.Array:
            return center + jnp.asarray(self.factor, u.dtype) * (u - center)

        zero = honest.origin(self.about, message, reference)
        return jax.tree.map(scale, message, zero)

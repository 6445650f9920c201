"""Same value: malicious clients send one number in every coordinate."""

import jax
import jax.numpy as jnp

from fedjax_pfl import core
from fedjax_pfl.attacks import base
from fedjax_pfl.core import struct

__all__ = ["SameValue"]


@struct.pytree_dataclass
class SameValue(base.Alone):
    """Replaces malicious messages by `xi * (1, ..., 1)`.

    `xi ~ N(0, std^2)` is one draw for every client and round.

    Attributes:
      std: `[]` standard deviation of xi, at least 0; `sqrt(0.1)` in FLAME's paper.

    Example:
      >>> import jax
      >>> keys = jax.random.split(jax.random.key(0), 2)
      >>> messages, malicious = jax.numpy.ones((2, 3)), jax.numpy.array([0, 1]) > 0
      >>> sent, _ = SameValue()(keys, None, messages, malicious, None)
      >>> len(set(sent[1].tolist())), sent[0].tolist()
      (1, [1.0, 1.0, 1.0])
    """

    std: float = struct.traced_field(default=0.1**0.5, at_least=0)

    @classmethod
    def official(cls) -> "SameValue":
        """Returns the strength of FLAME's released code."""
        return cls(std=0.01)

    def one(
        self, key: core.Key, message: core.Message, reference: core.Message
    ) -> core.Message:
        """Puts one draw into every coordinate."""
        # In float32 in any run, so that x64 changes no draw.
        draw = jax.random.normal(key, (), jnp.float32)

        def fill(u: jax.Array) -> jax.Array:
            xi = jnp.asarray(self.std, u.dtype) * jnp.asarray(draw, u.dtype)
            return jnp.broadcast_to(xi, u.shape)

        return jax.tree.map(fill, message)

"""Sign flipping: malicious clients send a negative multiple of their honest message."""

from typing import Annotated, Literal

import jax
import jax.numpy as jnp

from fedjax_pfl import core
from fedjax_pfl.attacks import base, honest
from fedjax_pfl.core import struct

__all__ = ["SignFlip"]

_About = Annotated[Literal["message", "reference", "received"], honest.CENTER]


@struct.pytree_dataclass
class SignFlip(base.Alone):
    """Replaces a malicious message u by `-s u`.

    Without `std` the multiplier s is `scale`. With it s is `scale * |xi|`, with a draw
    `xi ~ N(0, std^2)` for every client and round; FLAME's paper has `std = sqrt(0.1)`,
    its released code what `official` returns. A traced negative `scale` does not flip.

    Attributes:
      scale: `[]` multiplier, at least 0.
      std: `[]` standard deviation of xi, at least 0, or None for a fixed multiplier.
      about: static, the flipped vector: the `message` u; the update `u - reference`
        (`reference`); or the `received` model in place of u, without any of
        the client's own work.

    Example:
      >>> import jax
      >>> keys = jax.random.split(jax.random.key(0), 2)
      >>> messages, malicious = jax.numpy.array([1.0, 2.0]), jax.numpy.array([0, 1]) > 0
      >>> SignFlip(scale=3.0)(keys, None, messages, malicious, jax.numpy.array(0.0))[0]
      Array([ 1., -6.], dtype=...)
    """

    scale: float = struct.traced_field(default=1.0, at_least=0)
    std: float | None = struct.traced_field(default=None, at_least=0)
    about: _About = "message"

    @classmethod
    def official(cls) -> "SignFlip":
        """Follows FLAME's released code: `-|xi|` times the received model, std 1."""
        return cls(std=1.0, about="received")

    def one(
        self, key: core.Key, message: core.Message, reference: core.Message
    ) -> core.Message:
        """Returns the message, its update or the received model, flipped."""
        draw = 1.0 if self.std is None else jax.random.normal(key, (), jnp.float32)

        def flip(u: jax.Array, center: jax.Array) -> jax.Array:
            size = jnp.asarray(self.scale, u.dtype)
            if self.std is not None:
                xi = jnp.asarray(self.std, u.dtype) * jnp.asarray(draw, u.dtype)
                size = size * jnp.abs(xi)
            # -s u, about zero or the reference.
            return center - size * (u - center)

        zero = honest.origin(self.about, message, reference)
        flipped = reference if self.about == "received" else message
        return jax.tree.map(flip, flipped, zero)

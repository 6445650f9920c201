"""Messages of bounded norm."""

from typing import Any

import jax
import jax.numpy as jnp

from fedjax_pfl import core
from fedjax_pfl.core import struct
from fedjax_pfl.messages.encoding import Encoding

__all__ = ["ClipNorm"]


@struct.pytree_dataclass
class ClipNorm:
    """Bounds the norm of every message, at the client and again at the server.

    A message x becomes `x min(1, c / |x|)`. The server repeats that behind the attack
    and behind all that other transforms undo, so that whatever a client sends moves
    the sum of a cohort by no more than c, to rounding.

    Attributes:
      norm: `[]` c, > 0.
      per_layer: static; whether each of L arrays is bounded by `c / sqrt(L)` on its
        own, which bounds the whole by c, too.

    Example:
      >>> ClipNorm(norm=2.5).receive(None, jax.numpy.array([3.0, 4.0])).tolist()
      [1.5, 2.0]

    Reference: McMahan, Ramage, Talwar, Zhang, "Learning Differentially Private
    Recurrent Language Models".
    """

    norm: Any = struct.traced_field(default=1.0, above=0)
    per_layer: bool = struct.static_field(default=False)

    def init(self, message: Any) -> None:
        """Returns None: nothing is remembered."""

    def send(self, key: core.Key, memory: None, message: Any) -> tuple[Any, None]:
        """Clips an honest client's message."""
        return self.receive(key, message), None

    def fit(self, key: core.Key, message: Any) -> Any:
        """Returns the message: nobody has to clip."""
        return message

    def receive(self, key: core.Key | None, message: Any) -> Any:
        """Clips whatever has arrived."""
        leaves, structure = jax.tree.flatten(message)
        squares: list[Any] = [jnp.sum(x * x) for x in leaves]
        bound = self.norm
        if self.per_layer:
            bound = bound / jnp.sqrt(float(len(leaves) or 1))
        else:
            squares = [sum(squares)] * len(leaves)

        def clipped(x: jax.Array, square: jax.Array) -> jax.Array:
            norm = jnp.sqrt(square)
            scale = jnp.where(norm > bound, bound / norm, 1)
            # A norm that is not finite leaves nothing, and NaN of what is none.
            return x * scale.astype(x.dtype)

        return structure.unflatten(map(clipped, leaves, squares))

    def encoding(self, before: Encoding) -> Encoding:
        """Returns the encoding: a clipped message takes no other room."""
        return before

"""Messages of bounded norm."""

from typing import Any

import jax

from fedjax_pfl import core
from fedjax_pfl.core import client_rows, struct

__all__ = ["ClipNorm"]


@struct.pytree_dataclass
class ClipNorm(core.Transform):
    """Bounds the norm of every message, at the client and again at the server.

    A message x becomes `x min(1, c / |x|)`. The server clips again, after the attack
    and after decoding by the other transforms, so that no message moves the sum of a
    cohort by more than c, to rounding.

    Attributes:
      norm: `[]` c, > 0.
      per_layer: static; whether each of L arrays is bounded by `c / sqrt(L)`
        separately, which bounds the message by c, too.

    Example:
      >>> ClipNorm(norm=2.5).receive(None, jax.numpy.array([3.0, 4.0])).tolist()
      [1.5, 2.0]

    Reference: McMahan, Ramage, Talwar, Zhang, "Learning Differentially Private
    Recurrent Language Models".
    """

    norm: Any = struct.traced_field(default=1.0, above=0)
    per_layer: bool = struct.static_field(default=False)

    def send(
        self, key: core.Key, memory: None, message: core.Message
    ) -> tuple[Any, None]:
        """Clips an honest client's message."""
        return self.receive(key, message), None

    def receive(self, key: core.Key | None, message: core.Message) -> core.Message:
        """Clips a received message."""
        if not self.per_layer:
            return client_rows.clip(message, self.norm)
        # L squares of c / sqrt(L) add up to c^2.
        bound = self.norm / max(len(jax.tree.leaves(message)), 1) ** 0.5
        return jax.tree.map(lambda x: client_rows.clip(x, bound), message)

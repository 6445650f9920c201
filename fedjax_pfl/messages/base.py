"""Base of compressions, with the memory of what they have left out."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.flatten_util import ravel_pytree

from fedjax_pfl import core
from fedjax_pfl.core import checks, struct
from fedjax_pfl.messages.encoding import Encoding

__all__ = ["Compression", "count", "whole"]


@struct.pytree_dataclass
class Compression(core.Transform):
    """A lossy encoding C of ONE client's message x; abstract.

    With error feedback the client remembers what was left out, and sends `C(x + e)`
    with `e <- x + e - C(x + e)`, so that everything is sent in the end: what arrived
    and what is remembered add up to the sum of all x.

    Attributes:
      error_feedback: static; whether clients remember what was left out.

    References: Seide, Fu, Droppo, Li, Yu, "1-Bit Stochastic Gradient Descent"; Stich,
    Cordonnier, Jaggi, "Sparsified SGD with Memory".
    """

    error_feedback: bool = struct.static_field(default=False)

    def fit(self, key: core.Key, message: Any) -> Any:
        """Returns what the server reads of a message that is sent so, C(x).

        Args:
          key: `[]` key of this client and round, which the server knows.
          message: pytree of `[*P]`, relative to what client and server both know.

        Returns:
          Pytree of `[*P]`.
        """
        raise NotImplementedError

    def encoding(self, before: Encoding) -> Encoding:
        """Returns how the message is written down, from how it was before."""
        raise NotImplementedError

    def init(self, message: Any) -> Any:
        """Returns the first memory, zeros like a message `[*P]`, or None."""
        return jax.tree.map(jnp.zeros_like, message) if self.error_feedback else None

    def send(self, key: core.Key, memory: Any, message: Any) -> tuple[Any, Any]:
        """Compresses an honest client's message; see `Transform.send`."""
        if not self.error_feedback:
            return self.fit(key, message), None
        whole = optax.tree.add(message, memory)
        sent = self.fit(key, whole)
        return sent, optax.tree.sub(whole, sent)


def count(name: str, fraction: float, size: int) -> int:
    """Returns how many of `size` numbers a fraction is."""
    kept = math.floor(fraction * size + 1e-9)  # 0.29 of 100 numbers are 29
    if size and not kept:
        raise checks.InputError(
            f"Expected {name} to leave something of a message of {size:,} numbers:"
            f" fraction={fraction:g} is less than one of them."
        )
    return kept


def whole(message: Any) -> tuple[jax.Array, Any]:
    """Returns a message as one vector `[D]`, and the function back to the tree."""
    leaves = jax.tree.leaves(message)
    if len(leaves) == 1:  # nothing to copy
        structure, shape = jax.tree.structure(message), leaves[0].shape
        return leaves[0].reshape(-1), lambda x: structure.unflatten([x.reshape(shape)])
    return ravel_pytree(message)

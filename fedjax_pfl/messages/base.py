"""Base of compressions, with error feedback."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.flatten_util import ravel_pytree

from fedjax_pfl import core
from fedjax_pfl.core import checks, struct
from fedjax_pfl.messages.encoding import Encoding

__all__ = ["Compression", "count", "flatten"]


@struct.pytree_dataclass
class Compression(core.Transform):
    """A lossy encoding C of ONE client's message x, with error feedback; abstract."""

    # All received messages and the stored error add up to all x. Seide, Fu, Droppo, Li,
    # Yu, "1-Bit Stochastic Gradient Descent"; Stich, Cordonnier, Jaggi, "Sparsified
    # SGD with Memory".
    error_feedback: bool = struct.static_field(default=False)

    def fit(self, key: core.Key, message: core.Message) -> core.Message:
        """Returns the message `[*P]` that the server decodes, C(x), by a shared key."""
        raise NotImplementedError

    def encoding(self, before: Encoding) -> Encoding:
        """Returns the message's encoding, from its encoding before this transform."""
        raise NotImplementedError

    def init(self, message: core.Message) -> core.Tree:
        """Returns the initial memory, zeros like a message `[*P]`, or None."""
        return jax.tree.map(jnp.zeros_like, message) if self.error_feedback else None

    def send(
        self, key: core.Key, memory: core.Tree, message: core.Message
    ) -> tuple[Any, Any]:
        """Compresses an honest client's message; see `Transform.send`."""
        if not self.error_feedback:
            return self.fit(key, message), None
        # C(x + e), with e the error of the last message, and e <- x + e - C(x + e).
        target = optax.tree.add(message, memory)
        sent = self.fit(key, target)
        return sent, optax.tree.sub(target, sent)


def count(name: str, fraction: float, size: int) -> int:
    """Converts a fraction of `size` numbers to a count."""
    number = math.floor(fraction * size + 1e-9)  # 0.29 of 100 numbers are 29
    if size and not number:
        raise checks.InputError(
            f"Expected {name} to send at least one of the {size:,} numbers of a"
            f" message, got fraction={fraction:g}."
        )
    return number


def flatten(message: core.Message) -> tuple[jax.Array, Any]:
    """Returns a message as one vector `[D]`, and the inverse function."""
    leaves = jax.tree.leaves(message)
    if len(leaves) == 1:  # nothing to copy
        structure, shape = jax.tree.structure(message), leaves[0].shape
        return leaves[0].reshape(-1), lambda x: structure.unflatten([x.reshape(shape)])
    return ravel_pytree(message)

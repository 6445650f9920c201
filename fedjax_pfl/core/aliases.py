"""Names of types: pytrees, which Python's types cannot describe, and scalars."""

from typing import Any

import jax

__all__ = ["ClientState", "Message", "Params", "Scalar", "ServerState", "Tree"]

Tree = Any
"""A pytree of arrays."""

Params = Any
"""The parameters of one network, a pytree."""

ClientState = Any
"""A method's state of ONE client, or of several with a leading axis; a pytree."""

ServerState = Any
"""A method's state at the server, a pytree."""

Message = Any
"""What ONE client sends, or several with a leading axis `[K, ...]`; a pytree."""

Scalar = jax.Array | float
"""A number, an array of shape `[]` in compiled code."""

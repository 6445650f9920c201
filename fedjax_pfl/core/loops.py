"""Loops whose bounds are known when they run, to be differentiated in both directions.

JAX differentiates a loop with a traced bound forward only. In the block of
`reversible`, such loops are scans of their largest length, which leave out what lies
beyond the bound: the same values, more memory.
"""

import contextlib
import contextvars
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

__all__ = ["bounded", "recomputed", "reversible"]

_is_reversible = contextvars.ContextVar("is_reversible", default=False)


@contextlib.contextmanager
def reversible() -> Iterator[None]:
    """Makes loops that are traced in the block differentiable in reverse."""
    token = _is_reversible.set(True)
    try:
        yield
    finally:
        _is_reversible.reset(token)


def recomputed(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a function that is computed again on the way back, where there is one.

    What one turn of a loop needs on the way back then is its state alone.
    """
    return jax.checkpoint(fn) if _is_reversible.get() else fn


def bounded(
    bound: jax.Array, most: int, body: Callable[[jax.Array, Any], Any], state: Any
) -> Any:
    """Runs `state = body(i, state)` for i from 0 to below a bound.

    Args:
      bound: `int32[]`, of one value in all lanes of the vmaps around the call.
      most: the largest bound there can be.
      body: takes the number of the turn and the state.
      state: pytree.

    Returns:
      The last state.
    """
    if not _is_reversible.get():
        return lax.fori_loop(0, bound, body, state)

    def step(state: Any, number: jax.Array) -> tuple[Any, None]:
        return lax.cond(number < bound, body, lambda _, s: s, number, state), None

    return lax.scan(step, state, jnp.arange(most, dtype=jnp.int32))[0]

"""Loops whose bounds are known when they run, and how they are differentiated.

JAX differentiates a loop with a traced bound forward only. In the block of
`reversible`, such loops are scans of their largest length, which leave out what lies
beyond the bound: the same values, more memory.

A loop that ends by a tolerance has the derivatives of the steps that it took. In the
block of `at_solutions` they are those of the point that it looks for.
"""

import contextlib
import contextvars
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

__all__ = ["at_solutions", "bounded", "recomputed", "reversible", "stationary"]

LinearSolve = Callable[[Callable[[Any], Any], Any], Any]

_is_reversible = contextvars.ContextVar("is_reversible", default=False)
_linear_solve: contextvars.ContextVar[LinearSolve | None] = contextvars.ContextVar(
    "linear_solve", default=None
)


@contextlib.contextmanager
def reversible() -> Iterator[None]:
    """Makes loops that are traced in the block differentiable in reverse."""
    token = _is_reversible.set(True)
    try:
        yield
    finally:
        _is_reversible.reset(token)


@contextlib.contextmanager
def at_solutions(solve: LinearSolve) -> Iterator[None]:
    """Makes what is traced in the block differentiate solvers at their solutions.

    Args:
      solve: `(product, right) -> x` with `product(x) = right`, pytrees.
    """
    token = _linear_solve.set(solve)
    try:
        yield
    finally:
        _linear_solve.reset(token)


def stationary(gradient: Callable[[Any], Any], point: Any) -> Any:
    """Returns the point that a solver ended at, as a solution where that is wanted.

    In the block of `at_solutions` a step of Newton's method ends the solver's work, so
    that the point has the derivatives of a zero of the gradient, forward only: with the
    Hessian H, `d point = -H^-1 d gradient`, wherever the solver began.

    Args:
      gradient: `point -> gradient`, of a function with a strict minimum.
      point: about where it is zero.

    Returns:
      The point; outside of the block, as it was.
    """
    solve = _linear_solve.get()
    if solve is None:
        return point
    held = lax.stop_gradient(point)

    def along(direction: Any) -> Any:
        return jax.jvp(gradient, (held,), (direction,))[1]

    step = lax.custom_linear_solve(along, gradient(held), solve, symmetric=True)
    return jax.tree.map(lambda x, s: x - s, held, step)


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

"""Loops whose bounds are known when they run, and how they are differentiated.

JAX differentiates a loop with a traced bound forward only. In the block of
`reversible`, such loops keep the state before every turn, and have a way back: from the
last turn to the first each is run again and transposed. That takes as many turns as the
loop did, and memory for the largest number of them.

A loop that ends by a tolerance has the derivatives of the steps that it took. In the
block of `at_solutions` they are those of the point that it looks for.
"""

import contextlib
import contextvars
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import custom_derivatives, extend, lax

__all__ = [
    "at_solutions",
    "bounded",
    "is_reversible",
    "recomputed",
    "reversible",
    "stationary",
]

LinearSolve = Callable[[Callable[[Any], Any], Any], Any]

_NO, _REPEATS, _KEEPS = range(3)
_reversible = contextvars.ContextVar("reversible", default=_NO)
_linear_solve: contextvars.ContextVar[LinearSolve | None] = contextvars.ContextVar(
    "linear_solve", default=None
)


@contextlib.contextmanager
def reversible(*, keeps_work: bool = False) -> Iterator[None]:
    """Makes loops that are traced in the block differentiable in reverse.

    Args:
      keeps_work: whether all steps of all clients are kept; by default a client's work
        is done again on the way back, see `recomputed`.
    """
    token = _reversible.set(_KEEPS if keeps_work else _REPEATS)
    try:
        yield
    finally:
        _reversible.reset(token)


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


def is_reversible() -> bool:
    """Returns whether loops traced now need reverse derivatives."""
    return _reversible.get() != _NO


def recomputed(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a function that is computed again on the way back, where there is one.

    The steps of a client's work are then kept for the few clients that are at work
    together, and stay in the processor's cache: no slower than one pass that keeps all.
    """
    return jax.checkpoint(fn) if _reversible.get() == _REPEATS else fn


def stationary(gradient: Callable[[Any], Any], point: Any) -> Any:
    """Returns the point that a solver ended at, as a solution where that is wanted.

    In the block of `at_solutions` a step of Newton's method ends the solver's work, so
    that the point has the derivatives of a zero of the gradient, forward only: with the
    Hessian H, `d point = -H^-1 d gradient`, wherever the solver began.

    Args:
      gradient: `point -> gradient`, of a function with a strict minimum.
      point: about where it is zero.
    """
    solve = _linear_solve.get()
    if solve is None:
        return point
    held = lax.stop_gradient(point)

    def along(direction: Any) -> Any:
        return jax.jvp(gradient, (held,), (direction,))[1]

    step = lax.custom_linear_solve(along, gradient(held), solve, symmetric=True)
    return jax.tree.map(lambda x, s: x - s, held, step)


def bounded(
    bound: jax.Array, most: int, body: Callable[[jax.Array, Any], Any], state: Any
) -> Any:
    """Runs `state = body(i, state)` for i from 0 to below a bound.

    Args:
      bound: `int32[]`, of one value in all lanes of the vmaps around the call.
      most: the largest bound there can be.
      body: takes the number of the turn and the state. A leaf that it returns as it
        was takes no memory on the way back.
      state: pytree of arrays.
    """
    if not is_reversible():
        return lax.fori_loop(0, bound, body, state)
    leaves, structure = jax.tree.flatten(jax.tree.map(jnp.asarray, state))
    is_new: list[bool] = []

    def flat(number: jax.Array, leaves: list[jax.Array]) -> list[jax.Array]:
        new = jax.tree.leaves(body(number, jax.tree.unflatten(structure, leaves)))
        is_new[:] = [a is not b for a, b in zip(new, leaves, strict=True)]
        return [leaf for leaf, own in zip(new, is_new, strict=True) if own]

    closed = jax.make_jaxpr(flat)(jnp.zeros((), jnp.int32), leaves)
    run = extend.core.jaxpr_as_fun
    moving, still = _split(leaves, is_new)
    count = len(still)

    def turn(number: jax.Array, moving: list[Any], fixed: list[Any]) -> list[Any]:
        whole = _joined(moving, fixed[:count], is_new)
        return run(extend.core.ClosedJaxpr(closed.jaxpr, fixed[count:]))(number, *whole)

    moving = _retraceable(turn, most)(bound, moving, [*still, *closed.consts])
    return jax.tree.unflatten(structure, _joined(moving, still, is_new))


def _split(leaves: Sequence[Any], chosen: Sequence[bool]) -> tuple[list[Any], ...]:
    """Returns those leaves that are chosen, and the others."""
    pairs = list(zip(leaves, chosen, strict=True))
    return [leaf for leaf, own in pairs if own], [
        leaf for leaf, own in pairs if not own
    ]


def _joined(own: Sequence[Any], rest: Sequence[Any], chosen: list[bool]) -> list[Any]:
    """Inverts `_split`."""
    one, other = iter(own), iter(rest)
    return [next(one if is_own else other) for is_own in chosen]


def _is_smooth(leaf: Any) -> bool:
    return jnp.issubdtype(leaf.dtype, jnp.floating)


def _retraceable(turn: Callable[..., list[Any]], most: int) -> Callable[..., Any]:
    """Returns the loop of a turn `(number, moving, fixed) -> moving`, with a way back.

    The loop takes its bound, the leaves that move, and those that every turn reads. Of
    the latter only what the whole program is differentiated in has a cotangent: there
    may be all the clients' examples among them.
    """

    @jax.custom_vjp
    def run(bound: jax.Array, moving: list[Any], fixed: list[Any]) -> list[Any]:
        return lax.fori_loop(0, bound, lambda i, s: turn(i, s, fixed), moving)

    def forward(*args: Any) -> tuple[list[Any], Any]:
        is_wanted = [leaf.perturbed for leaf in args[2]]
        bound, moving, fixed = jax.tree.map(lambda leaf: leaf.value, args)
        rows = [jnp.zeros((most, *x.shape), x.dtype) for x in moving]

        def step(number: jax.Array, pair: tuple[list[Any], list[Any]]):
            moving, rows = pair
            rows = [
                lax.dynamic_update_index_in_dim(kept, x, number, 0)
                for kept, x in zip(rows, moving, strict=True)
            ]
            return turn(number, moving, fixed), rows

        moving, rows = lax.fori_loop(0, bound, step, (moving, rows))
        wanted = [x if own else None for x, own in zip(fixed, is_wanted, strict=True)]
        others = [None if own else x for x, own in zip(fixed, is_wanted, strict=True)]
        return moving, (bound, rows, wanted, others)

    def back(residuals: Any, slopes: list[Any]) -> tuple[Any, ...]:
        bound, rows, wanted, others = residuals
        is_wanted = [x is not None for x in wanted]
        wanted = [x for x in wanted if x is not None]
        others = [x for x in others if x is not None]
        is_smooth = [_is_smooth(x) for x in rows]

        def step(turns: jax.Array, pair: tuple[list[Any], list[Any]]):
            slopes, sums = pair
            number = bound - 1 - turns
            kept = [lax.dynamic_index_in_dim(x, number, 0, False) for x in rows]
            smooth, counts = _split(kept, is_smooth)

            def one(smooth: list[Any], wanted: list[Any]) -> list[Any]:
                moving = _joined(smooth, counts, is_smooth)
                fixed = _joined(wanted, others, is_wanted)
                return _split(turn(number, moving, fixed), is_smooth)[0]

            slopes, more = jax.vjp(one, smooth, wanted)[1](slopes)
            return slopes, [a + b for a, b in zip(sums, more, strict=True)]

        first = [_dense(x) for x in _split(slopes, is_smooth)[0]]
        zeros = [jnp.zeros_like(x) for x in wanted]
        first, sums = lax.fori_loop(0, bound, step, (first, zeros))
        moving = _joined(first, [None] * len(rows), is_smooth)
        return None, moving, _joined(sums, [None] * len(is_wanted), is_wanted)

    run.defvjp(forward, back, symbolic_zeros=True)
    return run


def _dense(slope: Any) -> Any:
    """Returns a cotangent as an array, where JAX knows it to be zero."""
    if not isinstance(slope, custom_derivatives.SymbolicZero):
        return slope
    like: Any = slope  # its type is no dtype's to the type checker
    return jnp.zeros(like.shape, like.dtype)

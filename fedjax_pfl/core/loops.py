"""Loops with traced bounds, and their derivatives in reverse mode or at solutions."""

import contextlib
import contextvars
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import custom_derivatives, extend, lax

from fedjax_pfl.core.aliases import Tree

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
    """Makes loops in the block reversible; `keeps_work` stores all steps of clients."""
    token = _reversible.set(_KEEPS if keeps_work else _REPEATS)
    try:
        yield
    finally:
        _reversible.reset(token)


@contextlib.contextmanager
def at_solutions(solve: LinearSolve) -> Iterator[None]:
    """Differentiates solvers at solutions, with a linear `solve(product, right)`."""
    token = _linear_solve.set(solve)
    try:
        yield
    finally:
        _linear_solve.reset(token)


def is_reversible() -> bool:
    """Returns whether loops that are traced now need reverse derivatives."""
    return _reversible.get() != _NO


def recomputed(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a function that is recomputed in reverse mode, unless `keeps_work`."""
    # Steps are then stored only for the few clients that are processed together, and
    # stay in the processor's cache: no slower than one pass that stores all steps.
    return jax.checkpoint(fn) if _reversible.get() == _REPEATS else fn


def stationary(gradient: Callable[[Any], Any], point: Tree) -> Tree:
    """Returns the final point of a solver, with the derivatives of a solution."""
    solve = _linear_solve.get()
    if solve is None:
        return point
    held = lax.stop_gradient(point)

    def along(direction: Tree) -> Tree:
        return jax.jvp(gradient, (held,), (direction,))[1]

    # With a step of Newton's method the point has the derivatives of a zero of the
    # gradient, in forward mode only: with the Hessian H of a strict minimum, `d point =
    # -H^-1 d gradient`, for any start.
    step = lax.custom_linear_solve(along, gradient(held), solve, symmetric=True)
    return jax.tree.map(lambda x, s: x - s, held, step)


def bounded(
    bound: jax.Array, most: int, body: Callable[[jax.Array, Any], Any], state: Tree
) -> Tree:
    """Runs `state = body(i, state)` for i from 0 to below a bound `int32[]`."""
    # The bound is equal in all lanes of the vmaps around the call.
    if not is_reversible():
        return lax.fori_loop(0, bound, body, state)
    leaves, structure = jax.tree.flatten(jax.tree.map(jnp.asarray, state))
    is_new: list[bool] = []

    def flat(number: jax.Array, leaves: list[jax.Array]) -> list[jax.Array]:
        new = jax.tree.leaves(body(number, jax.tree.unflatten(structure, leaves)))
        # A leaf that the body returns unchanged takes no memory in reverse mode.
        is_new[:] = [a is not b for a, b in zip(new, leaves, strict=True)]
        return [leaf for leaf, flag in zip(new, is_new, strict=True) if flag]

    # Traced once, to find unchanged leaves and captured values.
    closed = jax.make_jaxpr(flat)(jnp.zeros((), jnp.int32), leaves)
    run = extend.core.jaxpr_as_fun
    moving, still = _split(leaves, is_new)
    count = len(still)

    def turn(number: jax.Array, moving: list[Any], fixed: list[Any]) -> list[Any]:
        args = _joined(moving, fixed[:count], is_new)
        return run(extend.core.ClosedJaxpr(closed.jaxpr, fixed[count:]))(number, *args)

    # Values over which the body closes are arguments, since a function with rules of
    # its own must not close over tracers.
    moving = _retraceable(turn, most)(bound, moving, [*still, *closed.consts])
    return jax.tree.unflatten(structure, _joined(moving, still, is_new))


def _split(leaves: Sequence[Any], chosen: Sequence[bool]) -> tuple[list[Any], ...]:
    """Returns the chosen leaves, and the others."""
    pairs = list(zip(leaves, chosen, strict=True))
    return [leaf for leaf, flag in pairs if flag], [
        leaf for leaf, flag in pairs if not flag
    ]


def _joined(left: Sequence[Any], right: Sequence[Any], chosen: list[bool]) -> list[Any]:
    """Inverts `_split`."""
    lefts, rights = iter(left), iter(right)
    return [next(lefts if flag else rights) for flag in chosen]


def _is_smooth(leaf: jax.Array) -> bool:
    return jnp.issubdtype(leaf.dtype, jnp.floating)


def _retraceable(turn: Callable[..., list[Any]], most: int) -> Callable[..., Any]:
    """Returns a reversible loop `(bound, moving, fixed) -> moving` of a turn."""

    # JAX differentiates a loop with a traced bound in forward mode only.
    @jax.custom_vjp
    def run(bound: jax.Array, moving: list[Any], fixed: list[Any]) -> list[Any]:
        return lax.fori_loop(0, bound, lambda i, s: turn(i, s, fixed), moving)

    def forward(*args: Tree) -> tuple[list[Any], Any]:
        # Only inputs of the derivative get cotangents, since fixed leaves may contain
        # the examples of all clients.
        is_active = [leaf.perturbed for leaf in args[2]]
        bound, moving, fixed = jax.tree.map(lambda leaf: leaf.value, args)
        # The state before every turn, for the largest possible number of turns.
        rows = [jnp.zeros((most, *x.shape), x.dtype) for x in moving]

        def step(number: jax.Array, pair: tuple[list[Any], list[Any]]):
            moving, rows = pair
            rows = [
                lax.dynamic_update_index_in_dim(row, x, number, 0)
                for row, x in zip(rows, moving, strict=True)
            ]
            return turn(number, moving, fixed), rows

        moving, rows = lax.fori_loop(0, bound, step, (moving, rows))
        active = [x if a else None for x, a in zip(fixed, is_active, strict=True)]
        passive = [None if a else x for x, a in zip(fixed, is_active, strict=True)]
        return moving, (bound, rows, active, passive)

    def back(residuals: Tree, slopes: list[Any]) -> tuple[Any, ...]:
        bound, rows, active, passive = residuals
        is_active = [x is not None for x in active]
        active = [x for x in active if x is not None]
        passive = [x for x in passive if x is not None]
        # Only floating leaves have cotangents; counters are read from the stored rows.
        is_smooth = [_is_smooth(x) for x in rows]

        def step(turns: jax.Array, pair: tuple[list[Any], list[Any]]):
            slopes, sums = pair
            number = bound - 1 - turns
            leaves = [lax.dynamic_index_in_dim(x, number, 0, False) for x in rows]
            smooth, counts = _split(leaves, is_smooth)

            def advance(smooth: list[Any], active: list[Any]) -> list[Any]:
                moving = _joined(smooth, counts, is_smooth)
                fixed = _joined(active, passive, is_active)
                return _split(turn(number, moving, fixed), is_smooth)[0]

            # Every turn, from the last to the first, is run again and transposed.
            slopes, terms = jax.vjp(advance, smooth, active)[1](slopes)
            return slopes, [a + b for a, b in zip(sums, terms, strict=True)]

        start = [_dense(x) for x in _split(slopes, is_smooth)[0]]
        zeros = [jnp.zeros_like(x) for x in active]
        start, sums = lax.fori_loop(0, bound, step, (start, zeros))
        moving = _joined(start, [None] * len(rows), is_smooth)
        return None, moving, _joined(sums, [None] * len(is_active), is_active)

    run.defvjp(forward, back, symbolic_zeros=True)
    return run


def _dense(slope: Tree) -> Tree:
    """Returns a cotangent as an array, also if it is a symbolic zero."""
    if not isinstance(slope, custom_derivatives.SymbolicZero):
        return slope
    zero: Any = slope  # the type checker finds no dtype in its type
    return jnp.zeros(zero.shape, zero.dtype)

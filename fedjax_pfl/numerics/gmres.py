"""Linear systems given by their products alone: restarted GMRES.

For `A x = b` from a start x_0, with r = b - A x_0: a cycle makes an orthonormal basis
`v_0 = r / |r|, v_1, ...` of the space of `r, A r, A^2 r, ...`, and takes the x in
`x_0 + span(v)` of the least residual. Columns of `A V_m = V_(m+1) H` are made
orthonormal one after the other, `H = Q R`, so that

    x = x_0 + V_m R^-1 g,    g_j = |r| q_j[0],    |b - A x|^2 = |r|^2 - |g|^2,

and the next cycle begins at x. Sums with the basis are taken twice, against rounding.

    symbol   here       shape
    V        basis      [m + 1, D]
    Q, R     q, upper   [m + 1, m], [m, m]

For a singular A with a range that meets its kernel in 0 alone, all steps are in the
range: x keeps the part of the start in the kernel, as a fixed-point iteration would.

Reference: Saad, Schultz, "GMRES: a generalized minimal residual algorithm" (1986).
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import flatten_util, lax
from jax.typing import DTypeLike

from fedjax_pfl.core.aliases import Tree
from fedjax_pfl.core.client_rows import dot

__all__ = ["solve", "tolerance"]

_LENGTH = 20  # of a cycle
_CYCLES = 20
_HELPS = 0.5  # a cycle that leaves more of the residual is the last one


def tolerance(dtype: DTypeLike) -> float:
    """Returns the relative residual to reach: two thirds of the digits."""
    return float(jnp.finfo(dtype).eps) ** (2 / 3)


def solve(
    product: Callable[[Any], Any], right: Tree, start: Tree
) -> tuple[Any, jax.Array]:
    """Solves `A x = b`; returns x, and its residual over the larger of |b|, |r_0|."""
    b, restore = flatten_util.ravel_pytree(right)
    x = flatten_util.ravel_pytree(start)[0].astype(b.dtype)

    def times(v: jax.Array) -> jax.Array:
        return flatten_util.ravel_pytree(product(restore(v)))[0].astype(b.dtype)

    residual = b - times(x)
    size = jnp.maximum(_norm(b), _norm(residual))
    goal = tolerance(b.dtype) * size

    # Both loops carry whether they go on: under vmap a loop asks twice, and sums that
    # round in two ways would have it wait for a lane that does not move.
    def cycle(state: tuple[Any, ...]):
        x, residual, shortest, cycles, _ = state
        step = x + _step(times, residual, goal)
        new = b - times(step)
        now = _norm(new)
        # Rounding may let a residual rise: the better point stays.
        is_better = now < shortest
        x, residual = jnp.where(is_better, step, x), jnp.where(is_better, new, residual)
        goes_on = (now > goal) & (now <= _HELPS * shortest) & (cycles + 1 < _CYCLES)
        return x, residual, jnp.where(is_better, now, shortest), cycles + 1, goes_on

    length = _norm(residual)
    begin = (x, residual, length, jnp.zeros((), jnp.int32), length > goal)
    x, _, left, *_ = lax.while_loop(lambda state: state[-1], cycle, begin)
    return restore(x), left / jnp.where(size > 0, size, 1)


def _norm(x: jax.Array) -> jax.Array:
    """Returns the length of a vector."""
    return jnp.sqrt(jnp.vdot(x, x))


def _orthogonal(
    rows: jax.Array, x: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Splits x by orthonormal rows, some of them zero."""
    size = _norm(x)
    shares = dot(rows, x)
    x = x - dot(shares, rows)
    # Sums with the basis are taken twice, against rounding.
    corrections = dot(rows, x)
    x = x - dot(corrections, rows)
    length = _norm(x)
    length = jnp.where(length > 16 * jnp.finfo(x.dtype).eps * size, length, 0)
    unit = jnp.where(length > 0, x / jnp.where(length > 0, length, 1), 0)
    return shares + corrections, unit, length


def _step(
    times: Callable[[jax.Array], jax.Array], residual: jax.Array, goal: jax.Array
) -> jax.Array:
    """Returns the step `[D]` of one cycle from a residual `[D]`."""
    m, dtype, size = _LENGTH, residual.dtype, _norm(residual)
    basis = jnp.zeros((m + 1, *residual.shape), dtype)
    basis = basis.at[0].set(residual / jnp.where(size > 0, size, 1))
    q, upper = jnp.zeros((m, m + 1), dtype), jnp.zeros((m, m), dtype)

    def extend(state: tuple[Any, ...]):
        basis, q, upper, number, _ = state
        shares, unit, length = _orthogonal(basis, times(basis[number]))
        basis, is_whole = basis.at[number + 1].set(unit), length == 0
        column = shares.at[number + 1].set(length)
        inner, unit, length = _orthogonal(q, column)
        q = q.at[number].set(unit)
        upper = upper.at[:, number].set(inner.at[number].set(length))
        # |b - A x|^2 = |r|^2 - |g|^2, without forming x.
        left = jnp.square(size) - jnp.square(size * q[:, 0]).sum()
        goes_on = (number + 1 < m) & (left > jnp.square(goal)) & ~is_whole
        return basis, q, upper, number + 1, goes_on

    begin = (basis, q, upper, jnp.zeros((), jnp.int32), size > goal)
    basis, q, upper, *_ = lax.while_loop(lambda state: state[-1], extend, begin)
    image = size * q[:, 0]

    def substitute(done: jax.Array, y: jax.Array) -> jax.Array:
        number = m - 1 - done
        pivot = upper[number, number]
        entry = (image[number] - dot(upper[number], y)) / jnp.where(pivot > 0, pivot, 1)
        return y.at[number].set(jnp.where(pivot > 0, entry, 0))

    # x - x_0 = V_m R^-1 g by back substitution; zero pivots belong to columns without a
    # new direction.
    y = lax.fori_loop(0, m, substitute, jnp.zeros(m, dtype))
    return dot(y, basis[:m])

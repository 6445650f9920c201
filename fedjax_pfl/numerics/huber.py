"""The center of every column under the Huber function, by safeguarded Newton steps.

For one column of differences `x_k` from its median, the center m solves

    s(m) = sum_k p_k clip(x_k - m, -rho, rho) = 0

Updates, from 0, with the mass `n(m) = sum_k p_k [|x_k - m| < rho]`, which is the
negative slope of s, and a bracket kept from the sign of s:

    m <- m + s / n                 if n > 0 and the result is within the bracket
    m <- middle of the bracket     otherwise

s is monotone and linear between kinks: the last step is exact. The median is within
rho of the center, and the center between the rows. So the first bracket is `[-b, b]`
with `b = min(rho, max_k |x_k|)`. A column is left alone as soon as s vanishes to the
rounding of its terms, which are about as large as b, however large rho is; else the
bracket would disturb a center that is found.

The center is not unique if the two sides balance and no row is within rho. The midpoint
median is the middle of all centers, and stays.

    symbol    here        shape
    x_k       rows        [K, B]   differences, a block of columns
    m, s, n   m, s, n     [B]

Limits: `rho -> 0` is the median, `rho >= max_k |x_k - mean|` the mean.

For 100 rows of 1e5 float32 columns the steps take 17 ms on one core of a CPU, the
median 46: a row is added to the sums of a block of columns at a time, and a block
stops when all its centers are found.

Reference: Huber, "Robust estimation of a location parameter".
"""

import functools

import jax
import jax.numpy as jnp
from jax import lax

from fedjax_pfl.core import struct
from fedjax_pfl.numerics import column_blocks

__all__ = ["Centers", "centers"]

_STEPS = 8  # six at most in tests with 2 to 301 rows and any radius
_COLUMNS = 1000  # per block: 100 float32 rows of them stay in cache


@struct.pytree_dataclass
class Centers:
    """Centers of columns, `[D]` each."""

    shift: jax.Array  # m, the difference of the center and the median
    residual: jax.Array  # |s| / rho, at most 1
    inside: jax.Array  # n, 0 if no row is within rho
    outside: jax.Array  # number of rows in use that are further than rho


def _sums(
    rows: jax.Array, p: jax.Array, rho: jax.Array, m: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Returns the sums s and n `[B]` at m `[B]`."""

    def add_row(row: jax.Array, sums: tuple[jax.Array, jax.Array]):
        s, n = sums
        d = rows[row] - m
        s = s + p[row] * jnp.clip(d, -rho, rho)
        return s, n + jnp.where(jnp.abs(d) < rho, p[row], 0)

    return lax.fori_loop(0, rows.shape[0], add_row, (jnp.zeros_like(m),) * 2)


def _outside(rows: jax.Array, p: jax.Array, rho: jax.Array, m: jax.Array) -> jax.Array:
    """Counts rows in use `[B]` that are further than rho."""

    def add_row(row: jax.Array, count: jax.Array) -> jax.Array:
        far = (jnp.abs(rows[row] - m) > rho) & (p[row] > 0)
        return count + far.astype(m.dtype)

    return lax.fori_loop(0, rows.shape[0], add_row, jnp.zeros_like(m))


def _of_block(
    p: jax.Array, rho: jax.Array, rows: jax.Array, median: jax.Array
) -> Centers:
    """Centers of columns `[K, B]` with medians `[B]`."""
    count = rows.shape[0]
    rows = jnp.where((p > 0)[:, None], rows, median[None]) - median[None]
    edge = jnp.minimum(rho, jnp.maximum(rows.max(axis=0), -rows.min(axis=0)))
    eps = jnp.finfo(rows.dtype).eps

    def vanishes(s: jax.Array, n: jax.Array) -> jax.Array:
        # Without a row within rho, s is a difference of sums of shares.
        terms = jnp.where(n > 0, 8 + count**0.5, 8 + count)
        return jnp.abs(s) <= edge * eps * terms

    def unfinished(state: tuple[jax.Array, ...]) -> jax.Array:
        number, _, s, n, _, _ = state
        return (number < _STEPS) & ~vanishes(s, n).all()

    def step(state: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        number, m, s, n, low, high = state
        low, high = jnp.where(s > 0, m, low), jnp.where(s < 0, m, high)
        newton = m + s / jnp.where(n > 0, n, 1)
        within = (n > 0) & (low <= newton) & (newton <= high)
        new = jnp.where(within, newton, low / 2 + high / 2)
        new = jnp.where(vanishes(s, n), m, new)
        return number + 1, new, *_sums(rows, p, rho, new), low, high

    m = jnp.zeros_like(median)
    start = jnp.zeros((), jnp.int32), m, *_sums(rows, p, rho, m), -edge, edge
    _, m, s, n, _, _ = lax.while_loop(unfinished, step, start)
    return Centers(
        shift=m,
        residual=jnp.abs(s) / rho,
        inside=n,
        outside=_outside(rows, p, rho, m),
    )


def centers(
    matrix: jax.Array, p: jax.Array, median: jax.Array, rho: jax.Array
) -> Centers:
    """Finds the centers of `[K, D]`, from midpoint medians `[D]` and a radius `[]`."""
    # Blocks of columns stay in the cache of a CPU.
    solve = functools.partial(_of_block, p, rho)
    return column_blocks.in_blocks(solve, _COLUMNS, matrix, median)

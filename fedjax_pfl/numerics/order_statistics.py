"""The two middle order statistics of every column, without a sort.

Up to `MAX_NETWORK` rows by a selection network: Batcher's odd-even merge sort without
the comparators that do not reach the middle. Written out row by row it is one kernel
that keeps a column in registers. Its compilation grows faster than its length, so that
more rows are counted instead: bisection on the integers that order like the floats,
exact after one pass per bit, in blocks of columns that stay in cache.

Milliseconds of CPU time for 1e5 float32 columns, and seconds to compile, on one core,
of selections alone and at different moments of a busy machine, so that factors below 2
say little:

    rows        5     10     20     50    100          200         1000
    network   0.2    0.4    1.0    6.4     21   563 (9.0 s)           -
    counting    -      -      -      -      -          167          843
    bitonic     -    2.9      -     42    127          274         1797

`bitonic` sorts by minima and maxima of whole blocks; `jnp.sort` of transposed blocks
takes 2221 for 200 rows. Under weights rows are always counted, by their mass.
"""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax
from jax.typing import DTypeLike

from fedjax_pfl.numerics import column_blocks

__all__ = ["MAX_NETWORK", "middle_rows", "midpoint", "weighted_middle"]

MAX_NETWORK = 100  # rows; compiled in 1.8 s, in 9 s with 200, and then in pieces
_COLUMNS = 272  # per block of counting; a power of two would let rows share cache sets
_GROUP = 32  # rows that are counted in one kernel


@functools.cache
def _network(rows: int) -> tuple[tuple[int, int], ...]:
    """Returns comparators `(low, high)` that put the middle rows into place."""
    comparators = []
    size = 1
    while size < rows:
        step = size
        while step:
            for start in range(step % size, rows - step, 2 * step):
                # Padding behind the last row stays there, and needs no comparators.
                for low in range(start, min(start + step, rows - step)):
                    if low // (2 * size) == (low + step) // (2 * size):
                        comparators.append((low, low + step))
            step //= 2
        size *= 2
    # Backward: only comparators that reach the middle ranks stay.
    needed = set(_middle_ranks(rows))
    network = []
    for pair in reversed(comparators):
        if needed.intersection(pair):
            needed.update(pair)
            network.append(pair)
    return tuple(reversed(network))


def _middle_ranks(rows: int) -> tuple[int, int]:
    """Returns the middle two ranks of an even number of rows, else one and before."""
    high = rows // 2
    return max(high - 1, 0), high


def _by_network(rows: list[jax.Array]) -> tuple[jax.Array, jax.Array]:
    """Selects by minima and maxima of K rows `[D]`."""
    for low, high in _network(len(rows)):
        a, b = rows[low], rows[high]
        rows[low], rows[high] = lax.min(a, b), lax.max(a, b)
    low, high = _middle_ranks(len(rows))
    return rows[low], rows[high]


def _flip(bits: jax.Array) -> jax.Array:
    """Turns bits of floats into integers of the same order, and back."""
    return jnp.where(bits < 0, bits ^ jnp.iinfo(bits.dtype).max, bits)


def _count(groups: jax.Array, limit: jax.Array) -> jax.Array:
    """Counts, as `int32[B]`, the values of `[G, R, B]` that are at most `limit [B]`."""

    def add_group(group: jax.Array, count: jax.Array) -> jax.Array:
        rows = list(groups[group])
        return count + sum((row <= limit).astype(jnp.int32) for row in rows)

    return lax.fori_loop(
        0, groups.shape[0], add_group, jnp.zeros(limit.shape, jnp.int32)
    )


def _mass(groups: jax.Array, p: jax.Array, limit: jax.Array) -> jax.Array:
    """Mass `[B]`, by p `[G, R]`, of values of `[G, R, B]` that are at most `limit`."""

    def add_group(group: jax.Array, mass: jax.Array) -> jax.Array:
        rows, shares = list(groups[group]), list(p[group])
        pairs = zip(rows, shares, strict=True)
        return mass + sum(jnp.where(row <= limit, share, 0) for row, share in pairs)

    return lax.fori_loop(0, groups.shape[0], add_group, jnp.zeros(limit.shape, p.dtype))


def _keys(matrix: jax.Array) -> jax.Array:
    """Integers `[K + padding, B]` that order like the floats; padding is last."""
    ints = jnp.dtype(f"int{8 * matrix.dtype.itemsize}")
    padding = ((0, -matrix.shape[0] % _GROUP), (0, 0))
    padded = jnp.pad(matrix, padding, constant_values=jnp.inf)
    return _flip(lax.bitcast_convert_type(padded, ints))


def _bisect(keys: jax.Array, enough: Callable[[jax.Array], jax.Array]) -> jax.Array:
    """Returns the least integers `[B]` with `enough`, for keys `[.., B]`."""
    limits = jnp.iinfo(keys.dtype)

    def halve(_: jax.Array, interval: tuple[jax.Array, jax.Array]):
        low, high = interval
        mid = (low & high) + ((low ^ high) >> 1)  # their mean without overflow
        is_enough = enough(mid)
        return jnp.where(is_enough, low, mid + 1), jnp.where(is_enough, mid, high)

    interval = tuple(
        jnp.full(keys.shape[1:], limit, keys.dtype)
        for limit in (limits.min, limits.max)
    )
    return lax.fori_loop(0, limits.bits, halve, interval)[0]


def _floats(
    low: jax.Array, high: jax.Array, dtype: DTypeLike
) -> tuple[jax.Array, jax.Array]:
    """Turns keys back into values."""
    low, high = lax.bitcast_convert_type(_flip(jnp.stack([low, high])), dtype)
    return low, high


def _by_counting(matrix: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Selects from `[K, B]` by bisection on the order of the bits."""
    rows, columns = matrix.shape
    keys = _keys(matrix)
    groups = keys.reshape(-1, _GROUP, columns)
    low_rank, high_rank = _middle_ranks(rows)
    low = _bisect(keys, lambda limit: _count(groups, limit) > low_rank)
    above = jnp.where(keys > low[None], keys, jnp.iinfo(keys.dtype).max).min(axis=0)
    high = jnp.where(_count(groups, low) > high_rank, low, above)
    return _floats(low, high, matrix.dtype)


def _by_mass(p: jax.Array, matrix: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Selects from `[K, B]` the lower and the upper median under p `[K]`."""
    rows, columns = matrix.shape
    keys = _keys(matrix)
    groups = keys.reshape(-1, _GROUP, columns)
    shares = jnp.pad(p, (0, -rows % _GROUP))
    rounding = rows * jnp.finfo(p.dtype).eps  # of a sum of shares

    def mass(limit: jax.Array) -> jax.Array:
        return _mass(groups, shares.reshape(-1, _GROUP), limit)

    # The least value that, with the smaller ones, has half of the mass, and the least
    # that has more than half: between them the two sides balance.
    low = _bisect(keys, lambda limit: mass(limit) >= (1 - rounding) / 2)
    last = jnp.iinfo(keys.dtype).max
    is_above = (keys > low[None]) & (shares > 0)[:, None]
    above = jnp.where(is_above, keys, last).min(axis=0)
    half = (mass(low) <= (1 + rounding) / 2) & (above < last)
    return _floats(low, jnp.where(half, above, low), matrix.dtype)


def middle_rows(matrix: jax.Array, valid: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Returns the middle two values `[D]` of the columns of valid rows."""
    rows, num_valid = valid.shape[0], valid.sum(dtype=jnp.int32)
    position = jnp.cumsum(~valid, dtype=jnp.int32)
    # Of the other rows one half counts as -inf and one half as inf, the odd one as inf,
    # so that the middle stays in the middle. They are filled in while they are read:
    # another matrix would take as long to write as all the rest.
    fill = jnp.where(position <= (rows - num_valid) // 2, -jnp.inf, jnp.inf)
    fill = jnp.where(num_valid > 0, fill, 0).astype(matrix.dtype)
    if rows <= MAX_NETWORK:
        filled = (jnp.where(valid[k], matrix[k], fill[k]) for k in range(rows))
        low, high = _by_network(list(filled))
    else:
        low, high = column_blocks.in_blocks(
            lambda block: _by_counting(jnp.where(valid[:, None], block, fill[:, None])),
            _COLUMNS,
            matrix,
        )
    # Of an odd number of values both are the middle one.
    odd = num_valid % 2 == 1
    if rows % 2:
        low = jnp.where(odd, high, low)
    else:
        high = jnp.where(odd, low, high)
    return low, high


def midpoint(low: jax.Array, high: jax.Array) -> jax.Array:
    """Returns the mean of two values; their sum may overflow."""
    return low / 2 + high / 2


def weighted_middle(matrix: jax.Array, p: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Returns the lower and the upper weighted median `[D]` of every column."""
    select = functools.partial(_by_mass, p)
    return column_blocks.in_blocks(select, _COLUMNS, matrix)

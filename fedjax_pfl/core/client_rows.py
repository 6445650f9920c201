"""Operations on rows of clients: take, write, select, sum."""

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.flatten_util import ravel_pytree

from fedjax_pfl.core import sharding
from fedjax_pfl.core.aliases import Scalar, Tree

__all__ = [
    "broadcast",
    "clip",
    "dot",
    "finite_rows",
    "gram",
    "is_finite",
    "magnitude",
    "mix",
    "norm",
    "num_bytes",
    "pairs",
    "powers_of_two",
    "products",
    "put",
    "ravel_about",
    "ravel_rows",
    "rescale",
    "select_rows",
    "size",
    "square_sums",
    "sum_of_blocks",
    "take",
    "weighted_mean",
    "weighted_sum",
]

_BLOCK, _MOST_BLOCKS = 128, 4  # rows of a block of a Gram matrix, and blocks
# Columns of a block, of matrices that gain from blocks: up to half of the time.
_COLUMNS, _MANY_COLUMNS = 4096, 8 * 4096
_LONG, _HEIGHT = 1024, 16  # from this length vectors are summed as matrices, so high


def dot(a: jax.Array, b: jax.Array) -> jax.Array:
    """Multiplies matrices or vectors at highest precision."""
    return jnp.matmul(a, b, precision=lax.Precision.HIGHEST)


def take(tree: Tree, rows: jax.Array) -> Tree:
    """Gathers rows `int32[K]` of leaves `[N, ...]`."""
    return jax.tree.map(lambda leaf: leaf[rows], tree)


def put(tree: Tree, rows: jax.Array, values: Tree) -> Tree:
    """Scatters values `[K, ...]` into rows `int32[K]`; others stay bit-identical."""
    return jax.tree.map(lambda leaf, new: leaf.at[rows].set(new), tree, values)


def broadcast(tree: Tree, num_rows: int) -> Tree:
    """Repeats leaves `[...]` along a new leading axis, `[num_rows, ...]`."""
    return jax.tree.map(lambda x: jnp.broadcast_to(x, (num_rows, *jnp.shape(x))), tree)


def size(tree: Tree) -> int:
    """Counts values in a tree of arrays."""
    return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(tree))


def num_bytes(tree: Tree) -> int:
    """Counts the bytes of a tree of arrays in memory."""
    leaves = jax.tree.leaves(tree)
    return sum(math.prod(x.shape) * x.dtype.itemsize for x in leaves)


def _column(values: jax.Array, like: jax.Array) -> jax.Array:
    """Reshapes `[K]` so that it broadcasts against `[K, ...]`."""
    return values.reshape(values.shape + (1,) * (like.ndim - 1))


def select_rows(condition: jax.Array, yes: Tree, no: Tree) -> Tree:
    """Picks rows of `yes` where `condition bool[K]` holds, else rows of `no`."""
    return jax.tree.map(lambda a, b: jnp.where(_column(condition, a), a, b), yes, no)


def finite_rows(tree: Tree, num_rows: int) -> jax.Array:
    """Returns, for every row, whether all its floating values are finite.

    Args:
      tree: pytree of `[K, ...]`, may be empty.
      num_rows: K.

    Returns:
      `bool[K]`.
    """
    finite = jnp.ones((num_rows,), bool)
    for leaf in jax.tree.leaves(tree):
        if jnp.issubdtype(leaf.dtype, jnp.floating):
            finite &= jnp.isfinite(_small_sums(leaf))
    return finite


def is_finite(tree: Tree) -> jax.Array:
    """Returns whether all floating values of a tree `[...]` are finite, `bool[]`."""
    return finite_rows(jax.tree.map(lambda leaf: leaf[None], tree), 1)[0]


def _small_sums(leaf: jax.Array) -> jax.Array:
    """Sums rows `[K, ...]`, scaled against overflow: finite if the rows are."""
    if jnp.finfo(leaf.dtype).bits < 32:
        leaf = leaf.astype(jnp.float32)
    # One product reads all values once, and is several times faster on a CPU than a
    # test of every value.
    if leaf.shape[0] > 1:
        rows = _matrix(leaf)
        return dot(rows, jnp.full(rows.shape[1], 2.0**-64, rows.dtype))
    # A single row becomes a matrix, since XLA computes a product of vectors
    # sequentially.
    shape = leaf.shape[1:]
    splits = [(math.prod(shape[:k]), math.prod(shape[k:])) for k in range(len(shape))]
    height, width = max(splits, key=min, default=(1, 1))
    if height == 1 and width >= _LONG:
        leaf = _matrix(leaf)
        leaf = jnp.pad(leaf, ((0, 0), (0, -width % _HEIGHT)))
        height, width = _HEIGHT, leaf.shape[1] // _HEIGHT
    small = jnp.full(width, 2.0**-64, leaf.dtype)
    return dot(leaf.reshape(leaf.shape[0], height, width), small).sum(axis=1)


def magnitude(tree: Tree) -> jax.Array:
    """Returns the largest absolute value in a tree of arrays.

    Args:
      tree: pytree of arrays of one dtype.

    Returns:
      `[]`, at least 0; NaN or infinite if a value is.
    """
    leaves = jax.tree.leaves(tree)
    largest = [jnp.abs(leaf).max(initial=0) for leaf in leaves]
    # Maxima over many values ignore NaN on a CPU (docs/platforms.md).
    finite = is_finite(leaves)
    most = functools.reduce(jnp.maximum, largest, 0.0)
    return jnp.where(finite | jnp.isinf(most), most, jnp.nan)


def powers_of_two(values: jax.Array) -> jax.Array:
    """Rounds values down to powers of two with inverses that are normal numbers.

    XLA divides by multiplying with inverses, and flushes subnormal numbers to zero.
    """
    powers = jnp.ldexp(jnp.ones_like(values), jnp.frexp(values)[1] - 1)
    tiny = float(jnp.finfo(powers.dtype).tiny)
    return jnp.clip(powers, tiny, 1 / tiny)


def rescale(tree: Tree) -> tuple[Any, jax.Array]:
    """Divides a tree by a power of two, to magnitudes below 4; returns both."""
    scale = powers_of_two(magnitude(tree))
    return jax.tree.map(lambda leaf: leaf / scale, tree), scale


def norm(tree: Tree) -> tuple[jax.Array, jax.Array]:
    """Computes the Euclidean norm of a tree of any size.

    Args:
      tree: pytree of arrays of one dtype.

    Returns:
      The norm `[]` in a unit, and the unit `[]`, a power of two: their product may
      overflow. The derivative at 0 is 0. Without a finite value the norm is not finite.
    """
    scaled, unit = rescale(tree)
    square = sum(
        (jnp.square(leaf).sum() for leaf in jax.tree.leaves(scaled)),
        jnp.zeros_like(unit),
    )
    # The inner `where` keeps the derivative of the root finite at 0.
    some = square != 0
    return jnp.where(some, jnp.sqrt(jnp.where(some, square, 1)), 0), unit


def clip(tree: Tree, bound: Scalar) -> Tree:
    """Clips a tree to a norm.

    Args:
      tree: pytree of arrays of one dtype.
      bound: `[]` > 0.

    Returns:
      A tree with a norm of at most the bound, to rounding; shorter trees are unchanged.
      NaN stays, and an infinite value becomes NaN.
    """
    length, unit = norm(tree)
    is_long = length > bound / unit
    scale = bound / jnp.where(is_long, length, 1)

    def shortened(leaf: jax.Array) -> jax.Array:
        # First by the unit: the norm itself may overflow.
        short = leaf / unit * scale.astype(leaf.dtype)
        return jnp.where(is_long, short, leaf)

    return jax.tree.map(shortened, tree)


def weighted_sum(tree: Tree, weights: jax.Array) -> Tree:
    """Sums rows, `sum_k weights[k] * leaf[k]`, at highest precision.

    Args:
      tree: pytree of `[K, *P]`; rows of weight 0 may hold anything, NaN included.
      weights: `[K]`.

    Returns:
      Pytree of `[*P]`.
    """
    used, is_here = weights != 0, jax.default_backend() == "cpu"
    # If devices divide the rows, they add up the result below: one row, once.
    is_here = is_here and sharding.dividing() is None

    def sum_leaf(leaf: jax.Array) -> jax.Array:
        w, matrix = weights.astype(leaf.dtype), _matrix(leaf)
        # On a CPU, XLA multiplies a vector and a reshaped matrix without vectorization.
        if is_here and leaf.ndim > 2:
            total = dot(jnp.stack([w, w]), matrix)[0]
        else:
            total = dot(w, matrix)
        return total.reshape(leaf.shape[1:])

    def plain(tree: Tree) -> Tree:
        return jax.tree.map(sum_leaf, tree)

    def clean(tree: Tree) -> Tree:
        return plain(jax.tree.map(lambda x: jnp.where(_column(used, x), x, 0), tree))

    if not is_here:
        return clean(tree)
    # On a CPU writing a clean copy takes several times as long as the sum, and is only
    # needed for NaN and infinities: a finite value times 0 adds nothing. Derivatives of
    # a sum with these would be NaN even if it were not chosen, so it is a branch.
    is_safe = lax.cond(
        used.all(),
        lambda _: jnp.ones((), bool),
        lambda tree: finite_rows(tree, len(used)).all(),
        tree,
    )
    return lax.cond(is_safe, plain, clean, tree)


def weighted_mean(tree: Tree, weights: jax.Array) -> Tree:
    """Averages rows; returns zeros if the weights sum to zero.

    Args:
      tree: pytree of `[K, *P]`.
      weights: `[K]`, at least 0.

    Returns:
      Pytree of `[*P]`.
    """
    total = weights.sum()
    return weighted_sum(tree, weights / jnp.where(total > 0, total, 1))


def _matrix(leaf: jax.Array) -> jax.Array:
    """Flattens every row of `[K, *P]`, `[K, size]`."""
    return leaf.reshape(leaf.shape[0], -1)


def gram(tree: Tree) -> jax.Array:
    """Computes inner products of all pairs of rows, leaf by leaf with `pairs`.

    Args:
      tree: pytree of `[K, *P]`, finite.

    Returns:
      `[K, K]` at highest precision, symmetric to the last bit.
    """
    per_leaf = [pairs(_matrix(leaf)) for leaf in jax.tree.leaves(tree)]
    total = sum(per_leaf[1:], per_leaf[0])
    # Entries at both sides of the diagonal may be rounded differently.
    return (total + total.T) / 2


def pairs(matrix: jax.Array) -> jax.Array:
    """Computes inner products of all pairs of rows.

    On a CPU many columns are added up in blocks.

    Args:
      matrix: `[K, D]`.

    Returns:
      `[K, K]` at highest precision, symmetric to rounding.
    """
    columns = matrix.shape[1]
    if jax.default_backend() != "cpu" or columns < _MANY_COLUMNS:
        return _pairs(matrix)

    def of_block(start: Any, width: int) -> jax.Array:
        return _pairs(lax.dynamic_slice_in_dim(matrix, start, width, axis=1))

    return sum_of_blocks(columns, _COLUMNS, of_block)


def sum_of_blocks(
    columns: int, width: int, of_block: Callable[[Any, int], jax.Array]
) -> jax.Array:
    """Sums `of_block(first column, width)` over blocks of columns."""
    count = (columns - 1) // width  # of whole blocks before the last
    tail = of_block(count * width, columns - count * width)
    sums = lax.fori_loop(
        0,
        count,
        lambda number, total: total + of_block(number * width, width),
        jnp.zeros_like(tail),
    )
    return tail + sums


def _pairs(matrix: jax.Array) -> jax.Array:
    """Computes `pairs` of all columns at once; on a CPU the lower half is mirrored."""
    count, num_blocks = matrix.shape[0], 1
    if jax.default_backend() == "cpu":
        num_blocks = min(max(count // _BLOCK, 1), _MOST_BLOCKS)
    bounds = [count * k // num_blocks for k in range(1, num_blocks)]
    blocks = jnp.split(matrix, bounds)
    grid: list[list[jax.Array]] = []
    for k, block in enumerate(blocks):
        left = [row[k].T for row in grid]
        grid.append([*left, *(dot(block, column.T) for column in blocks[k:])])
    return jnp.block(grid)


def square_sums(matrix: jax.Array) -> jax.Array:
    """Sums squares of rows `[K, D]`, to `[K]`.

    On a CPU, XLA adds a row's numbers sequentially; a product is vectorized.
    """
    square = jnp.square(matrix)
    if jax.default_backend() != "cpu":
        return square.sum(axis=1)
    return dot(square, jnp.ones(matrix.shape[1], matrix.dtype))


def products(tree: Tree, vector: Tree) -> jax.Array:
    """Computes inner products of all rows with one vector, at highest precision.

    Args:
      tree: pytree of `[K, *P]`.
      vector: pytree of `[*P]`.

    Returns:
      `[K]`.
    """

    def product(leaf: jax.Array, x: jax.Array) -> jax.Array:
        return dot(_matrix(leaf), x.reshape(-1))

    per_leaf: list[jax.Array] = jax.tree.leaves(jax.tree.map(product, tree, vector))
    return sum(per_leaf[1:], per_leaf[0])


def mix(tree: Tree, weights: jax.Array) -> Tree:
    """Sums rows with a row of weights per receiver, `sum_k weights[j, k] * leaf[k]`.

    Args:
      tree: pytree of `[K, *P]`, finite.
      weights: `[J, K]`.

    Returns:
      Pytree of `[J, *P]`, one product per leaf at highest precision.
    """

    def mix_leaf(leaf: jax.Array) -> jax.Array:
        product = dot(weights.astype(leaf.dtype), _matrix(leaf))
        return product.reshape(-1, *leaf.shape[1:])

    return jax.tree.map(mix_leaf, tree)


def ravel_rows(tree: Tree) -> tuple[jax.Array, Callable[[jax.Array], Any]]:
    """Flattens every row of a tree into one vector.

    Args:
      tree: pytree of `[K, *P]` with one dtype.

    Returns:
      `[K, D]` and the function that turns `[D]` back into a tree of `[*P]`.
    """
    _, unravel = ravel_pytree(jax.tree.map(lambda leaf: leaf[0], tree))
    leaves = jax.tree.leaves(tree)
    if len(leaves) == 1:  # nothing to copy
        return _matrix(leaves[0]), unravel
    return jax.vmap(lambda row: ravel_pytree(row)[0])(tree), unravel


def ravel_about(
    tree: Tree, reference: Tree
) -> tuple[jax.Array, jax.Array, Callable[[jax.Array], Any]]:
    """Flattens every row of a tree, and a reference like a row.

    Args:
      tree: pytree of `[K, *P]` with one dtype.
      reference: pytree of `[*P]`.

    Returns:
      `[K, D]`, `[D]` and the function that turns `[D]` back into a tree of `[*P]`.
    """
    matrix, unravel = ravel_rows(tree)
    rows, _ = ravel_rows(jax.tree.map(lambda leaf: leaf[None], reference))
    return matrix, rows[0].astype(matrix.dtype), unravel

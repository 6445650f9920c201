"""Rows of any finite size, brought to lengths with squares that float32 can hold."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.typing import ArrayLike, DTypeLike

from fedjax_pfl.core import columns, struct
from fedjax_pfl.core.client_rows import (
    dot,
    pairs,
    powers_of_two,
    square_sums,
    sum_of_blocks,
)

__all__ = [
    "ScaledRows",
    "distances",
    "magnitudes",
    "measure",
    "median",
    "precision",
    "quantile",
]

_HUGE = 2.0**50  # in multiples of the median row; its square is far from overflow
# On a CPU rows are scaled in blocks of columns, which stay in the caches: of so many
# values, and of at least so many columns, since a product is added to a `[K, K]`.
_VALUES, _COLUMNS = 100_000, 1024


def _blocks(rows: int, columns: int) -> tuple[int, int]:
    """Columns of a block, and the number of blocks before the last."""
    if jax.default_backend() != "cpu":
        return columns, 0
    width = min(max(_VALUES // rows, _COLUMNS), columns)
    return width, (columns - 1) // width


def _sum(
    shape: tuple[int, ...], of_block: Callable[[Any, int], jax.Array]
) -> jax.Array:
    """Sums `of_block(first column, width)` over blocks of the columns of `[K, D]`."""
    width, _ = _blocks(*shape)
    return columns.total(sum_of_blocks(shape[1], width, of_block))


def quantile(values: jax.Array, p: jax.Array, share: Any) -> jax.Array:
    """Returns the lower quantile of `[K]` under probabilities p; `inf` if none."""
    mass = jnp.where(values[None, :] <= values[:, None], p[None, :], 0).sum(axis=1)
    # A share above 1 gives the largest value.
    share = jnp.minimum(jnp.asarray(share, p.dtype), 1)
    enough = (1 - p.shape[0] * jnp.finfo(p.dtype).eps) * share  # less its rounding
    return jnp.where((p > 0) & (mass >= enough), values, jnp.inf).min()


def median(values: jax.Array, p: jax.Array) -> jax.Array:
    """Returns the lower median of `[K]` under probabilities p; `inf` if none."""
    return quantile(values, p, 0.5)


def _upper_median(values: jax.Array, p: jax.Array) -> jax.Array:
    """Returns the least of `[K]` that, with the smaller ones, has more than half."""
    return quantile(values, p, 0.5 + 2 * p.shape[0] * jnp.finfo(p.dtype).eps)


def magnitudes(matrix: jax.Array) -> jax.Array:
    """Returns the largest magnitudes `[K]` of finite rows `[K, D]`."""
    # Two plain reductions, since a CPU would write all absolute values to memory first.
    # Of long rows they may leave out NaN there.
    return columns.largest(jnp.maximum(matrix.max(axis=1), -matrix.min(axis=1)))


def distances(
    matrix: jax.Array, valid: jax.Array, center: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Returns units `[K]`, and distances `[K]` of rows from a center in them."""
    most = jnp.where(valid, magnitudes(matrix), 0)
    most = jnp.maximum(most, columns.largest(jnp.abs(center).max()))
    unit = powers_of_two(most)
    # Both points are divided by the unit before they are subtracted, so that a square
    # neither overflows nor vanishes, whatever the size of a row.
    difference = matrix / unit[:, None] - center[None] / unit[:, None]
    norm = jnp.sqrt(columns.total(jnp.square(difference).sum(axis=1)))
    return unit, jnp.where(valid, norm, 0)


def precision(dtype: DTypeLike) -> float:
    """Returns the rounding error of a dimensionless number of order one."""
    return 1e-10 if dtype == jnp.float64 else 1e-6


@struct.pytree_dataclass
class ScaledRows:
    """Rows over a unit of about their size, the longest of them shortened."""

    matrix: jax.Array  # [K, D] the unscaled rows
    valid: jax.Array  # bool[K] rows that take part; the others become zeros
    scale: jax.Array  # [] a power of two, the unit of the result
    divisor: jax.Array  # [K] the scale, or more for a row that would overflow
    factor: jax.Array  # [K] 1, or less for a row that is shortened
    norm: jax.Array  # [K] lengths of the result

    @property
    def shortened(self) -> jax.Array:
        """Returns the rows `bool[K]` that count as less long than they are."""
        return self.factor < 1

    def typical(self, p: jax.Array) -> jax.Array:
        """Returns the row `int32[]` with the length nearest to the median under p."""
        off = jnp.abs(self.norm - median(self.norm, p))
        return jnp.argmin(jnp.where(p > 0, off, jnp.inf)).astype(jnp.int32)

    def row(self, number: jax.Array) -> jax.Array:
        """Returns a row `[D]` of the result."""
        return self.matrix[number] / self.divisor[number] * self.factor[number]

    def _part(self, center: jax.Array, start: int | jax.Array, width: int) -> jax.Array:
        """Slices columns of the centered rows, `[K, width]`."""
        part = lax.dynamic_slice_in_dim(self.matrix, start, width, axis=1)
        rows = part / self.divisor[:, None] * self.factor[:, None]
        rows = rows - lax.dynamic_slice_in_dim(center, start, width)[None]
        return jnp.where(self.valid[:, None], rows, 0)

    def rows(self, center: jax.Array) -> jax.Array:
        """Returns the rows less the center, `[K, D]`."""
        return self._part(center, 0, self.matrix.shape[1])

    def _sum(self, center: jax.Array, fn: Callable[..., jax.Array]) -> jax.Array:
        """Sums `fn(rows less center, first column)` over blocks of columns."""
        return _sum(
            self.matrix.shape,
            lambda start, width: fn(self._part(center, start, width), start),
        )

    def gram(self, center: jax.Array) -> jax.Array:
        """Computes inner products `[K, K]` of rows less center, exactly symmetric."""
        total = self._sum(center, lambda rows, _: pairs(rows))
        return (total + total.T) / 2

    def norms(self, center: jax.Array) -> jax.Array:
        """Norms `[K]` of the rows less the center."""
        return jnp.sqrt(self._sum(center, lambda rows, _: square_sums(rows)))

    def project(self, center: jax.Array, vector: jax.Array) -> jax.Array:
        """Multiplies the rows less the center with a vector `[D]`, to `[K]`."""

        def products(rows: jax.Array, start: int | jax.Array) -> jax.Array:
            return dot(rows, lax.dynamic_slice_in_dim(vector, start, rows.shape[1]))

        return self._sum(center, products)

    def combine(self, weights: jax.Array, center: jax.Array) -> jax.Array:
        """Returns the sum `[D]` of the rows less the center by weights `[K]`."""
        width, blocks = _blocks(*self.matrix.shape)

        def of_block(number: jax.Array) -> jax.Array:
            return dot(weights, self._part(center, number * width, width))

        last = blocks * width
        tail = dot(weights, self._part(center, last, self.matrix.shape[1] - last))
        if not blocks:
            return tail
        sums = lax.map(of_block, jnp.arange(blocks)).reshape(-1)
        return jnp.concatenate([sums, tail])


def measure(
    matrix: jax.Array, valid: jax.Array, p: jax.Array, rho: ArrayLike = 0
) -> ScaledRows:
    """Measures rows `[K, D]`; `rho` is a length that no outlier has."""
    rho = jnp.asarray(rho, matrix.dtype)
    limits = jnp.finfo(matrix.dtype)

    def units(size: jax.Array) -> tuple[jax.Array, jax.Array]:
        scale = powers_of_two(jnp.maximum(_upper_median(size, p), rho))
        return scale, jnp.maximum(scale, size / _HUGE)

    def of_block(start: int | jax.Array, width: int) -> jax.Array:
        return square_sums(lax.dynamic_slice_in_dim(matrix, start, width, axis=1))

    square = jnp.where(valid, _sum(matrix.shape, of_block), 0)

    def by_norms() -> tuple[jax.Array, jax.Array, jax.Array]:
        norm = jnp.sqrt(square)
        scale, divisor = units(norm)
        return scale, divisor, norm / divisor

    def by_magnitudes() -> tuple[jax.Array, jax.Array, jax.Array]:
        scale, divisor = units(jnp.where(valid, magnitudes(matrix), 0))
        parts = jnp.square(matrix / divisor[:, None]).sum(axis=1)
        norm = jnp.where(valid, jnp.sqrt(columns.total(parts)), 0)
        return scale, divisor, norm

    # Only odd sizes need a look at every magnitude before anything is squared.
    is_exact = jnp.isfinite(square) & (square > limits.tiny / limits.eps**2)
    is_ordinary = (is_exact | ~valid).all()
    scale, divisor, norm = lax.cond(is_ordinary, by_norms, by_magnitudes)
    # A row that is far longer than the median row and rho counts as that long: among
    # rows of ordinary size it is then as far away as numbers can tell. The upper
    # median, since neither of two halves consists of outliers.
    limit = jnp.maximum(_upper_median(norm, p), rho / scale) / precision(matrix.dtype)
    long = norm > limit
    factor = jnp.where(long, limit / jnp.where(long, norm, 1), 1)
    return ScaledRows(
        matrix=matrix,
        valid=valid,
        scale=scale,
        divisor=divisor,
        factor=factor,
        norm=factor * norm,
    )

"""Squared distances between rows, to the digits of the rows that are near together."""

import jax
import jax.numpy as jnp
from jax import lax
from jax.typing import ArrayLike

from fedjax_pfl.core import struct
from fedjax_pfl.numerics import scaled_rows

__all__ = ["Search", "scores", "search", "smallest"]

# A best row this many of its neighbors' distances off the center asks for a new one:
# squared distances there have errors of eps 8^2, in float32 8e-6.
_FAR = 8.0
_MAX_CENTERS = 4  # every one gains the square root of the precision
_TIE = 64.0  # eps of a sum of squared distances that is hidden in rounding


@struct.pytree_dataclass
class Search:
    """Distances about a row near the one of lowest score."""

    row: jax.Array  # int32[] row of lowest score
    scores: jax.Array  # [K], inf for rows that take no part
    distance: jax.Array  # [K, K], inf on the diagonal and for rows that take no part
    far: jax.Array  # bool[] whether the row of lowest score is far from the center
    number: jax.Array  # int32[] centers tried


def _distances(gram: jax.Array, valid: jax.Array, squared: bool) -> jax.Array:
    """Computes distances `[K, K]` from a Gram matrix, inf for pairs without a part."""
    square = jnp.diag(gram)
    distance = jnp.maximum((square[:, None] + square[None]) - 2 * gram, 0)
    if not squared:
        distance = jnp.sqrt(distance)
    is_pair = valid[:, None] & valid[None] & ~jnp.eye(valid.shape[0], dtype=bool)
    return jnp.where(is_pair, distance, jnp.inf)


def scores(distance: jax.Array, valid: jax.Array, neighbors: jax.Array) -> jax.Array:
    """Sums `[K]` of the smallest distances `[K, K]`; inf for rows that take no part."""
    nearest = jnp.sort(distance, axis=1)
    rank = jnp.arange(valid.shape[0], dtype=neighbors.dtype)
    counted = (rank < neighbors)[None] & jnp.isfinite(nearest)
    return jnp.where(valid, jnp.where(counted, nearest, 0).sum(axis=1), jnp.inf)


def smallest(values: jax.Array, count: ArrayLike) -> jax.Array:
    """Selects the smallest values `[..., K]`, and those that tie with the last."""
    place = jnp.maximum(jnp.asarray(count) - 1, 0)
    last = jnp.take(jnp.sort(values, axis=-1), place, axis=-1)[..., None]
    # Values tie that rounding cannot tell apart, so that places do not matter.
    return values <= last + _TIE * jnp.finfo(values.dtype).eps * jnp.abs(last)


def search(
    matrix: jax.Array, valid: jax.Array, neighbors: jax.Array, *, squared: bool = True
) -> tuple[jax.Array, Search]:
    """Returns the unit of length `[]`, and distances and scores of `[K, D]` in it."""
    p = valid / jnp.maximum(valid.sum(dtype=matrix.dtype), 1)
    size = scaled_rows.measure(matrix, valid, p)

    def again(last: Search) -> jax.Array:
        return last.far & (last.number < _MAX_CENTERS)

    def about(last: Search) -> Search:
        # Formed about a row; again about the row of lowest score if that lies too far
        # from the center for its distances to be resolved.
        gram = size.gram(size.row(last.row))
        distance = _distances(gram, valid, squared)
        score = scores(distance, valid, neighbors)
        row = jnp.argmin(score).astype(jnp.int32)
        mean = score[row] / neighbors.astype(score.dtype)
        near = _FAR**2 * (mean if squared else jnp.square(mean))
        far = gram[row, row] > near
        return Search(
            row=row, scores=score, distance=distance, far=far, number=last.number + 1
        )

    start = Search(
        row=size.typical(p),
        scores=jnp.zeros_like(size.norm),
        distance=jnp.zeros((matrix.shape[0],) * 2, matrix.dtype),
        far=jnp.ones((), bool),
        number=jnp.zeros((), jnp.int32),
    )
    return size.scale, lax.while_loop(again, about, start)

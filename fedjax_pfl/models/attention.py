"""Attention, layer norm, and the patches of images."""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from fedjax_pfl.models import layers

__all__ = ["attend", "average", "layer_norm", "patches"]


def layer_norm(
    gain: jax.Array, bias: jax.Array, x: jax.Array, epsilon: float
) -> jax.Array:
    """Standardizes `[rows, W]`: `gain (x - mean) / sqrt(var + epsilon) + bias`."""
    centered = x - x.mean(axis=1, keepdims=True)
    variance = (centered**2).mean(axis=1, keepdims=True)
    return gain[None] * (centered * jax.lax.rsqrt(variance + epsilon)) + bias[None]


def _scores(query: jax.Array, key: jax.Array, mask: jax.Array | None) -> jax.Array:
    """Computes weights `[B, heads, T, T]` of keys, exactly 0 for masked keys."""
    scale = query.shape[-1] ** -0.5
    scores = layers.product(query * scale, key.swapaxes(2, 3))
    if mask is not None:
        # The least number, not -inf: a sequence of padding alone stays finite.
        lowest = jnp.finfo(scores.dtype).min
        scores = jnp.where(mask[:, None, None, :], scores, lowest)
    return jax.nn.softmax(scores, axis=3)


def attend(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    *,
    batch: int,
    heads: int,
    mask: jax.Array | None = None,
    drop: Callable[[jax.Array], jax.Array] = lambda weights: weights,
) -> jax.Array:
    """Mixes values `[B * T, W]`: `softmax(query key^T / sqrt(W / heads)) value`."""
    # Positions of all sequences are rows of one matrix, so that a dense layer is one
    # product; every head has its own columns.
    rows, width = query.shape

    def split(x: jax.Array) -> jax.Array:
        return x.reshape(batch, rows // batch, heads, -1).swapaxes(1, 2)

    weights = drop(_scores(split(query), split(key), mask))
    mixed = layers.product(weights, split(value))
    return mixed.swapaxes(1, 2).reshape(rows, width)


def average(x: jax.Array, mask: jax.Array | None) -> jax.Array:
    """Averages `[B, T, W]` over positions; a sequence of padding alone gives zeros."""
    if mask is None:
        return x.mean(axis=1)
    total = jnp.where(mask[:, :, None], x, 0).sum(axis=1)
    count = jnp.maximum(mask.sum(axis=1), 1).astype(x.dtype)
    return total / count[:, None]


def patches(x: jax.Array, size: int) -> jax.Array:
    """Cuts images `[B, ...]` into patches `[B, patches, size * size * channels]`."""
    batch, height, width, channels = x.shape
    fill = ((0, 0), (0, -height % size), (0, -width % size), (0, 0))
    # Zeros fill up images to whole patches.
    x = jnp.pad(x, fill) if any(map(sum, fill)) else x
    rows, columns = x.shape[1] // size, x.shape[2] // size
    x = x.reshape(batch, rows, size, columns, size, channels).swapaxes(2, 3)
    return x.reshape(batch, rows * columns, size * size * channels)

"""Functions of columns, in blocks that stay in the cache of a CPU."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from fedjax_pfl.core.aliases import Tree

__all__ = ["in_blocks"]


def in_blocks(fn: Callable[..., Any], width: int, *arrays: jax.Array) -> Tree:
    """Applies a function of single columns `[..., D]` to blocks of them on a CPU."""
    columns = arrays[0].shape[-1]
    if jax.default_backend() != "cpu" or columns <= width:
        return fn(*arrays)
    # The last block overlaps the one before: padding would copy the arrays.
    starts = jnp.minimum(jnp.arange(0, columns, width), columns - width)

    def of_block(start: jax.Array) -> Tree:
        parts = (lax.dynamic_slice_in_dim(a, start, width, axis=-1) for a in arrays)
        return fn(*parts)

    def joined(blocks: jax.Array) -> jax.Array:
        tail = blocks[-1, blocks.size - columns :]
        return jnp.concatenate([blocks[:-1].reshape(-1), tail])

    return jax.tree.map(joined, lax.map(of_block, starts))

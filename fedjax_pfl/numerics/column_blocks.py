"""Functions of columns, in blocks that stay in the cache of a CPU."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

__all__ = ["in_blocks"]


def in_blocks(fn: Callable[..., Any], width: int, *arrays: jax.Array) -> Any:
    """Applies a function to blocks of columns on a CPU, elsewhere to all at once.

    Args:
      fn: function of arrays `[..., B]`, of every column alone, with results `[B]`.
      width: B, columns of a block.
      *arrays: `[..., D]`.

    Returns:
      Results of `fn` for all columns, a pytree of `[D]`.

    Example:
      >>> in_blocks(lambda rows, shift: rows.sum(axis=0) + shift, 2,
      ...           jnp.ones((3, 5)), jnp.arange(5.0)).tolist()
      [3.0, 4.0, 5.0, 6.0, 7.0]
    """
    columns = arrays[0].shape[-1]
    if jax.default_backend() != "cpu" or columns <= width:
        return fn(*arrays)
    # The last block overlaps the one before: padding would copy the arrays.
    starts = jnp.minimum(jnp.arange(0, columns, width), columns - width)

    def of_block(start: jax.Array) -> Any:
        parts = (lax.dynamic_slice_in_dim(a, start, width, axis=-1) for a in arrays)
        return fn(*parts)

    def joined(blocks: jax.Array) -> jax.Array:
        rest = blocks[-1, blocks.size - columns :]
        return jnp.concatenate([blocks[:-1].reshape(-1), rest])

    return jax.tree.map(joined, lax.map(of_block, starts))

"""Exact counts of bytes in compiled programs with 32-bit integers."""

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

__all__ = ["times", "total", "words"]

_BITS = 30  # of the low word, so that two counts add up without a carry


def words(count: int | jax.Array) -> jax.Array:
    """Returns a count as two words, the high one first.

    Args:
      count: at least 0: a whole number below 2^62, or `int32[]`.

    Returns:
      `uint32[2]`; the words of two counts may be added.

    Example:
      >>> float(total(words(5_000_000_000) + words(7)))
      5000000007.0
    """
    high, low = count >> _BITS, count & (1 << _BITS) - 1
    return jnp.stack([jnp.asarray(word, jnp.uint32) for word in (high, low)])


def times(words: jax.Array, factor: jax.Array) -> jax.Array:
    """Multiplies a count by a number of clients.

    Args:
      words: `uint32[2]`.
      factor: `int32[]` from 0 to 65,535.

    Returns:
      `uint32[2]`.

    Example:
      >>> float(total(times(words(5_000_000_000), jnp.asarray(1_000))))
      5000000000000.0
    """
    # Products of 15-bit halves and a 16-bit factor fit into 32 bits.
    half, factor = _BITS // 2, factor.astype(jnp.uint32)
    upper, lower = (words[1] >> half) * factor, (words[1] & (1 << half) - 1) * factor
    low = ((upper & (1 << half) - 1) << half) + lower
    high = words[0] * factor + (upper >> half) + (low >> _BITS)
    return jnp.stack([high, low & (1 << _BITS) - 1])


def total(words: ArrayLike) -> np.ndarray:
    """Returns counts `float64[...]` from words `uint32[..., 2]`; exact below 2^53."""
    words = np.asarray(words, np.float64)
    return words[..., 0] * 2.0**_BITS + words[..., 1]

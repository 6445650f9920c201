"""The generator of random numbers, the purposes of randomness, and their keys."""

import enum
import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from fedjax_pfl.core.aliases import Scalar, Tree

__all__ = ["GENERATOR", "Key", "Stream", "new_key", "seed_key", "stream_key"]

Key = jax.Array

GENERATOR = "threefry2x32-13"
"""Name of the generator, which checkpoints record."""

# Threefry-2x32 with 13 rounds, a counter-based generator: block `i` of a key is a
# function of the key and `i` alone. So a draw does not depend on the number of other
# draws, on padding, or on `vmap`. It passes BigCrush of TestU01 (Salmon, Moraes, Dror
# and Shaw, Parallel random numbers: as easy as 1, 2, 3, SC 2011). JAX's own generator
# is the same cipher with 20 rounds, in loops that take longer to compile and four times
# as long to run on a CPU.
_ROUNDS = 13
_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
_PARITY = 0x1BD11BDA
_DRAW, _FOLD, _SPLIT = range(3)
"""Second word of the counter, by purpose of the block."""


def threefry(
    key: tuple[jax.Array, jax.Array], counter: tuple[jax.Array, jax.Array]
) -> tuple[jax.Array, jax.Array]:
    """Encrypts a counter, two words `uint32[...]`, with Threefry-2x32-13."""
    words = (*key, key[0] ^ key[1] ^ jnp.uint32(_PARITY))
    x, y = counter[0] + words[0], counter[1] + words[1]
    for done in range(_ROUNDS):
        distance = _ROTATIONS[done // 4 % 2][done % 4]
        x = x + y
        y = (y << jnp.uint32(distance)) | (y >> jnp.uint32(32 - distance))
        y = y ^ x
        if done % 4 == 3:
            number = done // 4 + 1
            x = x + words[number % 3]
            y = y + words[(number + 1) % 3] + jnp.uint32(number)
    return x, y


def _blocks(key: jax.Array, count: jax.Array, purpose: int) -> tuple[jax.Array, ...]:
    """Encrypts counters of one purpose with a key `uint32[2]`."""
    return threefry((key[0], key[1]), (count, jnp.uint32(purpose)))


def _seed(seed: jax.Array) -> jax.Array:
    """Forms a key from a whole number of at most 64 bits."""
    high = jnp.zeros((), jnp.uint32)
    if seed.dtype.itemsize > 4:
        high = lax.convert_element_type(seed >> 32, jnp.uint32)
    # Conversion keeps the low 32 bits; a mask does not fit into 32-bit integers.
    return jnp.stack([high, lax.convert_element_type(seed, jnp.uint32)])


def _split(key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """Forms keys `uint32[*shape, 2]` from one."""
    count = lax.iota(jnp.uint32, math.prod(shape)).reshape(shape)
    return jnp.stack(_blocks(key, count, _SPLIT), axis=-1)


def _fold_in(key: jax.Array, data: Any) -> jax.Array:
    """Forms the key `uint32[2]` of a number `uint32[]`."""
    return jnp.stack(_blocks(key, data, _FOLD))


def _random_bits(key: jax.Array, width: int, shape: tuple[int, ...]) -> jax.Array:
    """Draws whole numbers of `width` bits; number `i` is made of block `i`."""
    count = lax.iota(jnp.uint32, math.prod(shape)).reshape(shape)
    high, low = _blocks(key, count, _DRAW)
    if width == 64:
        return high.astype(jnp.uint64) << jnp.uint64(32) | low.astype(jnp.uint64)
    bits = high >> jnp.uint32(32 - width)
    return lax.convert_element_type(bits, jnp.dtype(f"uint{width}"))


@functools.cache
def _implementation() -> Any:
    """Returns the generator as an implementation for JAX."""
    from jax.extend import random  # imported here, since it is slow to import

    return random.define_prng_impl(
        key_shape=(2,),
        seed=_seed,
        split=_split,
        random_bits=_random_bits,
        fold_in=_fold_in,
        name=GENERATOR,
        tag="t13",
    )


class Stream(enum.IntEnum):
    """Purposes of randomness, with separate keys."""

    INIT = 0
    PARTICIPATION = 1
    WORK = 2
    CLIENT = 3
    ATTACK = 4
    AGGREGATION = 5
    SERVER = 6
    EVALUATION = 7
    FEATURE_NOISE = 8
    EVALUATED_CLIENTS = 9
    TRANSFORMS = 10
    NOISE = 11
    NOISE_OF_COUNTS = 12


def seed_key(seed: int | jax.Array) -> Key:
    """Forms a key `[]` of the package's generator from a seed of at most 64 bits."""
    return jax.random.key(seed, impl=_implementation())  # pyright: ignore


def new_key(words: jax.Array) -> Key:
    """Forms keys `[...]` of the package's generator from words `uint32[..., W]`.

    Args:
      words: data of a key of any generator; the result depends on all words.

    Returns:
      Keys that share no buffer with `words`, so that donation leaves these alone.
    """
    state = jnp.array(words[..., :2], copy=True)
    for number in range(2, words.shape[-1], 2):
        pair = threefry(
            (state[..., 0], state[..., 1]), (words[..., number], words[..., number + 1])
        )
        state = jnp.stack(pair, axis=-1)
    return jax.random.wrap_key_data(state, impl=_implementation())


def stream_key(key: Key, stream: Stream, round: jax.Array | int) -> Key:
    """Derives the key of a purpose in a round: `fold_in(fold_in(key, stream), round)`.

    Args:
      key: `[]` key of the run.
      stream: purpose.
      round: `[]` round number.

    Returns:
      `[]` key; fold in a client id if the randomness belongs to a client.
    """
    return jax.random.fold_in(jax.random.fold_in(key, stream), round)


def noise_key(key: Key) -> Key:
    """Forms a key `[]` of JAX's Threefry of 20 rounds, for noise that hides clients."""
    return jax.random.wrap_key_data(jax.random.key_data(key), impl="threefry2x32")


def plus_gaussian(key: Key, tree: Tree, deviation: Scalar) -> Tree:
    """Adds independent Gaussian noise of a standard deviation `[]` to a tree."""
    leaves, structure = jax.tree.flatten(tree)
    keys = jax.random.split(key, len(leaves))

    def noisy(key: Key, x: jax.Array) -> jax.Array:
        draw = jax.random.normal(key, x.shape, x.dtype)
        return x + jnp.asarray(deviation, x.dtype) * draw

    return structure.unflatten(map(noisy, keys, leaves))

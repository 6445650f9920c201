"""Purposes of randomness and their keys."""

import enum

import jax

__all__ = ["Key", "Stream", "stream_key"]

Key = jax.Array


class Stream(enum.IntEnum):
    """Purposes of randomness; each has keys of its own."""

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


def stream_key(key: Key, stream: Stream, round: jax.Array | int) -> Key:
    """Key of one purpose in one round: `fold_in(fold_in(key, stream), round)`.

    Args:
      key: `[]` key of the run.
      stream: purpose.
      round: `[]` round number.

    Returns:
      `[]` key; fold in a client id where the randomness belongs to a client.
    """
    return jax.random.fold_in(jax.random.fold_in(key, stream), round)

"""Base of the server's Gaussian noise, for differential privacy of clients."""

import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar

import jax

from fedjax_pfl import core
from fedjax_pfl.core import struct

__all__ = ["NoisyRound", "ServerNoise"]


@dataclasses.dataclass(frozen=True)
class NoisyRound:
    """The round to which noise is added.

    Attributes:
      number: `int32[]`, from 0.
      key_of: returns the key of any round, of Threefry for all generators of the run.
      period: rounds b such that no client is in two of b consecutive ones, or None.
      draws: result of `ServerNoise.next_draws` for the round, or None.
    """

    number: jax.Array
    key_of: Callable[[Any], core.Key]
    period: int | None = None
    draws: core.Tree = None

    __post_init__ = struct.check_fields


@struct.pytree_dataclass
class ServerNoise(core.Transform):
    """Noise in the server's sum, mean or rule of messages; abstract.

    Attributes:
      multiplier: `[]` z, deviation of a draw in clips, at least 0; without noise
        epsilon is infinite.
      delta: `[]` for which epsilon is reported, in (0, 1).
      over_rounds: whether draws of several rounds are correlated; the guarantee is then
        one for sums over rounds.
    """

    multiplier: Any = struct.traced_field(default=1.0, at_least=0)
    delta: Any = struct.traced_field(default=1e-5, above=0, below=1)
    over_rounds: ClassVar[bool] = False

    def first_draws(self, message: core.Message) -> core.Tree:
        """Returns draws `[b, *P]` that rounds store for later rounds, or None.

        Args:
          message: pytree like a message, `[*P]`.
        """
        return None

    def next_draws(
        self, key: core.Key, round: jax.Array, draws: core.Tree
    ) -> core.Tree:
        """Returns the stored draws, updated by a round.

        Args:
          key: `[]` key of the round.
          round: `int32[]`.
          draws: stored draws of the rounds before.
        """
        return draws

    def in_round(
        self, round: NoisyRound, tree: core.Tree, scale: core.Scalar
    ) -> core.Tree:
        """Adds a round's noise to a sum or a mean.

        Args:
          round: the round.
          tree: pytree of `[*P]`.
          scale: `[]` the clip c, or `c / n` for a mean of n.

        Returns:
          Pytree of `[*P]`.
        """
        raise NotImplementedError

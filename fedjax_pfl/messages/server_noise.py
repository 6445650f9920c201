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
    """Round that noise belongs to, as far as noise knows it.

    Attributes:
      number: `int32[]`, from 0.
      key_of: returns the key of any round, of Threefry whatever the run draws with.
      period: rounds in a row of which no client has two, or None.
      draws: of `ServerNoise.next_draws`, the round's among them, or None.
    """

    number: jax.Array
    key_of: Callable[[Any], core.Key]
    period: int | None = None
    draws: Any = None

    __post_init__ = struct.check_fields


@struct.pytree_dataclass
class ServerNoise(core.Transform):
    """Noise on what the server makes of messages; abstract.

    Attributes:
      multiplier: `[]` z, deviation of a draw in clips, at least 0; without noise
        epsilon is infinite.
      delta: `[]` for which epsilon is reported, in (0, 1).
      over_rounds: whether draws of several rounds are correlated, so that the guarantee
        is one of sums over rounds.
    """

    multiplier: Any = struct.traced_field(default=1.0, at_least=0)
    delta: Any = struct.traced_field(default=1e-5, above=0, below=1)
    over_rounds: ClassVar[bool] = False

    def first_draws(self, message: Any) -> Any:
        """Returns draws `[b, *P]` that rounds keep for later ones, or None.

        Args:
          message: pytree like a message, `[*P]`.
        """
        return None

    def next_draws(self, key: core.Key, round: jax.Array, draws: Any) -> Any:
        """Returns the draws that are kept, with those of a round.

        Args:
          key: `[]` key of the round.
          round: `int32[]`.
          draws: of the rounds before.
        """
        return draws

    def in_round(self, round: NoisyRound, tree: Any, scale: Any) -> Any:
        """Adds a round's noise to a sum or a mean.

        Args:
          round: that it belongs to.
          tree: pytree of `[*P]`.
          scale: `[]` the clip c, or `c / n` for a mean of n.

        Returns:
          Pytree of `[*P]`.
        """
        raise NotImplementedError

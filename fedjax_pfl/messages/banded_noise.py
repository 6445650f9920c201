"""Noise of the server that is correlated over rounds, by a banded matrix."""

from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_pfl import core
from fedjax_pfl.core import client_rows, randomness, struct
from fedjax_pfl.messages import strategies
from fedjax_pfl.messages.server_noise import NoisyRound, ServerNoise

__all__ = ["BandedNoise"]


@struct.pytree_dataclass
class BandedNoise(ServerNoise):
    """Makes sums over rounds private, with optimal correlated noise of b bands.

    With independent draws `Z_t` of `N(0, (z c)^2 I)` round t gets

        X_t = (Z_t - c_1 X_{t-1} - ... - c_{b-1} X_{t-b+1}) / c_0,

    so that later rounds cancel a part of the noise of a round. The strategy
    `c_0, ..., c_{b-1}` has norm 1, and minimizes the mean variance of the sums of
    1, ..., `rounds` rounds. One band is independent noise.

    In every round in which it takes part, a client moves the released sums by at most
    the norm of a column of the strategy's matrix, provided that its columns do not
    overlap: no client may be in two of b consecutive rounds. `CyclicCohorts` ensures
    that. A column has the norm 1, like a round under independent noise, so that epsilon
    is the same, and less if a training ends before a column does.

    Attributes:
      multiplier: `[]` z, at least 0; without noise epsilon is infinite.
      delta: `[]` for which epsilon is reported, in (0, 1).
      bands: static number b, at most `floor(N / K)`; the server keeps b draws of the
        size of its model.
      rounds: static number of rounds for which the strategy is optimal; epsilon holds
        for trainings of any length.

    References: see `strategies`.
    """

    bands: int = struct.static_field(default=4, at_least=1)
    rounds: int = struct.static_field(default=100, at_least=1)
    over_rounds: ClassVar[bool] = True

    @property
    def strategy(self) -> np.ndarray:
        """Strategy `[b]`, of 64-bit floats on the host."""
        return np.array(strategies.banded_toeplitz(self.bands, self.rounds))

    def first_draws(self, message: core.Message) -> core.Tree:
        """Returns zeros for the noise of b rounds; see `ServerNoise.first_draws`."""
        return client_rows.broadcast(jax.tree.map(jnp.zeros_like, message), self.bands)

    def next_draws(
        self, key: core.Key, round: jax.Array, draws: core.Tree
    ) -> core.Tree:
        """Replaces the oldest noise by the round's, for z c = 1.

        The noise of round t is row t modulo b.
        """
        # X_t = (Z_t - c_1 X_{t-1} - ... - c_{b-1} X_{t-b+1}) / c_0.
        strategy = self.strategy / self.strategy[0]
        strategy[0] = 0  # the oldest row is not in the sum
        age = (round - np.arange(self.bands)) % self.bands
        correction = client_rows.weighted_sum(draws, jnp.asarray(-strategy)[age])
        row = randomness.plus_gaussian(key, correction, 1 / self.strategy[0])
        return client_rows.put(draws, round % self.bands, row)

    def in_round(
        self, round: NoisyRound, tree: core.Tree, scale: core.Scalar
    ) -> core.Tree:
        """Adds the row of the round; see `ServerNoise.in_round`."""
        deviation = self.multiplier * scale
        noise = client_rows.take(round.draws, round.number % self.bands)
        return jax.tree.map(
            lambda x, d: x + jnp.asarray(deviation, x.dtype) * d, tree, noise
        )

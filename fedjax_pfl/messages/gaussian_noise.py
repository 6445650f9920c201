"""Gaussian noise of the server, independent in every round."""

from fedjax_pfl import core
from fedjax_pfl.core import randomness, struct
from fedjax_pfl.messages.server_noise import NoisyRound, ServerNoise

__all__ = ["GaussianNoise"]


@struct.pytree_dataclass
class GaussianNoise(ServerNoise):
    """Makes the server's releases differentially private for whole clients.

    After `ClipNorm` with the norm c, the server adds `N(0, (z c)^2 I)` once to the sum
    of messages if it takes their uniform mean, and to every message before a robust
    rule. Replacing one client by another moves either by 2 c at most.

    Attributes:
      multiplier: `[]` z, at least 0; without noise epsilon is infinite.
      delta: `[]` for which epsilon is reported, in (0, 1).

    Reference: McMahan, Ramage, Talwar, Zhang, "Learning Differentially Private
    Recurrent Language Models".
    """

    def add(self, key: core.Key, tree: core.Tree, scale: core.Scalar) -> core.Tree:
        """Adds noise to a sum, a mean or a message.

        Args:
          key: `[]` key of Threefry, whatever the run draws with.
          tree: pytree of `[*P]`.
          scale: `[]` c, or `c / n` for a mean of n.

        Returns:
          Pytree of `[*P]`.
        """
        return randomness.plus_gaussian(key, tree, self.multiplier * scale)

    def in_round(
        self, round: NoisyRound, tree: core.Tree, scale: core.Scalar
    ) -> core.Tree:
        """Adds noise that belongs to the round; see `ServerNoise.in_round`."""
        return self.add(round.key_of(round.number), tree, scale)

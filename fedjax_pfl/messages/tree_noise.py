"""Noise of the server that is correlated over rounds, from binary trees."""

from typing import ClassVar

import jax
from jax import lax

from fedjax_pfl import core
from fedjax_pfl.core import loops, randomness, struct
from fedjax_pfl.messages.server_noise import NoisyRound, ServerNoise

__all__ = ["TreeNoise"]


@struct.pytree_dataclass
class TreeNoise(ServerNoise):
    """Makes sums over rounds differentially private, with little noise in each sum.

    The rounds are the leaves of binary trees, and every node has a draw of
    `N(0, (z c)^2 I)`. The sum of a tree's first t rounds is released with the draws of
    the nodes that cover these t leaves, as many as t has binary ones; independent noise
    in every round would add t draws. A round gets the difference of two such sums: the
    draw of the node that it completes, minus the draws of the nodes that this one
    replaces. Draws follow from the key, so that no draw is stored.

    A client is in one leaf of a tree, and so in `floor(log2 b) + 1` nodes of a tree of
    b rounds. That needs `CyclicCohorts`: b is its separation.

    Attributes:
      multiplier: `[]` z, at least 0; without noise epsilon is infinite.
      delta: `[]` for which epsilon is reported, in (0, 1).

    Reference: Kairouz, McMahan, Song, Thakkar, Thakurta, Xu, "Practical and Private
    (Deep) Learning without Sampling or Shuffling".
    """

    over_rounds: ClassVar[bool] = True

    def in_round(
        self, round: NoisyRound, tree: core.Tree, scale: core.Scalar
    ) -> core.Tree:
        """Adds the change of the noise in the tree's sum; see `ServerNoise.in_round`.

        A node's draw belongs to the round that completes it, and to its level.
        """
        assert round.period is not None  # no tree without CyclicCohorts
        deviation = self.multiplier * scale
        now = round.number
        count = now % round.period + 1  # rounds of this tree, this one included
        level = lax.population_count((count & -count) - 1)  # of the completed node

        def add_draw(
            number: jax.Array, level: jax.Array, noise: core.Tree, sign: int
        ) -> core.Tree:
            # A node's draw belongs to the round that completes it, and to its level: it
            # can be drawn again when it is replaced.
            key = jax.random.fold_in(round.key_of(number), level)
            return randomness.plus_gaussian(key, noise, sign * deviation)

        def subtract_node(lower: jax.Array, noise: core.Tree) -> core.Tree:
            end = count - 1 >> lower << lower  # leaves before the end of that node
            return add_draw(now - count + end, lower, noise, -1)

        tree = add_draw(now, level, tree, 1)
        most = max(round.period.bit_length() - 1, 0)
        return loops.bounded(level, most, subtract_node, tree) if most else tree

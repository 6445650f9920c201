"""Min-Max: attackers are no farther from honest clients than these are apart."""

from typing import ClassVar

import jax
import jax.numpy as jnp

from fedjax_pfl import core
from fedjax_pfl.attacks import base, honest
from fedjax_pfl.core import client_rows, struct

__all__ = ["MinMax"]


@struct.pytree_dataclass
class MinMax(base.Outermost):
    """Replaces malicious messages by `mu + gamma p` with the largest allowed gamma.

    No honest message may be farther away than the largest distance M between two of
    them. With `|p| = 1`, `d_i = mu - h_i` and `b_i = <d_i, p>` that is

        gamma = min_i  -b_i + sqrt(b_i^2 + M^2 - |d_i|^2),

    where every root is real, since a mean is nearer to each message than M. Distances
    are of whole models.

    The mean is over the cohort's finite honest messages; without any, no message
    changes; of one, and if the direction has no length, attackers send the mean.

    Attributes:
      direction: static; p is along `-sd` by coordinate (`std`), against the mean
        (`unit`) or its signs (`sign`).
      about: static; whether that is the mean of updates `u - reference`, or of messages
        (`message`). Makes no difference for `std`.

    Example:
      >>> import jax
      >>> messages, malicious = jax.numpy.array([1.0, 3, 9]), jax.numpy.arange(3) > 1
      >>> MinMax()(None, None, messages, malicious, jax.numpy.array(0.0))[0].tolist()
      [1.0, 3.0, 1.0]

    Reference: Shejwalkar, Houmansadr, "Manipulating the Byzantine: Optimizing Model
    Poisoning Attacks and Defenses for Federated Learning". There gamma is searched by
    halving; the closed form is its limit.
    """

    chooses: ClassVar[str] = "the farthest of the messages"

    def longest(self, seen: honest.Honest, away: core.Message) -> jax.Array:
        """Computes gamma from inner products of the rows `h_i - mu = -d_i`."""
        rows, scale = client_rows.rescale(seen.rows)
        products = client_rows.gram(rows)
        squares = jnp.diag(products)
        pairs = seen.known[:, None] & seen.known[None]
        # M^2 - |d_i|^2, with M the largest distance of two honest messages.
        apart = squares[:, None] + squares[None] - 2 * products
        room = jnp.maximum(jnp.where(pairs, apart, 0).max() - squares, 0)
        b = -client_rows.products(rows, away)
        root = jnp.sqrt(jnp.square(b) + room)
        # The larger root, without the difference of two near numbers.
        gamma = jnp.where(b > 0, room / jnp.where(b > 0, b + root, 1), root - b)
        return scale * jnp.where(seen.known, gamma, jnp.inf).min()

"""Min-Sum: attackers are no farther from all honest clients than one of those is."""

from typing import ClassVar

import jax
import jax.numpy as jnp

from fedjax_pfl import core
from fedjax_pfl.attacks import base, honest
from fedjax_pfl.core import client_rows, struct

__all__ = ["MinSum"]


@struct.pytree_dataclass
class MinSum(base.Outermost):
    """Replaces malicious messages by `mu + gamma p` with the largest allowed gamma.

    The squared distances to the honest messages may not sum to more than the sum of an
    honest message. Sums about the mean differ from the least one by n times a squared
    distance, so that with `|p| = 1` the quadratic is `gamma = max_i |h_i - mu|`,
    whatever the direction. Distances are of whole models.

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
      >>> MinSum()(None, None, messages, malicious, jax.numpy.array(0.0))[0].tolist()
      [1.0, 3.0, 1.0]

    Reference: see `MinMax`.
    """

    chooses: ClassVar[str] = "the farthest of the messages"

    def longest(self, seen: honest.Honest, away: core.Message) -> jax.Array:
        """Returns the largest distance of an honest message from the mean."""
        # gamma = max_i |h_i - mu|, whatever the direction.
        rows, scale = client_rows.rescale(seen.rows)
        return scale * jnp.sqrt(honest.square_norms(rows).max())

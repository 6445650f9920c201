"""Inner product manipulation: malicious clients send the reversed honest mean."""

import jax
import jax.numpy as jnp

from fedjax_pfl import core
from fedjax_pfl.attacks import base, honest
from fedjax_pfl.core import struct

__all__ = ["IPM"]


@struct.pytree_dataclass
class IPM(base.Colluding):
    """Replaces malicious messages by `r - tau (mu - r)`, mu the honest messages' mean.

    A small tau stays among the honest messages, so that distances do not betray it; one
    beyond (honest clients) / (malicious clients) turns the mean of all around.

    The mean is over the cohort's finite honest messages; without any, no message
    changes.

    Attributes:
      tau: `[]` strength, at least 0; 0.1, 0.5 and 10 are in use.
      about: static; r is the `reference`, so that updates are reversed, or 0
        (`message`).

    Example:
      >>> import jax
      >>> messages, malicious = jax.numpy.array([1.0, 2, 9]), jax.numpy.arange(3) > 1
      >>> IPM()(None, None, messages, malicious, jax.numpy.array(1.0))[0].tolist()
      [1.0, 2.0, 0.75]

    Reference: Xie, Koyejo, Gupta, "Fall of Empires: Breaking Byzantine-tolerant SGD by
    Inner Product Manipulation".
    """

    tau: float = struct.traced_field(default=0.5, at_least=0)
    about: honest.About = "reference"

    def together(
        self, seen: honest.Honest, messages: core.Message, reference: core.Message
    ) -> core.Message:
        """Returns the mean update, turned around."""
        zero = honest.origin(self.about, seen.center, reference)
        # r - tau (mu - r).
        return jax.tree.map(
            lambda r, update: r - jnp.asarray(self.tau, r.dtype) * update,
            zero,
            seen.mean_less(zero),
        )

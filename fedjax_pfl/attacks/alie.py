"""A little is enough: malicious clients shift the honest mean within its spread."""

from typing import Literal

import jax
import jax.numpy as jnp
from jax.scipy import special

from fedjax_pfl import core
from fedjax_pfl.attacks import base, honest
from fedjax_pfl.core import struct

__all__ = ["ALIE", "largest_shift"]


def largest_shift(num_honest: jax.Array, num_malicious: jax.Array) -> jax.Array:
    """Returns the shift z behind which attackers have enough honest supporters."""
    # s = floor(n/2 + 1) - f supporters, at least 1, z = Phi^-1((n - f - s) / (n - f)).
    half = jnp.floor((num_honest + num_malicious) / 2 + 1)
    left = num_honest - jnp.maximum(half - num_malicious, 1)
    z = special.ndtri(jnp.maximum(left, 0.5) / num_honest)
    # No client can be left out of n < 3.
    return jnp.where(left > 0, z, 0)


@struct.pytree_dataclass
class ALIE(base.Colluding):
    """Replaces malicious messages by `mu - z sd`, mean and deviation by coordinate.

    Both are of the cohort's finite honest messages. Without any, no message
    changes; of one honest message sd is 0 and attackers copy it. Moving all
    messages moves the attack as well, so that a reference makes no difference.

    Attributes:
      z: `[]` shift in standard deviations, or None: the largest one with enough
        supporters among this round's clients, see `largest_shift`.
      plus: static; whether the shift is `+ z sd`.
      deviation: static; `population` (sums of squares over n) or `sample` (n - 1).

    Example:
      >>> import jax
      >>> messages, malicious = jax.numpy.array([1.0, 3, 9]), jax.numpy.arange(3) > 1
      >>> ALIE(z=1.5)(None, None, messages, malicious, None)[0].tolist()
      [1.0, 3.0, 0.5]

    Reference: Baruch, Baruch, Goldberg, "A Little Is Enough: Circumventing Defenses For
    Distributed Learning". There attackers estimate mean and deviation from their own
    messages; here they know the honest ones.
    """

    z: float | None = struct.traced_field(default=None)
    plus: bool = struct.static_field(default=False)
    deviation: Literal["population", "sample"] = "population"

    def together(
        self, seen: honest.Honest, messages: core.Message, reference: core.Message
    ) -> core.Message:
        """Returns the mean, shifted."""
        if self.z is None:
            num_malicious = seen.acts.sum().astype(seen.count.dtype)
            shift = largest_shift(seen.count, num_malicious)
        else:
            shift = jnp.asarray(self.z, seen.count.dtype)
        # mu - z sd, or + z sd.
        shift = shift if self.plus else -shift
        spread = seen.deviation(sample=self.deviation == "sample")
        return seen.mean_plus(jax.tree.map(lambda s: shift * s, spread))

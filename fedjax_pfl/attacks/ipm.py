"""Inner product manipulation: malicious clients send the reversed honest mean."""

from typing import Any

import jax
import jax.numpy as jnp

from fedjax_pfl import checks, struct, types
from fedjax_pfl.attacks import honest

__all__ = ["IPM"]


@struct.pytree_dataclass
class IPM:
    """Replaces malicious messages by `r - tau (mu - r)`, mu the honest messages' mean.

    A small tau stays among the honest messages, so that distances do not betray it; one
    beyond (honest clients) / (malicious clients) turns the mean of all around.

    The mean is over the cohort's honest messages that are finite; where there is none,
    nothing changes.

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

    tau: float = 0.5
    about: str = struct.static_field(default="reference")

    def __post_init__(self):
        checks.number("tau", self.tau, at_least=0)
        checks.known(self.about, honest.ABOUT, "center of the attack")

    def init(self, messages: Any) -> None:
        """Returns None: the attack remembers nothing."""
        del messages

    def __call__(
        self,
        key: types.Key | None,
        state: None,
        messages: Any,
        malicious: jax.Array,
        reference: Any,
    ) -> tuple[Any, None]:
        """Replaces the messages of malicious clients; the others stay bit-identical.

        Args:
          key: unused.
          state: None.
          messages: pytree of `[K, *P]`.
          malicious: `bool[K]`.
          reference: pytree of `[*P]` that clients received; unused for
            `about="message"`.

        Returns:
          Pytree of `[K, *P]`, and None.
        """
        del key, state
        if not jax.tree.leaves(messages):  # of methods that send nothing
            return messages, None
        seen = honest.look(messages, malicious)
        zero = honest.origin(self.about, messages, reference)
        sent = jax.tree.map(
            lambda r, update: r - jnp.asarray(self.tau, r.dtype) * update,
            zero,
            seen.mean_less(zero),
        )
        return honest.change(messages, seen.acts, sent), None

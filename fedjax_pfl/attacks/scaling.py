"""Scaling: malicious clients send a multiple of their honest message."""

from typing import Any

import jax
import jax.numpy as jnp

from fedjax_pfl import checks, struct, types
from fedjax_pfl.attacks import honest

__all__ = ["Scaling"]


@struct.pytree_dataclass
class Scaling:
    """Replaces a malicious message u by `r + factor (u - r)`, r the attack's zero.

    Attributes:
      factor: `[]`; 100 in FedPG's experiments (A2). 1 changes nothing but rounding, a
        negative one flips.
      about: static; `reference` scales the update `u - reference`, `message` u itself
        (r = 0), which is the same for methods that send changes or gradients.

    Example:
      >>> import jax
      >>> messages, malicious = jax.numpy.array([1.0, 2.0]), jax.numpy.array([0, 1]) > 0
      >>> Scaling()(None, None, messages, malicious, jax.numpy.array(1.5))[0].tolist()
      [1.0, 51.5]
    """

    factor: float = 100.0
    about: str = struct.static_field(default="reference")

    def __post_init__(self):
        checks.number("factor", self.factor)
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
        """Scales the messages of malicious clients; the others stay bit-identical.

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
        zero = honest.origin(self.about, messages, reference)

        def send(message: Any, is_malicious: jax.Array) -> Any:
            def scale(u: jax.Array, r: jax.Array) -> jax.Array:
                factor = jnp.asarray(self.factor, u.dtype)
                return jnp.where(is_malicious, r + factor * (u - r), u)

            return jax.tree.map(scale, message, zero)

        return jax.vmap(send)(messages, malicious), None

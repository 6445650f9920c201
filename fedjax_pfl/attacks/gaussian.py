"""Gaussian attack: malicious clients send noise."""

from typing import Any

import jax
import jax.numpy as jnp

from fedjax_pfl import checks, struct, types
from fedjax_pfl.attacks import honest

__all__ = ["Gaussian"]


@struct.pytree_dataclass
class Gaussian:
    """Replaces malicious messages by `N(0, std^2 I)`, drawn anew in every round.

    Attributes:
      std: `[]` standard deviation, at least 0; `sqrt(0.1)` in FLAME's paper, 1 in its
        released code (`official`) and in FedPG's experiments.
      about: static; `message` sends the noise alone, `reference` adds it to the model
        that clients received, as FedPG's experiments do (A1).

    Example:
      >>> import jax
      >>> keys = jax.random.split(jax.random.key(0), 2)
      >>> messages, malicious = jax.numpy.array([1.0, 2.0]), jax.numpy.array([0, 1]) > 0
      >>> sent, _ = Gaussian()(keys, None, messages, malicious, jax.numpy.array(0.0))
      >>> (sent == messages).tolist()
      [True, False]
    """

    std: float = 0.1**0.5
    about: str = struct.static_field(default="message")

    def __post_init__(self):
        checks.number("std", self.std, at_least=0)
        checks.known(self.about, honest.ABOUT, "center of the attack")

    @classmethod
    def official(cls) -> "Gaussian":
        """The strength of FLAME's released code: std 1."""
        return cls(std=1.0)

    def init(self, messages: Any) -> None:
        """Returns None: the attack remembers nothing."""
        del messages

    def __call__(
        self,
        key: types.Key,
        state: None,
        messages: Any,
        malicious: jax.Array,
        reference: Any,
    ) -> tuple[Any, None]:
        """Replaces the messages of malicious clients; the others stay bit-identical.

        Args:
          key: `[K]` one key per client, so that a draw belongs to the client, not the
            slot.
          state: None.
          messages: pytree of `[K, *P]`.
          malicious: `bool[K]`.
          reference: pytree of `[*P]` that clients received; unused for
            `about="message"`.

        Returns:
          Pytree of `[K, *P]`, and None.
        """
        del state
        center = honest.origin(self.about, messages, reference)

        def send(key: types.Key, message: Any, is_malicious: jax.Array) -> Any:
            leaves, structure = jax.tree.flatten(message)
            keys = jax.random.split(key, len(leaves))

            def noise(key: types.Key, u: jax.Array, r: jax.Array) -> jax.Array:
                draw = jax.random.normal(key, u.shape, u.dtype)
                sent = r + jnp.asarray(self.std, u.dtype) * draw
                return jnp.where(is_malicious, sent, u)

            centers = jax.tree.leaves(center)
            return structure.unflatten(map(noise, keys, leaves, centers))

        return jax.vmap(send)(key, messages, malicious), None

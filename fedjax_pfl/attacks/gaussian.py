"""Gaussian attack: malicious clients send noise."""

from typing import Any

import jax
import jax.numpy as jnp

from fedjax_pfl import checks, struct, types

__all__ = ["Gaussian"]


@struct.pytree_dataclass
class Gaussian:
    """Replaces malicious messages by `N(0, std^2 I)`, drawn anew in every round.

    Attributes:
      std: `[]` standard deviation, at least 0; `sqrt(0.1)` in FLAME's experiments.

    Example:
      >>> import jax
      >>> keys = jax.random.split(jax.random.key(0), 2)
      >>> messages, malicious = jax.numpy.array([1.0, 2.0]), jax.numpy.array([0, 1]) > 0
      >>> sent, _ = Gaussian()(keys, None, messages, malicious, jax.numpy.array(0.0))
      >>> (sent == messages).tolist()
      [True, False]
    """

    std: float = 0.1**0.5

    def __post_init__(self):
        checks.number("std", self.std, at_least=0)

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
          reference: pytree of `[*P]`, unused.

        Returns:
          Pytree of `[K, *P]`, and None.
        """
        del state, reference

        def send(key: types.Key, message: Any, is_malicious: jax.Array) -> Any:
            leaves, structure = jax.tree.flatten(message)
            keys = jax.random.split(key, len(leaves))

            def noise(key: types.Key, u: jax.Array) -> jax.Array:
                draw = jax.random.normal(key, u.shape, u.dtype)
                return jnp.where(is_malicious, jnp.asarray(self.std, u.dtype) * draw, u)

            return structure.unflatten(map(noise, keys, leaves))

        return jax.vmap(send)(key, messages, malicious), None

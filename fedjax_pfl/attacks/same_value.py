"""Same value: malicious clients send one number in every coordinate."""

from typing import Any

import jax
import jax.numpy as jnp

from fedjax_pfl import checks, struct, types

__all__ = ["SameValue"]


@struct.pytree_dataclass
class SameValue:
    """Replaces malicious messages by `xi * (1, ..., 1)`.

    `xi ~ N(0, std^2)` is one draw for every client and round.

    Attributes:
      std: `[]` standard deviation of xi, at least 0; `sqrt(0.1)` in FLAME's paper.

    Example:
      >>> import jax
      >>> keys = jax.random.split(jax.random.key(0), 2)
      >>> messages, malicious = jax.numpy.ones((2, 3)), jax.numpy.array([0, 1]) > 0
      >>> sent, _ = SameValue()(keys, None, messages, malicious, None)
      >>> len(set(sent[1].tolist())), sent[0].tolist()
      (1, [1.0, 1.0, 1.0])
    """

    std: float = 0.1**0.5

    def __post_init__(self):
        checks.number("std", self.std, at_least=0)

    @classmethod
    def official(cls) -> "SameValue":
        """The strength of FLAME's released code."""
        return cls(std=0.01)

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
            draw = jax.random.normal(key, (), jnp.float32)

            def fill(u: jax.Array) -> jax.Array:
                xi = jnp.asarray(self.std, u.dtype) * jnp.asarray(draw, u.dtype)
                return jnp.where(is_malicious, xi, u)

            return jax.tree.map(fill, message)

        return jax.vmap(send)(key, messages, malicious), None

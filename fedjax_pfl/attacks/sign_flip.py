"""Sign flipping: malicious clients send a negative multiple of their honest message."""

from typing import Any

import jax
import jax.numpy as jnp

from fedjax_pfl import checks, struct, types

__all__ = ["SignFlip"]


@struct.pytree_dataclass
class SignFlip:
    """Replaces a malicious message u by `-s u`.

    Without `std` the multiplier s is `scale`. With it s is `scale * |xi|`, with a draw
    `xi ~ N(0, std^2)` for every client and round; FLAME's paper has `std = sqrt(0.1)`,
    its released code what `official` returns. A traced negative `scale` does not flip.

    Attributes:
      scale: `[]` multiplier, at least 0.
      std: `[]` standard deviation of xi, at least 0, or None for a fixed multiplier.
      about: static, what is flipped: the `message` u; the update `u - reference`
        (`reference`); or the `received` model in place of u, so that nothing of the
        client's own work is sent.

    Example:
      >>> import jax
      >>> keys = jax.random.split(jax.random.key(0), 2)
      >>> messages, malicious = jax.numpy.array([1.0, 2.0]), jax.numpy.array([0, 1]) > 0
      >>> SignFlip(scale=3.0)(keys, None, messages, malicious, jax.numpy.array(0.0))[0]
      Array([ 1., -6.], dtype=...)
    """

    scale: float = 1.0
    std: float | None = None
    about: str = struct.static_field(default="message")

    def __post_init__(self):
        checks.number("scale", self.scale, at_least=0)
        checks.number("std", self.std, at_least=0)
        kinds = ("message", "reference", "received")
        checks.known(self.about, kinds, "center of the attack")

    @classmethod
    def official(cls) -> "SignFlip":
        """What FLAME's released code does: `-|xi|` times the received model, std 1."""
        return cls(std=1.0, about="received")

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
        """Flips the messages of malicious clients; the others stay bit-identical.

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

        def send(key: types.Key, message: Any, is_malicious: jax.Array) -> Any:
            draw = 1.0 if self.std is None else jax.random.normal(key, (), jnp.float32)

            def flip(u: jax.Array, own: jax.Array, center: Any) -> jax.Array:
                size = jnp.asarray(self.scale, u.dtype)
                if self.std is not None:
                    xi = jnp.asarray(self.std, u.dtype) * jnp.asarray(draw, u.dtype)
                    size = size * jnp.abs(xi)
                return jnp.where(is_malicious, center - size * (own - center), u)

            if self.about == "reference":
                return jax.tree.map(lambda u, r: flip(u, u, r), message, reference)
            own = reference if self.about == "received" else message
            return jax.tree.map(lambda u, r: flip(u, r, 0.0), message, own)

        return jax.vmap(send)(key, messages, malicious), None

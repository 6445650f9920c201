"""Base of attacks: they keep no state, and change malicious rows only."""

from typing import Any

import jax
import jax.numpy as jnp

from fedjax_pfl import core
from fedjax_pfl.attacks import honest
from fedjax_pfl.core import client_rows, struct

__all__ = ["Alone", "Colluding", "Outermost"]


class _Attack(core.Attack):
    """Keeps no state, and changes rows by `_sent`, which subclasses define."""

    def __call__(
        self,
        key: core.Key | None,
        state: None,
        messages: core.Message,
        malicious: jax.Array,
        reference: core.Message,
    ) -> tuple[Any, None]:
        """Replaces malicious rows of `[K, *P]`; the others stay bit-identical."""
        # Methods that send nothing have empty messages.
        if not jax.tree.leaves(messages):
            return messages, None
        return self._sent(key, messages, malicious, reference), None

    def _sent(
        self,
        key: core.Key | None,
        messages: core.Message,
        malicious: jax.Array,
        reference: core.Message,
    ):
        """Returns the messages `[K, *P]` with malicious rows replaced."""
        raise NotImplementedError


class Alone(_Attack):
    """Every malicious client acts on its own data; subclasses define `one`."""

    def one(
        self, key: core.Key, message: core.Message, reference: core.Message
    ) -> core.Message:
        """Returns the message `[*P]` of ONE malicious client, from its honest one."""
        raise NotImplementedError

    def _sent(
        self,
        key: core.Key,
        messages: core.Message,
        malicious: jax.Array,
        reference: core.Message,
    ):
        def send(key: core.Key, message: core.Message, is_malicious: jax.Array):
            sent = self.one(key, message, reference)
            return jax.tree.map(
                lambda new, u: jnp.where(is_malicious, new.astype(u.dtype), u),
                sent,
                message,
            )

        # Keys belong to clients, not to slots of the cohort.
        return jax.vmap(send)(key, messages, malicious)


class Colluding(_Attack):
    """All malicious clients send one model, made by `together` of honest messages."""

    def together(
        self, seen: honest.Honest, messages: core.Message, reference: core.Message
    ) -> core.Message:
        """Returns the message `[*P]` of all malicious clients, from all `[K, *P]`."""
        raise NotImplementedError

    def _sent(
        self,
        key: core.Key,
        messages: core.Message,
        malicious: jax.Array,
        reference: core.Message,
    ):
        seen = honest.look(messages, malicious)
        sent = self.together(seen, messages, reference)
        # Without a finite honest message `seen.acts` is false, and no row changes.
        everywhere = client_rows.broadcast(sent, malicious.shape[0])
        return client_rows.select_rows(seen.acts, everywhere, messages)


@struct.pytree_dataclass
class Outermost(Colluding):
    """The honest mean and the longest step from it that is allowed; abstract."""

    direction: honest.Direction = "std"
    about: honest.About = "reference"

    @property
    def no_derivative(self) -> str | None:
        """Returns why derivatives are refused."""
        return "takes signs" if self.direction == "sign" else None

    def longest(self, seen: honest.Honest, away: core.Message) -> jax.Array:
        """Returns the length `[]` of the step along `away [*P]`, which has length 1."""
        raise NotImplementedError

    def together(
        self, seen: honest.Honest, messages: core.Message, reference: core.Message
    ) -> core.Message:
        """Returns the mean and the step."""
        zero = honest.origin(self.about, seen.center, reference)
        # mu + gamma p, with p of length 1 and the largest gamma that a subclass allows.
        away = honest.direction(self.direction, seen, zero)
        gamma = self.longest(seen, away)
        return seen.mean_plus(jax.tree.map(lambda p: gamma * p, away))

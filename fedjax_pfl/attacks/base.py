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
        """Replaces the messages of malicious clients; the others stay bit-identical.

        Args:
          key: `[K]` one key per client, so that a draw belongs to the client, not the
            slot; None for attacks without draws.
          state: None.
          messages: pytree of `[K, *P]` with one dtype; empty for methods that send
            none.
          malicious: `bool[K]`.
          reference: pytree of `[*P]` that clients received; unused by attacks on the
            message itself.

        Returns:
          Pytree of `[K, *P]`, and None.
        """
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
        """Returns the message of ONE malicious client.

        Args:
          key: `[]` key of this client and round.
          message: `[*P]` its honest message.
          reference: `[*P]` received parameters.

        Returns:
          `[*P]`.
        """
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

        return jax.vmap(send)(key, messages, malicious)


class Colluding(_Attack):
    """All malicious clients send one model, made of the cohort's honest messages.

    Only finite ones count; without any, no message changes. Subclasses define
    `together`.
    """

    def together(
        self, seen: honest.Honest, messages: core.Message, reference: core.Message
    ) -> core.Message:
        """Returns the messages of malicious clients.

        Args:
          seen: the honest messages.
          messages: `[K, *P]` messages of all clients.
          reference: `[*P]` received parameters.

        Returns:
          `[*P]`.
        """
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
        everywhere = client_rows.broadcast(sent, malicious.shape[0])
        return client_rows.select_rows(seen.acts, everywhere, messages)


@struct.pytree_dataclass
class Outermost(Colluding):
    """The honest mean and the longest step from it that is allowed; abstract.

    Attributes:
      direction: static; the step is along `-sd` by coordinate (`std`), against the mean
        (`unit`) or its signs (`sign`).
      about: static; whether that is the mean of updates `u - reference`, or of messages
        (`message`). Makes no difference for `std`.
    """

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
        away = honest.direction(self.direction, seen, zero)
        gamma = self.longest(seen, away)
        return seen.mean_plus(jax.tree.map(lambda p: gamma * p, away))

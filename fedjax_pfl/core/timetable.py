"""Timetable of a training in virtual time: who is in which round, and when it ends."""

from typing import Any

import jax
import numpy as np

from fedjax_pfl.core import struct

__all__ = ["Charges", "Timetable"]


@struct.pytree_dataclass
class Timetable:
    """Rounds of a training in virtual time, or one of them (no axis R).

    Attributes:
      cohort: `int32[R, K]` rows of members, distinct and ascending.
      staleness: `int32[R, K]` rounds that the server has ended since it sent a member
        the model that it trained from.
      present: `bool[R, K]` whether a member's work arrived; what others did is lost.
      steps: `int32[R, K]` most local steps of a member.
      seconds: `[R]` virtual time at the end of the round, from the start.
      received: `int32[R]` clients to which the server has sent its model since the
        round before.
      sent: `int32[R]` clients whose message has arrived since then, lost ones as well.
    """

    cohort: Any
    staleness: Any
    present: Any
    steps: Any
    seconds: Any
    received: Any
    sent: Any

    def at(self, round: jax.Array) -> "Timetable":
        """Returns one round."""
        return jax.tree.map(lambda leaf: leaf[round], self)


@struct.pytree_dataclass
class Charges:
    """Charge of a task of every client: its work and what is sent.

    Attributes:
      examples: `[N]` gradients of single examples.
      steps: `[N]` local steps.
      up: bytes that a client sends.
      down: bytes that it receives.
    """

    examples: np.ndarray
    steps: np.ndarray
    up: float
    down: float

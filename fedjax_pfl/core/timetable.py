"""Timetable of a training in virtual time: cohorts and ends of rounds."""

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
      staleness: `int32[R, K]` rounds that ended since the server sent the model from
        which a member trained.
      present: `bool[R, K]` whether a member's work arrived; other work is lost.
      steps: `int32[R, K]` most local steps of a member.
      seconds: `[R]` virtual time at the end of the round, from the start.
      received: `int32[R]` clients that have received the server's model since the
        previous round.
      sent: `int32[R]` messages that have arrived since then, including lost ones.
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
    """Charges of every client's task: its work and its messages."""

    examples: np.ndarray  # [N] gradients of single examples
    steps: np.ndarray  # [N] local steps
    up: float  # bytes that a client sends
    down: float  # bytes that a client receives

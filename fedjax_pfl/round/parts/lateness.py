"""Members who are absent, or who began from an earlier model of the server."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import optax

from fedjax_pfl import core
from fedjax_pfl.core import client_rows
from fedjax_pfl.round.part import First, Part, Turn

__all__ = ["Lateness"]


@dataclasses.dataclass(frozen=True)
class Lateness(Part):
    """Leaves out who is absent, and lets late members begin where they did.

    Memory `past`: server states before the latest rounds, round r at row r modulo their
    number.

    Attributes:
      participation: who takes part, and what late changes count.
      shifts: whether messages are models of the server, so that a late one becomes the
        present model plus its discounted change.
    """

    participation: core.Participation
    shifts: bool
    name = "lateness"

    def first_memory(self, at: First, rows: dict[str, Any]) -> dict[str, Any]:
        """Returns rows for as many server states as a member may be late."""
        count = self.participation.max_staleness + 1
        return {"past": client_rows.broadcast(at.server, count)} if count > 1 else {}

    def begin(self, state: core.State) -> core.State:
        """Puts the server's state among those of before, in place of the oldest."""
        if (past := state.memory.get("past")) is None:
            return state
        row = state.round % _count(past)
        return state.with_memory(past=client_rows.put(past, row, state.server))

    def hand_out(self, exchange: Any, known: core.Downlink | None) -> tuple[Any, Any]:
        """Returns staleness `int32[K]` and who is present; and earlier states."""
        timing = exchange.timing
        staleness = None if timing is None else timing.staleness
        past = exchange.start.memory.get("past")
        return (staleness, exchange.present), past

    def before(self, turn: Turn) -> Turn:
        """Gives a late client the server's state from which it began."""
        if (past := turn.shared[self.name]) is None:
            return turn
        row = (turn.view.round - turn.given[self.name][0]) % _count(past)
        then = client_rows.take(past, row)
        now = turn.shared["method"]
        shared = turn.shared | {"method": then, "now": now}
        return dataclasses.replace(turn, shared=shared)

    def after(self, turn: Turn) -> Turn:
        """Discounts a late change; an absent client keeps its state, at weight 0."""
        staleness, present = turn.given[self.name]
        if "now" in turn.shared and self.shifts:
            part = jnp.where(staleness > 0, self.participation.weight(staleness), 1.0)
            message = jax.tree.map(
                lambda u, a, b: jnp.where(staleness > 0, b + part * (u - a), u),
                turn.upload.message,
                turn.shared["method"],
                turn.shared["now"],
            )
            turn = turn.with_upload(message=message)
        if present is None:
            return turn
        turn = turn.with_upload(weight=jnp.where(present, turn.upload.weight, 0))
        rows = (turn.rows["clients"], turn.before["clients"])
        return turn.with_rows(clients=optax.tree.where(present, *rows))

    def end(self, exchange: Any, state: core.State, info: core.RoundInfo) -> Any:
        """Reports virtual time and staleness."""
        if (timing := exchange.timing) is None:
            return state, info
        times = {
            "virtual_seconds": timing.seconds,
            "arrived": timing.present.sum(),
            "staleness": timing.staleness.mean(dtype=jnp.zeros(()).dtype),
        }
        return state, dataclasses.replace(info, server=info.server | times)


def _count(past: Any) -> int:
    """Returns how many server states there are."""
    return jax.tree.leaves(past)[0].shape[0]

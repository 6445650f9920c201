"""Absent members, and members that started from an earlier server model."""

import dataclasses
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import optax

from fedjax_pfl import core
from fedjax_pfl.core import client_rows
from fedjax_pfl.round.part import First, Part, Turn

if TYPE_CHECKING:
    from fedjax_pfl.round.exchange import Exchange

__all__ = ["Lateness"]


@dataclasses.dataclass(frozen=True)
class Lateness(Part):
    """Handles absence and staleness; memory `past` holds earlier server states."""

    participation: core.Participation  # with the weights of stale changes
    shifts: bool  # whether messages are models
    name = "lateness"

    def first_memory(self, at: First, rows: dict[str, Any]) -> dict[str, Any]:
        """Returns rows for as many server states as the largest staleness needs."""
        count = self.participation.max_staleness + 1
        return {"past": client_rows.broadcast(at.server, count)} if count > 1 else {}

    def begin(self, state: core.State) -> core.State:
        """Stores the server state in place of the oldest one."""
        if (past := state.memory.get("past")) is None:
            return state
        # The state of round r is in row r modulo their number.
        row = state.round % _count(past)
        return state.with_memory(past=client_rows.put(past, row, state.server))

    def hand_out(
        self, exchange: "Exchange", known: core.Downlink | None
    ) -> tuple[Any, Any]:
        """Returns staleness `int32[K]`, presence `bool[K]`, and earlier states."""
        timing = exchange.timing
        staleness = None if timing is None else timing.staleness
        past = exchange.start.memory.get("past")
        return (staleness, exchange.present), past

    def before(self, turn: Turn) -> Turn:
        """Replaces the broadcast by the server state from which the client started."""
        if (past := turn.shared[self.name]) is None:
            return turn
        row = (turn.view.round - turn.given[self.name][0]) % _count(past)
        then = client_rows.take(past, row)
        now = turn.shared["method"]
        # Clients train from the earlier model; `after` needs the present one, too.
        shared = turn.shared | {"method": then, "now": now}
        return dataclasses.replace(turn, shared=shared)

    def after(self, turn: Turn) -> Turn:
        """Discounts stale changes; absent clients keep their state, with weight 0."""
        staleness, present = turn.given[self.name]
        if "now" in turn.shared and self.shifts:
            # A stale model becomes the present one plus its discounted change.
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

    def end(
        self, exchange: "Exchange", state: core.State, info: core.RoundInfo
    ) -> tuple[core.State, core.RoundInfo]:
        """Reports virtual time and staleness."""
        if (timing := exchange.timing) is None:
            return state, info
        times = {
            "virtual_seconds": timing.seconds,
            "arrived": timing.present.sum(),
            "staleness": timing.staleness.mean(dtype=jnp.zeros(()).dtype),
        }
        return state, dataclasses.replace(info, server=info.server | times)


def _count(past: core.ServerState) -> int:
    """Returns the number of stored server states."""
    return jax.tree.leaves(past)[0].shape[0]

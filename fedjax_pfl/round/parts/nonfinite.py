"""What is done with values that are not finite."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import optax

from fedjax_pfl import core
from fedjax_pfl.core import client_rows
from fedjax_pfl.round.part import First, Part, Turn

__all__ = ["Nonfinite"]


@dataclasses.dataclass(frozen=True)
class Nonfinite(Part):
    """Counts values that are not finite, and drops, keeps or freezes; last to end.

    Memory `nonfinite`: `int32[]` non-finite messages and client states met so far. See
    `FederatedProcess.on_nonfinite`, which says what is done.

    Attributes:
      mode: what is done, `stop`, `drop` or `freeze`.
      takes_mean: whether the server takes a mean, which one such message destroys.
    """

    mode: str
    takes_mean: bool
    name = "nonfinite"

    def first_memory(self, at: First, rows: dict[str, Any]) -> dict[str, Any]:
        """Returns a count of zero."""
        return {"nonfinite": jnp.zeros((), jnp.int32)}

    def after(self, turn: Turn) -> Turn:
        """Notes whether ONE client's state is finite; outside `stop`, keeps the old."""
        new = turn.rows["clients"]
        is_whole = client_rows.is_finite(new)
        if self.mode != "stop":
            kept = optax.tree.where(is_whole, new, turn.before["clients"])
            turn = turn.with_rows(clients=kept)
        return turn.noting(whole=is_whole)

    def arrive(self, turn: Turn) -> Turn:
        """Drops ONE upload that is not finite: all of it is zero then."""
        sent = turn.upload
        is_finite = client_rows.is_finite(sent)
        upload = optax.tree.where(is_finite, sent, optax.tree.zeros_like(sent))
        if upload.within is not None:
            within = jnp.where(upload.weight > 0, upload.within, 0)
            upload = dataclasses.replace(upload, within=within)
        turn = dataclasses.replace(turn, upload=upload)
        return turn.noting(lost=~is_finite & (sent.weight > 0))

    def received(
        self, exchange: Any, state: core.State, turns: Turn
    ) -> tuple[core.State, Turn]:
        """Counts lost messages, and outside `stop` states that were not kept."""
        state = _counted(state, turns.notes["lost"].sum())
        if self.mode == "stop" or "whole" not in turns.notes:
            return state, turns
        return self._broken(exchange, state, turns.notes["whole"]), turns

    def _broken(
        self, exchange: Any, state: core.State, is_finite: jax.Array
    ) -> core.State:
        """Counts the members' states that are not finite."""
        exchange.broken.append(~is_finite)
        return _counted(state, exchange.broken[-1].sum())

    def keep(
        self, exchange: Any, state: core.State, old: Any, new: Any
    ) -> tuple[core.State, Any]:
        """Returns state and the members' rows `[K, ...]`, in which none gets worse.

        With `stop`, `end` counts what is in the state.
        """
        if self.mode == "stop":
            return state, new
        is_finite = client_rows.finite_rows(new, exchange.ctx.cohort.shape[0])
        rows = client_rows.select_rows(is_finite, new, old)
        return self._broken(exchange, state, is_finite), rows

    def end(self, exchange: Any, state: core.State, info: core.RoundInfo) -> Any:
        """Looks at the server and at the cohort's rows as the round leaves them.

        A round's last step may spread a non-finite server over the rows. The server
        optimizer's state is a part of the server's.
        """
        old = exchange.start
        pairs = [(s.server, s.memory.get("optimizer")) for s in (state, old)]
        is_finite = client_rows.is_finite(pairs[0])
        new = _counted(state, ~is_finite)
        if self.mode != "stop":
            server, optimizer = optax.tree.where(is_finite, *pairs)
            new = dataclasses.replace(new, server=server)
            new = new.with_memory(optimizer=optimizer)
        rows = exchange.take(new.clients)
        is_whole = self._whole(exchange, rows)
        new = self._broken(exchange, new, is_whole)
        if self.mode != "stop":
            rows = client_rows.select_rows(is_whole, rows, exchange.take(old.clients))
            new = dataclasses.replace(new, clients=exchange.put(new.clients, rows))
        diverged = self._diverged(exchange)
        count = new.memory["nonfinite"]
        info = dataclasses.replace(
            info,
            num_nonfinite=count - old.memory["nonfinite"],
            client_diverged=diverged,
            server_diverged=~is_finite,
        )
        if self.mode == "freeze":
            frozen = old.with_memory(nonfinite=count)
            new = optax.tree.where(~is_finite | diverged.any(), frozen, new)
        return new, info

    def _whole(self, exchange: Any, rows: Any) -> jax.Array:
        """Says `bool[K]` whose rows are finite; as noted where they are the same."""
        for turns in exchange.turns if self.mode == "stop" else ():
            if "whole" in turns.notes and exchange.is_same(rows, turns.rows["clients"]):
                return turns.notes["whole"]
        return client_rows.finite_rows(rows, exchange.ctx.cohort.shape[0])

    def _diverged(self, exchange: Any) -> jax.Array:
        """Says `bool[K]` which honest members `on_nonfinite` is about.

        Their states are not finite, or their messages to a server that takes a mean.
        Other rules leave such messages out, as long as another honest one arrives.
        """
        is_honest = ~exchange.take(exchange.federation.malicious)
        nothing, turns = jnp.zeros(is_honest.shape, bool), exchange.turns
        lost = [t.notes["lost"] for t in turns]
        is_lost = functools.reduce(jnp.logical_or, lost, nothing)
        if turns and not self.takes_mean:
            is_lost &= ~((turns[-1].upload.weight > 0) & is_honest).any()
        return functools.reduce(jnp.logical_or, exchange.broken, is_lost) & is_honest


def _counted(state: core.State, more: jax.Array) -> core.State:
    """Adds to the number of non-finite messages and rows met."""
    met = state.memory["nonfinite"] + more.astype(jnp.int32)
    return state.with_memory(nonfinite=met)

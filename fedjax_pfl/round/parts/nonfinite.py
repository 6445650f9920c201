"""Handling of non-finite values."""

import dataclasses
import functools
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import optax

from fedjax_pfl import core
from fedjax_pfl.core import client_rows
from fedjax_pfl.round.part import First, Part, Turn

if TYPE_CHECKING:
    from fedjax_pfl.round.exchange import Exchange

__all__ = ["Nonfinite"]


@dataclasses.dataclass(frozen=True)
class Nonfinite(Part):
    """Counts and handles non-finite values; see `FederatedProcess.on_nonfinite`."""

    mode: str  # `stop`, `drop` or `freeze`
    takes_mean: bool  # whether the aggregate is a mean, which one message destroys
    name = "nonfinite"

    def first_memory(self, at: First, rows: dict[str, Any]) -> dict[str, Any]:
        """Returns zero."""
        return {"nonfinite": jnp.zeros((), jnp.int32)}

    def after(self, turn: Turn) -> Turn:
        """Checks ONE client's state; restores the old one unless the mode is `stop`."""
        new = turn.rows["clients"]
        is_whole = client_rows.is_finite(new)
        if self.mode != "stop":
            client = optax.tree.where(is_whole, new, turn.before["clients"])
            turn = turn.with_rows(clients=client)
        return turn.noting(whole=is_whole)

    def arrive(self, turn: Turn) -> Turn:
        """Replaces ONE non-finite upload by zeros, weight included."""
        sent = turn.upload
        is_finite = client_rows.is_finite(sent)
        upload = optax.tree.where(is_finite, sent, optax.tree.zeros_like(sent))
        if upload.within is not None:
            # Dropped messages do not count for the adaptive clip.
            within = jnp.where(upload.weight > 0, upload.within, 0)
            upload = dataclasses.replace(upload, within=within)
        turn = dataclasses.replace(turn, upload=upload)
        return turn.noting(lost=~is_finite & (sent.weight > 0))

    def end(
        self, exchange: "Exchange", state: core.State, info: core.RoundInfo
    ) -> tuple[core.State, core.RoundInfo]:
        """Checks the server and the cohort's rows at the end of the round."""
        # Again, since `finish` can copy a non-finite server into the rows.
        old, rows = exchange.start, exchange.take(state.clients)
        # The state of the server optimizer belongs to the server.
        pairs = [(s.server, s.memory.get("optimizer")) for s in (state, old)]
        is_finite = client_rows.is_finite(pairs[0])
        lost = [turns.notes["lost"] for turns in exchange.turns]
        worked = [turns for turns in exchange.turns if "whole" in turns.notes]
        if self.mode == "stop":  # check the same rows only once
            same = exchange.is_same
            worked = [t for t in worked if same(rows, t.rows["clients"])]
        broken = [~turns.notes["whole"] for turns in worked]
        if self.mode != "stop" or not broken:
            broken.append(~client_rows.finite_rows(rows, exchange.ctx.cohort.shape[0]))
        if self.mode != "stop":
            server, optimizer = optax.tree.where(is_finite, *pairs)
            rows = client_rows.select_rows(broken[-1], exchange.take(old.clients), rows)
            clients = exchange.put(state.clients, rows)
            state = dataclasses.replace(state, server=server, clients=clients)
            state = state.with_memory(optimizer=optimizer)
        counts = [flags.sum() for flags in (~is_finite, *lost, *broken)]
        number = sum(count.astype(jnp.int32) for count in counts)
        met = old.memory["nonfinite"] + number
        state = state.with_memory(nonfinite=met)
        is_honest = ~exchange.take(exchange.federation.malicious)
        diverged = self._diverged(exchange, lost, is_honest) | _any(broken, is_honest)
        if self.mode == "freeze":
            frozen = old.with_memory(nonfinite=met)
            state = optax.tree.where(~is_finite | diverged.any(), frozen, state)
        return state, dataclasses.replace(
            info,
            num_nonfinite=number,
            client_diverged=diverged,
            server_diverged=~is_finite,
        )

    def _diverged(
        self, exchange: "Exchange", lost: list[jax.Array], is_honest: jax.Array
    ) -> jax.Array:
        """Returns `bool[K]` honest members that diverge by a lost message."""
        is_lost = _any(lost, is_honest)
        # Rules other than means exclude such messages, and need one honest message.
        if exchange.turns and not self.takes_mean:
            weights = exchange.turns[-1].upload.weight
            is_lost &= ~((weights > 0) & is_honest).any()
        return is_lost


def _any(flags: list[jax.Array], is_honest: jax.Array) -> jax.Array:
    """Returns `bool[K]` honest members with any flag."""
    nothing = jnp.zeros(is_honest.shape, bool)
    return functools.reduce(jnp.logical_or, flags, nothing) & is_honest

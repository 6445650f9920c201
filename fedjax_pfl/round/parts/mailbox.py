"""Last messages of all clients, and their mean."""

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import optax
from jax import lax

from fedjax_pfl import core
from fedjax_pfl.core import client_map, client_rows
from fedjax_pfl.round.part import First, Part, Turn

if TYPE_CHECKING:
    from fedjax_pfl.round.exchange import Exchange

__all__ = ["RECOMPUTE_EVERY", "Mailbox", "shares", "with_mean"]

RECOMPUTE_EVERY = 100
"""Rounds between two recomputations of an incrementally kept mean from the cache."""

RARELY = 10_000
"""The same for streamed trainings, which read all messages from files."""

_CANCELLED = 16.0  # a mean this many times smaller than its terms is recomputed


@dataclasses.dataclass(frozen=True)
class Mailbox(Part):
    """Keeps the last messages in rows `messages`, and their mean in memory `mean`."""

    aggregator: core.Aggregator
    keeps_mean: bool  # whether the mean over all clients is kept
    message_of: Callable[[Any], Any] | None = None  # of ONE client state, or None
    name = "mailbox"
    changed_rows = ("messages",)

    def first_rows(self, at: First) -> dict[str, Any]:
        """Returns the initial messages, if the method uses them."""
        # Messages that follow from client states, as in FLAME, are not stored.
        is_stored = at.messages is not None and self.message_of is None
        return {"messages": at.messages} if is_stored else {}

    def hand_out(
        self, exchange: "Exchange", known: core.Downlink | None
    ) -> tuple[Any, Any]:
        """Returns totals over all clients, if messages are summed inside the map."""
        is_added = self.message_of is not None and exchange.everyone
        return None, exchange.population if is_added else None

    def arrive(self, turn: Turn) -> Turn:
        """Stores or sums ONE client's last message."""
        upload = turn.upload
        if self.message_of is not None:
            old = self.message_of(turn.before["clients"])
        elif (old := turn.before.get("messages")) is None:
            return turn
        last = optax.tree.where(upload.weight > 0, upload.message, old)
        if self.message_of is None:
            # Rows have the message now; a second copy would take memory.
            return turn.with_rows(messages=last).with_upload(message=None)
        if (population := turn.shared[self.name]) is None:
            return turn.with_upload(message=last)
        part = self._part(last, turn.view.data.num_examples, population)
        turn = turn.with_upload(message=None)
        return dataclasses.replace(turn, sums=turn.sums | {self.name: part})

    def received(
        self, exchange: "Exchange", state: core.State, turns: Turn
    ) -> tuple[core.State, Turn]:
        """Updates the mean, and returns the messages to the uploads."""
        if self.message_of is None:
            if (new := turns.rows.get("messages")) is None:
                return state, turns
            old = turns.before["messages"]
        elif exchange.everyone:
            state = with_mean(state, turns.sums[self.name])
            return state, turns.with_upload(message=self._latest(turns.rows["clients"]))
        else:
            old, new = self._latest(turns.before["clients"]), turns.upload.message
        if self.keeps_mean and exchange.everyone:
            state = with_mean(state, self._mean_of_all(exchange, state, new))
        elif self.keeps_mean:
            state = self._with_moved_mean(exchange, state, old, new)
        return state, turns.with_upload(message=new)

    def _latest(self, clients: core.ClientState) -> core.Message:
        """Computes the last messages `[K, *P]` from client states."""
        assert self.message_of is not None
        return jax.vmap(self.message_of)(clients)

    def messages(self, state: core.State) -> core.Message:
        """Returns the last messages `[K, *P]`, or None."""
        if self.message_of is None:
            return state.rows.get("messages")
        return self._latest(state.clients)

    def with_first_mean(
        self, state: core.State, counts: jax.Array, population: core.Population
    ) -> core.State:
        """Computes the mean over all clients, if it is kept."""
        if not self.keeps_mean:
            return state
        parts = shares(self.aggregator, counts, population)
        return with_mean(state, client_rows.weighted_sum(self.messages(state), parts))

    def _part(
        self, message: core.Message, count: jax.Array, population: core.Population
    ) -> core.Message:
        """Returns ONE client's term `[*P]` of the mean over all messages."""
        share = shares(self.aggregator, count, population)
        return jax.tree.map(lambda leaf: share.astype(leaf.dtype) * leaf, message)

    def _with_moved_mean(
        self, exchange: "Exchange", state: core.State, old: core.Tree, new: core.Tree
    ) -> core.State:
        """Updates the mean after the cohort's messages `[K, *P]` changed."""
        counts = exchange.take(exchange.federation.train.num_examples)
        parts = shares(self.aggregator, counts, exchange.population)
        difference = jax.tree.map(lambda a, b: a - b, new, old)
        change = client_rows.weighted_sum(difference, parts)
        mean = jax.tree.map(lambda a, b: a + b, state.memory["mean"], change)
        size, largest = client_rows.magnitude(mean), client_rows.magnitude(difference)
        # Rounding errors are relative to the largest term of a sum. So the mean is
        # computed again if it is much smaller than earlier terms, or not finite. The
        # error is at most that of `RECOMPUTE_EVERY` sums of `_CANCELLED` times its
        # size.
        peak = jnp.maximum(state.memory["peak"], size)
        peak = jnp.maximum(peak, parts.max().astype(largest.dtype) * largest)
        members = exchange.members
        every = RECOMPUTE_EVERY if members is None else RARELY
        due = (exchange.ctx.round + 1) % every == 0
        stale = due | ~(jnp.isfinite(peak) & (size >= peak / _CANCELLED))
        next_state = state.with_memory(mean=mean, peak=peak)

        if members is not None:
            # A streamed round lacks the other messages, and requests a recomputation by
            # an infinite peak.
            unsure = next_state.with_memory(peak=jnp.where(stale, jnp.inf, peak))
            exact = with_mean(state, members.mean)
            return optax.tree.where(members.use_mean, exact, unsure)

        def recompute() -> core.Tree:
            fresh = self._mean_of_all(exchange, state, new)
            pair = (fresh, client_rows.magnitude(fresh))
            return optax.tree.where(stale, pair, (mean, peak))

        # One stale lane sends all lanes through the branch; others keep their mean.
        mean, peak = lax.cond(
            client_map.lane_max(stale), recompute, lambda: (mean, peak)
        )
        return state.with_memory(mean=mean, peak=peak)

    def _mean_of_all(
        self, exchange: "Exchange", state: core.State, new: core.Tree
    ) -> core.Message:
        """Returns the mean `[*P]` over messages, with `new [K, *P]` of the cohort."""
        counts, population = exchange.federation.train.num_examples, exchange.population
        if self.message_of is None:
            parts = shares(self.aggregator, counts, population)
            return client_rows.weighted_sum(state.rows["messages"], parts)
        # Messages of other clients follow from clients' states before the round.
        is_other = jnp.ones(counts.shape, bool).at[exchange.ctx.cohort].set(False)
        message_of = self.message_of

        def one(still: None, row: tuple[Any, ...], shared: None):
            client, num_examples, counts = row
            part = self._part(message_of(client), num_examples, population)
            nothing = optax.tree.zeros_like(part)
            return still, (None, optax.tree.where(counts, part, nothing))

        rows = (state.clients, counts, is_other)
        other_sum = client_map.move_clients(
            one, None, rows, None, exchange.execution, summed=True
        )[1][1]
        parts = shares(self.aggregator, exchange.take(counts), population)
        cohort_sum = client_rows.weighted_sum(new, parts)
        return jax.tree.map(jnp.add, other_sum, cohort_sum)


def with_mean(state: core.State, mean: core.Message) -> core.State:
    """Returns the state with a recomputed mean and its magnitude."""
    return state.with_memory(mean=mean, peak=client_rows.magnitude(mean))


def shares(
    aggregator: core.Aggregator, counts: jax.Array, population: core.Population
) -> jax.Array:
    """Shares `[K]` in the mean over all clients, from numbers of examples `[K]`."""
    if aggregator.incremental == "uniform":
        return jnp.full(counts.shape, 1 / population.num_clients)
    return counts.astype(jnp.zeros(()).dtype) / population.num_examples

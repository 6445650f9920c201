"""The one communication round, whatever the algorithm."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from fedjax_pfl import checks, clients, struct, types
from fedjax_pfl import participation as participations
from fedjax_pfl.algorithms import base

__all__ = ["RECOMPUTE_EVERY", "FederatedProcess"]

VMAP = clients.Execution()

RECOMPUTE_EVERY = 100
"""Rounds between two recomputations of an incrementally kept mean from the cache."""

_CANCELLED = 16.0  # a mean this many times smaller than what was in it is recomputed


@dataclasses.dataclass(frozen=True)
class _Link:
    """What an algorithm's round may use; see `algorithms.base.Link`."""

    process: "FederatedProcess"
    ctx: types.RoundContext
    work: types.Budget
    model: Any
    federation: types.Federation
    execution: clients.Execution
    aggregator: types.Aggregator
    everyone: bool
    key: types.Key

    def take(self, tree: Any) -> Any:
        return tree if self.everyone else clients.take(tree, self.ctx.cohort)

    def put(self, tree: Any, rows: Any) -> Any:
        return rows if self.everyone else clients.put(tree, self.ctx.cohort, rows)

    def _keys(self, stream: types.Stream, exchange: int) -> jax.Array:
        """One key per cohort member: purpose, round, identity and exchange."""
        key = types.stream_key(self.key, stream, self.ctx.round)
        key = jax.random.fold_in(key, exchange)
        identities = self.take(self.federation.train.client_id)
        return jax.vmap(lambda i: jax.random.fold_in(key, i))(identities)

    def map(
        self, fn: Callable[..., Any], rows: Any, shared: Any, *, exchange: int = 0
    ) -> Any:
        data = self.federation.train
        keys = self._keys(types.Stream.CLIENT, exchange)

        def one(row, everything):
            key, work, fields, given = row
            pool, round, shared = everything
            view = base.ClientView(
                key=key, round=round, work=work, data=pool.with_rows(fields)
            )
            return fn(view, given, shared)

        members = (keys, self.work, self.take(data.rows()), rows)
        everything = (data.pool(), self.ctx.round, shared)
        return clients.map_clients(one, members, everything, self.execution)

    def keep_finite(self, state: types.State, old: Any, new: Any) -> tuple[Any, Any]:
        if self.process.on_nonfinite == "stop":
            return state, new  # the process counts what is in the state in the end
        finite = clients.finite_rows(new, self.ctx.cohort.shape[0])
        return _count(state, (~finite).sum()), clients.select_rows(finite, new, old)

    def upload(
        self, state: types.State, uploads: types.Upload, reference: Any
    ) -> tuple[types.State, types.Upload]:
        messages, attack_state = uploads.message, state.attack
        if self.process.attack is not None:
            messages, attack_state = self.process.attack(
                self._keys(types.Stream.ATTACK, 0),
                attack_state,
                messages,
                self.take(self.federation.malicious),
                reference,
            )
        sent = dataclasses.replace(uploads, message=messages)
        finite = clients.finite_rows(sent, self.ctx.cohort.shape[0])
        lost = ~finite & (uploads.weight > 0)
        nothing = jax.tree.map(jnp.zeros_like, sent)
        received = clients.select_rows(finite, sent, nothing)
        state = dataclasses.replace(state, attack=attack_state)
        return _count(state, lost.sum()), received

    def store(self, state: types.State, received: types.Upload) -> types.State:
        if state.messages is None:
            return state
        old = self.take(state.messages)
        new = clients.select_rows(received.weight > 0, received.message, old)
        state = dataclasses.replace(state, messages=self.put(state.messages, new))
        if state.aggregate is None:
            return state
        if self.everyone:
            kept = _cached_mean(state.messages, self.aggregator, self.federation)
        else:
            kept = self._moved_mean(state, old, new)
        return dataclasses.replace(state, aggregate=kept[0], aggregate_peak=kept[1])

    def _moved_mean(self, state: types.State, old: Any, new: Any) -> tuple[Any, Any]:
        """The kept mean after the cohort's messages changed, and its peak.

        A sum loses what is below the rounding of its largest term. A mean that is much
        smaller than what has been in it, or not finite as a difference overflowed, is
        recomputed; so the error is at most that of `RECOMPUTE_EVERY` sums of
        `_CANCELLED` times its size.
        """
        counts = self.federation.train.num_examples
        shares = _shares(self.aggregator, self.take(counts), counts)
        difference = jax.tree.map(lambda a, b: a - b, new, old)
        change = clients.weighted_sum(difference, shares)
        mean = jax.tree.map(lambda a, b: a + b, state.aggregate, change)
        size, largest = clients.magnitude(mean), clients.magnitude(difference)
        peak = jnp.maximum(state.aggregate_peak, size)
        peak = jnp.maximum(peak, shares.max().astype(largest.dtype) * largest)
        due = (self.ctx.round + 1) % RECOMPUTE_EVERY == 0
        stale = due | ~(jnp.isfinite(peak) & (size >= peak / _CANCELLED))

        def recompute() -> tuple[Any, Any]:
            fresh = _cached_mean(state.messages, self.aggregator, self.federation)
            return jax.tree.map(
                lambda a, b: jnp.where(stale, a, b), fresh, (mean, peak)
            )

        # A lane that needs it takes all through the branch, but changes only its own.
        return lax.cond(clients.lane_max(stale), recompute, lambda: (mean, peak))

    def aggregate(
        self, state: types.State, received: types.Upload, reference: Any
    ) -> tuple[Any, Any]:
        if state.aggregate is not None:
            return state.aggregate, {}
        key = types.stream_key(self.key, types.Stream.AGGREGATION, self.ctx.round)
        if self.process.algorithm.aggregate_over == "all":
            weights = self.federation.train.num_examples.astype(received.weight.dtype)
            return self.aggregator(key, state.messages, weights, reference)
        return self.aggregator(key, received.message, received.weight, reference)

    def info(
        self, client: Any, aggregator: Any, server: Any = None, **floats: Any
    ) -> types.RoundInfo:
        return types.RoundInfo(
            cohort=self.ctx.cohort,
            client=client,
            aggregator=aggregator,
            server=server or {},
            num_nonfinite=jnp.zeros((), jnp.int32),
            floats_up=jnp.asarray(floats["floats_up"], jnp.float32),
            floats_down=jnp.asarray(floats["floats_down"], jnp.float32),
        )


def _count(state: types.State, more: jax.Array) -> types.State:
    """Adds to the number of non-finite messages and rows met."""
    return dataclasses.replace(
        state, nonfinite=state.nonfinite + more.astype(jnp.int32)
    )


def _shares(
    aggregator: types.Aggregator, members: jax.Array, counts: jax.Array
) -> jax.Array:
    """Shares `[K]` of members in the mean over all clients, from example counts."""
    if aggregator.incremental == "uniform":
        return jnp.full(members.shape, 1 / counts.shape[0])
    return members / counts.sum()


def _cached_mean(
    messages: Any, aggregator: types.Aggregator, federation: types.Federation
) -> tuple[Any, jax.Array]:
    """The mean over all clients' messages, computed from the cache, and its peak."""
    counts = federation.train.num_examples
    mean = clients.weighted_sum(messages, _shares(aggregator, counts, counts))
    return mean, clients.magnitude(mean)


@struct.pytree_dataclass
class FederatedProcess:
    """An algorithm with everything around it; its fields are dotted names of grids.

    Attributes:
      algorithm: the method.
      aggregator: how messages are combined; None takes the algorithm's own.
      participation: who takes part in a round.
      work: how much local work the members may do.
      attack: what malicious clients send, or None.
      on_nonfinite: what is not finite in an upload never enters an aggregate, in any
        mode: that client takes no part. `stop`: the run is reported as diverged at that
        round; `drop`: a client or server whose new state is not finite keeps its old
        one, and the run goes on; `freeze`: a round with any non-finite value leaves the
        whole state as it was, but for the round number and the count.
    """

    algorithm: Any
    aggregator: Any = None
    participation: Any = participations.AllClients()
    work: Any = participations.FullWork()
    attack: Any = None
    on_nonfinite: str = struct.static_field(default="stop")

    def __post_init__(self):
        checks.known(self.on_nonfinite, ("stop", "drop", "freeze"), "on_nonfinite")

    def used_aggregator(self) -> types.Aggregator:
        """The aggregator of the process, or the algorithm's own."""
        if self.aggregator is None:
            return self.algorithm.default_aggregator()
        return self.aggregator

    def check_cohort(self, size: int, num_clients: int) -> None:
        """Lets the algorithm and the aggregator refuse; before anything is traced.

        Args:
          size: K, clients per round.
          num_clients: N.
        """
        self.algorithm.check_cohort(size)
        everyone = self.algorithm.aggregate_over == "all"
        check = getattr(self.used_aggregator(), "check_cohort", None)
        if check is not None:
            check(num_clients if everyone else size)

    def init(
        self, key: types.Key, model: types.Model, federation: types.Federation
    ) -> types.State:
        """The state before the first round.

        Args:
          key: `[]` key of the run (`jax.random.key(seed)`).
          model: the model, already given the federation's shapes.
          federation: data of N clients.

        Returns:
          The state; all its randomness follows from `key`.
        """
        init_key = types.stream_key(key, types.Stream.INIT, 0)
        server, rows, messages = self.algorithm.init(init_key, model, federation)
        aggregator = self.used_aggregator()
        aggregate = peak = None
        if self.algorithm.aggregate_over == "all" and aggregator.incremental:
            aggregate, peak = _cached_mean(messages, aggregator, federation)
        return types.State(
            server=server,
            clients=rows,
            messages=messages,
            aggregate=aggregate,
            aggregate_peak=peak,
            attack=None if self.attack is None else self.attack.init(messages),
            nonfinite=jnp.zeros((), jnp.int32),
            round=jnp.zeros((), jnp.int32),
            key=key,
        )

    def round(
        self,
        state: types.State,
        model: types.Model,
        federation: types.Federation,
        execution: clients.Execution = VMAP,
    ) -> tuple[types.State, types.RoundInfo]:
        """One communication round; pure.

        Args:
          state: state before the round.
          model: the model.
          federation: data of N clients.
          execution: how the map over clients is run.

        Returns:
          State after the round and a report.
        """
        num_clients = federation.num_clients
        participation_key, work_key, server_key = (
            types.stream_key(state.key, stream, state.round)
            for stream in (
                types.Stream.PARTICIPATION,
                types.Stream.WORK,
                types.Stream.SERVER,
            )
        )
        cohort = self.participation(participation_key, num_clients)
        everyone = cohort.shape[0] == num_clients
        identities = federation.train.client_id
        link = _Link(
            process=self,
            ctx=types.RoundContext(
                key=server_key,
                round=state.round,
                cohort=cohort,
                num_clients=num_clients,
            ),
            work=self.work(work_key, identities if everyone else identities[cohort]),
            model=model,
            federation=federation,
            execution=execution,
            aggregator=self.used_aggregator(),
            everyone=everyone,
            key=state.key,
        )
        new, info = self.algorithm.round(state, link)
        new = self._treat_server(state, new)
        new = self._treat_rows(link, state, new)
        num_nonfinite = new.nonfinite - state.nonfinite
        if self.on_nonfinite == "freeze":
            frozen = dataclasses.replace(state, nonfinite=new.nonfinite)
            ok = num_nonfinite == 0
            new = jax.tree.map(lambda a, b: jnp.where(ok, a, b), new, frozen)
        new = dataclasses.replace(new, round=state.round + 1)
        return new, dataclasses.replace(info, num_nonfinite=num_nonfinite)

    def _treat_server(self, old: types.State, new: types.State) -> types.State:
        """Counts a non-finite server state; outside `stop`, keeps the old one."""
        as_row = clients.broadcast(new.server, 1)
        finite = clients.finite_rows(as_row, 1)[0]
        new = _count(new, ~finite)
        if self.on_nonfinite == "stop":
            return new
        server = jax.tree.map(
            lambda a, b: jnp.where(finite, a, b), new.server, old.server
        )
        return dataclasses.replace(new, server=server)

    def _treat_rows(
        self, link: _Link, old: types.State, new: types.State
    ) -> types.State:
        """Counts rows that are not finite in the end; outside `stop`, keeps old ones.

        A round's last step may spread a non-finite server over them.
        """
        rows = link.take(new.clients)
        finite = clients.finite_rows(rows, link.ctx.cohort.shape[0])
        new = _count(new, (~finite).sum())
        if self.on_nonfinite == "stop":
            return new
        rows = clients.select_rows(finite, rows, link.take(old.clients))
        return dataclasses.replace(new, clients=link.put(new.clients, rows))

    def predictors(
        self,
        key: types.Key,
        state: types.State,
        client: Any,
        model: types.Model,
        data: types.ClientData,
    ) -> dict[str, Any]:
        """Functions `x -> outputs` of ONE client, by name.

        Args:
          key: `[]` key of evaluation for this client.
          state: state of the training; its client rows are not used.
          client: row of this client.
          model: the model.
          data: training examples of this client.

        Returns:
          The algorithm's predictors.
        """
        return self.algorithm.predictors(
            key, state.round, state.server, client, model, data
        )

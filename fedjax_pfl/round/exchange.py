"""Communication between the server and the cohort of one round."""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from fedjax_pfl import core
from fedjax_pfl.core import (
    byte_counts,
    client_map,
    divided_examples,
    randomness,
    sharding,
    split_rows,
)
from fedjax_pfl.core.client_view import ClientView
from fedjax_pfl.messages import Encoding
from fedjax_pfl.round.part import Part, Turn, check_turn
from fedjax_pfl.round.parts import model_state, noise

if TYPE_CHECKING:
    from fedjax_pfl.round.process import FederatedProcess

__all__ = ["Exchange"]

_MANY_EPOCHS = 100


@dataclasses.dataclass(frozen=True)
class Exchange:
    """Communication with the cohort of one round, for methods and parts.

    Attributes:
      process: the process.
      parts: its parts, in order.
      ctx: key, round, cohort and number of clients, for hooks of the method.
      start: the state with which the round began.
      work: budgets of the cohort, leading axis K.
      model: the model.
      federation: data of all clients, or of the cohort if `members` are given.
      data: training data of the cohort, leading axis K.
      population: totals over all clients.
      execution: how the map over clients is run.
      members: the cohort of a streamed round, which has no other rows; or None.
      timing: the round in virtual time, or None.
      present: `bool[K]` members that take part, or None for all.
      turns: finished turns of the round, one entry per exchange.
      written: pairs of updated rows `[N, ...]` and the cohort's part of them.
    """

    process: FederatedProcess
    parts: tuple[Part, ...]
    ctx: core.RoundContext
    start: core.State
    work: core.Budget
    model: core.Model
    federation: core.Federation
    data: core.ClientData
    population: core.Population
    execution: sharding.Execution
    members: core.Members | None = None
    timing: core.Timetable | None = None
    present: jax.Array | None = None
    turns: list[Turn] = dataclasses.field(default_factory=list)
    written: list[tuple[Any, Any]] = dataclasses.field(default_factory=list)

    @classmethod
    def of(
        cls,
        process: FederatedProcess,
        parts: tuple[Part, ...],
        state: core.State,
        model: core.Model,
        federation: core.Federation,
        execution: sharding.Execution,
        members: core.Members | None,
    ) -> Exchange:
        """Draws the cohort of a round and its budgets."""
        source = federation if members is None else members
        population, key = source.population, state.key
        count = population.num_clients
        work_key, server_key, who_key = (
            core.stream_key(key, stream, state.round)
            for stream in (
                core.Stream.WORK,
                core.Stream.SERVER,
                core.Stream.PARTICIPATION,
            )
        )
        plan = process.participation
        if members is None:
            cohort = process.cohort(key, state.round, count)
        else:
            cohort = members.cohort
        identities = federation.train.client_id
        # Streamed federations have the rows of the cohort only.
        if identities.shape != cohort.shape:
            identities = identities[cohort]
        work, present = process.work(work_key, identities), plan.present(who_key, count)
        timing = None if plan.timetable is None else plan.timetable.at(state.round)
        # Shapes are fixed: absent members stay in the cohort, and take no steps.
        steps = work.steps
        if timing is not None:
            steps, present = jnp.minimum(steps, timing.steps), timing.present
        elif present is not None:
            steps = jnp.where(present, steps, 0)
        noisy = noise.noise_of(process)
        # Before the cohort is gathered, which takes these rows along.
        federation = model_state.with_kept(state, model, federation)
        train = federation.train
        if members is None and cohort.shape[0] < count:
            train = divided_examples.of_cohort(train, cohort, execution)
        return cls(
            process=process,
            parts=parts,
            ctx=core.RoundContext(
                key=server_key,
                round=state.round,
                cohort=cohort,
                num_clients=count,
                expected=None if noisy is None else plan.expected(count),
            ),
            start=state,
            work=dataclasses.replace(work, steps=steps),
            model=model,
            federation=federation,
            data=train,
            population=population,
            execution=execution,
            members=members,
            timing=timing,
            present=present,
        )

    @property
    def everyone(self) -> bool:
        """Returns whether the cohort consists of all clients."""
        return self.ctx.cohort.shape[0] == self.population.num_clients

    @property
    def has_rows(self) -> bool:
        """Returns whether rows of state and federation belong to the cohort only."""
        return self.everyone or self.members is not None

    def take(self, tree: core.Tree) -> core.Tree:
        """Returns rows of the cohort, `[N, ...]` to `[K, ...]`."""
        if self.has_rows:
            return tree
        for written, rows in self.written:
            if self.is_same(tree, written):
                return rows
        return split_rows.take(tree, self.ctx.cohort, self.execution)

    def put(self, tree: core.Tree, rows: core.Tree) -> core.Tree:
        """Writes rows of the cohort into rows of all clients `[N, ...]`."""
        if self.has_rows:
            return rows
        new = split_rows.put(tree, self.ctx.cohort, rows, self.execution)
        if self.execution.mode == "shard":  # gathering them again costs communication
            self.written.append((new, rows))
        return new

    def keys(self, stream: core.Stream, exchange: int = 0) -> jax.Array:
        """Returns keys `[K]` that depend on purpose, round, client and exchange."""
        key = core.stream_key(self.start.key, stream, self.ctx.round)
        key = jax.random.fold_in(key, exchange)
        identities = self.take(self.federation.train.client_id)
        return jax.vmap(lambda i: jax.random.fold_in(key, i))(identities)

    def noise_key(
        self, stream: core.Stream, round: jax.Array | None = None
    ) -> core.Key:
        """Returns the Threefry key of a round, by default the present one."""
        number = self.ctx.round if round is None else round
        return randomness.noise_key(core.stream_key(self.start.key, stream, number))

    @property
    def server_noise(self) -> noise.Noise | None:
        """The part that adds server noise, or None."""
        return next((p for p in self.parts if isinstance(p, noise.Noise)), None)

    @staticmethod
    def is_same(tree: core.Tree, other: core.Tree) -> bool:
        """Returns whether two trees consist of the same objects."""
        left, right = jax.tree.leaves(tree), jax.tree.leaves(other)
        return len(left) == len(right) and all(map(operator.is_, left, right))

    def map(
        self,
        fn: Callable[..., Any],
        rows: core.Tree,
        shared: core.Tree,
        *,
        exchange: int = 0,
    ) -> core.Tree:
        """Applies `fn(view, row, shared)` to every member, in any execution mode.

        Args:
          fn: function of ONE client that returns a pytree.
          rows: pytree of `[K, ...]`.
          shared: argument of all calls.
          exchange: number of the exchange in this round; each has its own keys.

        Returns:
          Pytree of `[K, ...]`.
        """

        def ask(turn: Turn) -> Turn:
            answer = fn(turn.view, turn.given["method"], turn.shared["method"])
            return dataclasses.replace(turn, report=answer)

        down = core.Downlink(shared=shared, per_client=rows)
        return self._map(ask, {}, self._handed_out(down, None), exchange).report

    def train(
        self, state: core.State, down: core.Downlink
    ) -> tuple[core.State, Any, core.Upload, Any]:
        """Runs local work of all members and receives their messages.

        Without an attack all hooks of ONE client run in one map, while its state and
        its message are in the cache. An attack needs all messages at once: the hooks
        `arrive` then run in a second map.

        Args:
          state: state of the training.
          down: broadcast to the cohort.

        Returns:
          Updated state; client rows `[K]`; received uploads, in which a message of
          weight 0 may be an earlier one; and reports.
        """
        method, process = self.process.algorithm, self.process

        def work(turn: Turn) -> Turn:
            view, client = turn.view, turn.before["clients"]
            received = core.Downlink(
                shared=turn.shared["method"], per_client=turn.given["method"]
            )
            rule = process.method(view.data.client_id)
            new, upload, report = rule.client_update(view, received, client, self.model)
            turn = dataclasses.replace(turn, upload=upload, report=report)
            turn = turn.with_rows(clients=new)
            turn = self._fold("send", self._fold("after", turn))
            # An attack needs all messages at once; `_received` continues after it.
            return turn if process.attack is not None else self._fold("arrive", turn)

        handed_out = self._handed_out(down, method.known(state.server, down))
        rows = {"clients": self.take(state.clients), **self._rows(state)}
        turns = self._map(work, rows, handed_out)
        state, turns = self._received(state, turns, handed_out)
        return state, turns.rows["clients"], turns.upload, turns.report

    def upload(
        self, state: core.State, uploads: core.Upload
    ) -> tuple[core.State, core.Upload]:
        """Sends messages `[K, *P]` from a `map` to the server.

        Returns:
          Updated state, and received uploads.
        """
        reference = core.Downlink(shared=self.process.algorithm.reference(state.server))
        inputs, shared = self._handed_out(core.Downlink(shared=None), reference)

        # No view: this turn has no local work.
        def send(rows: core.Tree, inputs: core.Tree, upload: core.Upload) -> Turn:
            turn = self._fold("send", Turn(None, rows, rows, inputs, shared, upload))
            is_attacked = self.process.attack is not None
            return turn if is_attacked else self._fold("arrive", turn)

        turns = jax.vmap(send)(self._rows(state), inputs, uploads)
        state, turns = self._received(state, turns, (inputs, shared))
        return state, turns.upload

    def _handed_out(
        self, down: core.Downlink, reference: core.Downlink | None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Collects inputs of the turns from all parts: per member, and shared."""
        pairs = {part.name: part.hand_out(self, reference) for part in self.parts}
        pairs["method"] = (down.per_client, down.shared)
        return {n: p[0] for n, p in pairs.items()}, {n: p[1] for n, p in pairs.items()}

    def _map(
        self,
        work: Callable[[Turn], Turn],
        rows: dict[str, Any],
        handed_out: tuple[dict[str, Any], dict[str, Any]],
        exchange: int = 0,
    ) -> Turn:
        """Maps a function of ONE client's turn over the cohort."""
        pool, fields = self.data.pool(), self.data.rows()
        is_part = self.execution.mode == "shard" and pool.num_parts > 1

        def one(rows: dict[str, Any], row: tuple[Any, ...], everything: core.Tree):
            (key, budget, fields, inputs), (pool, round, shared) = row, everything
            data = divided_examples.client(pool, fields, is_part=is_part)
            view = ClientView(key=key, round=round, data=data, work=budget)
            turn = self._fold("before", Turn(view, rows, rows, inputs, shared))
            turn = work(turn)
            return turn.rows, ((turn.upload, turn.report, turn.notes), turn.sums)

        inputs, shared = handed_out
        members = (self.keys(core.Stream.CLIENT, exchange), self.work, fields, inputs)
        specs = (divided_examples.specs(pool), PartitionSpec(), PartitionSpec())
        # Amounts of work, by which chunks are formed; budgets without caps are alike.
        epochs = jnp.minimum(self.work.epochs, _MANY_EPOCHS).astype(jnp.float32)
        # A device has all columns of its clients: arrays are not divided inside.
        with sharding.over(sharding.Execution()):
            # Rows are states of the map, so that old and new ones share a buffer.
            after, ((upload, report, notes), sums) = client_map.move_clients(
                one,
                rows,
                members,
                (pool, self.ctx.round, shared),
                self.execution,
                epochs * fields["num_examples"],
                summed=True,
                shared_specs=specs,
            )
        return Turn(None, rows, after, {}, {}, upload, report, notes, sums)

    def _rows(self, state: core.State) -> dict[str, Any]:
        """Returns rows of the cohort that parts change in turns."""
        names = [n for part in self.parts for n in part.changed_rows if n in state.rows]
        return self.take({name: state.rows[name] for name in names})

    def _fold(
        self, hook: Literal["before", "after", "send", "arrive"], turn: Turn
    ) -> Turn:
        """Applies one hook of all parts to ONE client's turn."""
        for part in self.parts:
            new = operator.methodcaller(hook, turn)(part)
            # Parts of this package are tested.
            if part in self.process.parts:  # of the user's
                check_turn(part, new, turn)
            turn = new
        return turn

    def _received(
        self, state: core.State, turns: Turn, handed_out: tuple[Any, Any]
    ) -> tuple[core.State, Turn]:
        """Updates the state after an exchange."""
        if self.process.attack is not None:
            state, turns = self._attacked(state, turns, handed_out)
        new = {n: turns.rows[n] for n in turns.rows if n != "clients"}
        put = {n: self.put(state.rows[n], rows) for n, rows in new.items()}
        state = state.with_rows(**put)
        for part in self.parts:
            state, turns = part.received(self, state, turns)
        self.turns.append(turns)
        return state, turns

    def _attacked(
        self, state: core.State, turns: Turn, handed_out: tuple[Any, Any]
    ) -> tuple[core.State, Turn]:
        """Applies the attack, then the hooks `arrive`."""
        process, (inputs, shared) = self.process, handed_out
        messages, memory = process.attack(
            self.keys(core.Stream.ATTACK),
            state.memory.get("attack"),
            turns.upload.message,
            self.take(self.federation.malicious),
            process.algorithm.reference(state.server),
        )

        def arrive(turn: Turn, inputs: core.Tree) -> Turn:
            turn = dataclasses.replace(turn, given=inputs, shared=shared)
            turn = self._fold("arrive", turn)
            return dataclasses.replace(turn, given={}, shared={})

        turns = jax.vmap(arrive)(turns.with_upload(message=messages), inputs)
        return state.with_memory(attack=memory), turns

    def aggregate(
        self, state: core.State, received: core.Upload, reference: core.Message
    ) -> tuple[Any, Any]:
        """Combines messages of the cohort or of all clients.

        Args:
          state: state after the exchange.
          received: uploads of the cohort.
          reference: pytree `[*P]` relative to which rules compare messages.

        Returns:
          The aggregate `[*P]`, and the aggregator's info.
        """
        noisy = self.server_noise
        # Methods with the mean of all clients update it when messages arrive.
        if (mean := state.memory.get("mean")) is not None:
            if noisy is not None:
                mean = noisy.to_mean(self, state, mean, self.population.num_clients)
            return mean, {}
        rule, identities = self.process.used_aggregator(), self.data.client_id
        key = core.stream_key(self.start.key, core.Stream.AGGREGATION, self.ctx.round)
        messages, weights = received.message, received.weight
        if self.process.algorithm.aggregate_over == "all":
            identities = self.federation.train.client_id
            weights = self.federation.train.num_examples.astype(weights.dtype)
            messages = state.rows["messages"]
        if not (rule.by_columns or rule.incremental):  # which sums where rows are
            messages = sharding.split_parameters(messages, self.execution)
        if noisy is None:
            return rule(key, messages, weights, reference)
        # Robust rules are no sums: every message gets noise, and weight 1.
        if not rule.incremental:
            messages = noisy.to_rows(self, identities, messages)
            return rule(key, messages, jnp.ones_like(weights), reference)
        mean, info = rule(key, messages, weights, reference)
        size = weights.shape[0]
        if (expected := self.ctx.expected) is not None:
            # The sum is divided by the expected number of participants, since the
            # actual one is secret.
            mean = jax.tree.map(
                lambda x, r: r + size / expected * (x - r), mean, reference
            )
            size = expected
        return noisy.to_mean(self, state, mean, size), info

    def step(
        self, state: core.State, server: core.ServerState
    ) -> tuple[core.State, Any]:
        """Applies the server optimizer, if there is one, to a new model."""
        optimizer = self.process.server_optimizer
        if optimizer is None:
            return state, server
        memory = state.memory.get("optimizer")
        server, memory = optimizer(memory, state.server, server)
        return state.with_memory(optimizer=memory), server

    def bytes_up(self, messages: core.Message) -> int:
        """Counts the bytes of the cohort's messages `[K, *P]` on their way up."""
        row = jax.eval_shape(lambda: jax.tree.map(lambda leaf: leaf[0], messages))
        encoding = Encoding.plain(row)
        for part in (*self.parts, self.process.used_aggregator()):
            encoding = part.encoding(encoding)
        return encoding.num_bytes * self.ctx.cohort.shape[0]

    def info(
        self,
        client: core.Tree,
        aggregator: core.Tree,
        server: core.Tree = None,
        *,
        bytes_up: int | jax.Array,
        bytes_down: int | jax.Array,
    ) -> core.RoundInfo:
        """Returns the round's report.

        Args:
          client: values `[K]` by name, or a `core.Report` of them.
          aggregator: info of the aggregator.
          server: values `[]` by name.
          bytes_up: bytes from the cohort; `byte_counts.words` if they are traced.
          bytes_down: bytes to the cohort.
        """
        cohort = self.ctx.cohort
        if self.present is not None and self.timing is None:
            cohort = jnp.where(self.present, cohort, -1)
        return core.RoundInfo(
            cohort=cohort,
            client=client,
            aggregator=aggregator,
            server=server or {},
            # These three values are filled in by the part `Nonfinite`, at the end.
            num_nonfinite=jnp.zeros((), jnp.int32),
            client_diverged=jnp.zeros(cohort.shape, bool),
            server_diverged=jnp.zeros((), bool),
            bytes_up=self._words(bytes_up, "sent"),
            bytes_down=self._words(bytes_down, "received"),
        )

    def with_bytes(self, info: core.RoundInfo, each: int) -> core.RoundInfo:
        """Adds bytes that every member sends and receives in addition."""
        total = each * self.ctx.cohort.shape[0]
        return dataclasses.replace(
            info,
            bytes_up=info.bytes_up + self._words(total, "sent"),
            bytes_down=info.bytes_down + self._words(total, "received"),
        )

    def _words(
        self, count: int | jax.Array, by: Literal["sent", "received"]
    ) -> jax.Array:
        """Returns the words of the bytes of all members that take part."""
        if not isinstance(count, int):
            return count
        if self.present is None:
            return byte_counts.words(count)
        per_member, number = count // self.ctx.cohort.shape[0], self.present.sum()
        # In virtual time the timetable counts messages, lost ones included.
        if self.timing is not None:
            number = self.timing.sent if by == "sent" else self.timing.received
        return byte_counts.times(byte_counts.words(per_member), number)

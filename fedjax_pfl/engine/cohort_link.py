"""The link between the server and a cohort: who gets what, and what arrives."""

import dataclasses
import functools
import operator
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax import lax
from jax.sharding import PartitionSpec

from fedjax_pfl import core
from fedjax_pfl.core import (
    byte_counts,
    checks,
    client_map,
    client_rows,
    divided_examples,
    randomness,
    sharding,
    split_rows,
    struct,
)
from fedjax_pfl.core.exchange import ClientView
from fedjax_pfl.engine import privacy
from fedjax_pfl.messages import (
    AdaptiveClip,
    ClipNorm,
    Encoding,
    NoisyRound,
    ServerNoise,
)

__all__ = ["RECOMPUTE_EVERY", "CohortLink", "cached_mean", "count", "shares"]

RECOMPUTE_EVERY = 100
"""Rounds between two recomputations of an incrementally kept mean from the cache."""

RARELY = 10_000
"""The same where the messages of all clients are not at hand."""

_MANY_EPOCHS = 100
_CANCELLED = 16.0  # a mean this many times smaller than what was in it is recomputed


@dataclasses.dataclass(frozen=True)
class CohortLink:
    """Link of a cohort; see `core.Link`.

    Attributes:
      ctx: key, round, cohort and number of clients.
      work: budgets of the cohort, leading axis K.
      model: the model.
      federation: data of all clients, or of the cohort where there are `members`.
      data: training data of the cohort, leading axis K.
      carry: what local solvers keep, of all clients or of the cohort, or None.
      steps: `int32[N]` local steps of all clients so far, or None.
      execution: how the map over clients is run.
      aggregator: how messages are combined.
      attack: what malicious clients send, or None.
      server_optimizer: what the server does with its new model, or None.
      transforms: what happens to messages between clients and server, in order.
      aggregate_over: `"cohort"`, or `"all"` clients' last messages.
      on_nonfinite: what is done with values that are not finite.
      population: what is known of all clients.
      members: whose rows there are, where not those of all clients.
      key: `[]` key of the run.
      method: makes the algorithm of ONE client from its number.
      message_of: makes the last message of ONE client from its state, where messages
        are not kept beside states; or None.
      timing: the round in virtual time, or None.
      present: `bool[K]` who takes part, or None for all.
      period: rounds in a row of which no client has two, or None.
      weight: what changes count, from `int32[]` staleness.
      seen: rows that the members' work has made, with whether each is finite.
      written: rows of all clients with the cohort's new ones, and these.
      arrived: weights `[K]` of the messages of every exchange, as they have arrived.
      lost: `bool[K]` of every exchange, non-finite messages.
      broken: `bool[K]` of every check of the members' states, non-finite ones.
    """

    ctx: core.RoundContext
    work: core.Budget
    model: Any
    federation: core.Federation
    data: core.ClientData
    carry: Any
    steps: jax.Array | None
    execution: sharding.Execution
    aggregator: core.Aggregator
    attack: Any
    server_optimizer: Any
    transforms: tuple[core.Transform, ...]
    aggregate_over: str
    on_nonfinite: str
    population: core.Population
    members: core.Members | None
    key: core.Key
    method: Callable[[jax.Array], Any]
    message_of: Any = None
    timing: core.Timetable | None = None
    present: jax.Array | None = None
    period: int | None = None
    weight: Callable[[jax.Array], jax.Array] = jnp.ones_like
    seen: list[tuple[Any, jax.Array]] = dataclasses.field(default_factory=list)
    written: list[tuple[Any, Any]] = dataclasses.field(default_factory=list)
    arrived: list[jax.Array] = dataclasses.field(default_factory=list)
    lost: list[jax.Array] = dataclasses.field(default_factory=list)
    broken: list[jax.Array] = dataclasses.field(default_factory=list)

    @property
    def everyone(self) -> bool:
        """Whether the cohort is all clients, in order."""
        return self.ctx.cohort.shape[0] == self.population.num_clients

    @property
    def has_rows(self) -> bool:
        """Whether the rows of state and federation are those of the cohort."""
        return self.everyone or self.members is not None

    def take(self, tree: Any) -> Any:
        """Rows of the cohort, `[N, ...]` to `[K, ...]`."""
        if self.has_rows:
            return tree
        for written, rows in self.written:
            if _is_same(tree, written):
                return rows
        return split_rows.take(tree, self.ctx.cohort, self.execution)

    def put(self, tree: Any, rows: Any) -> Any:
        """Writes rows of the cohort back."""
        if self.has_rows:
            return rows
        new = split_rows.put(tree, self.ctx.cohort, rows, self.execution)
        if self.execution.mode == "shard":  # taking them again would be an exchange
            self.written.append((new, rows))
        return new

    def _keys(self, stream: core.Stream, exchange: int) -> jax.Array:
        """Returns one key per cohort member: purpose, round, identity and exchange."""
        key = core.stream_key(self.key, stream, self.ctx.round)
        key = jax.random.fold_in(key, exchange)
        identities = self.take(self.federation.train.client_id)
        return jax.vmap(lambda i: jax.random.fold_in(key, i))(identities)

    def map(
        self, fn: Callable[..., Any], rows: Any, shared: Any, *, exchange: int = 0
    ) -> Any:
        """Applies `fn(view, row, shared)` to every member."""

        def one(view: ClientView, state: None, row: Any, shared: Any):
            return state, fn(view, row, shared)

        return self._move(one, None, rows, shared, exchange)[1]

    def _move(
        self,
        fn: Callable[..., Any],
        states: Any,
        rows: Any,
        shared: Any,
        exchange: int = 0,
        *,
        summed: bool = False,
    ) -> tuple[Any, Any]:
        """Applies `fn(view, state, row, shared) -> (state, output)` to every member."""
        pool, fields = self.data.pool(), self.data.rows()
        keys = self._keys(core.Stream.CLIENT, exchange)
        is_part = self.execution.mode == "shard" and pool.num_parts > 1

        def one(state: Any, row: tuple[Any, ...], everything: tuple[Any, ...]):
            key, work, fields, kept, own = row
            pool, round, shared = everything
            data = divided_examples.client(pool, fields, is_part=is_part)
            view = ClientView(key=key, round=round, data=data, work=work, **kept)
            return fn(view, state, own, shared)

        steps = None if self.steps is None else self.steps[self.ctx.cohort]
        kept = {"carry": self.take(self.carry), "steps": steps}
        members = (keys, self.work, fields, kept, rows)
        everything = (pool, self.ctx.round, shared)
        specs = (divided_examples.specs(pool), PartitionSpec(), PartitionSpec())
        epochs = jnp.minimum(self.work.epochs, _MANY_EPOCHS).astype(jnp.float32)
        work = epochs * fields["num_examples"]
        # A client's work is on one device, which has all columns of its own.
        with sharding.over(sharding.Execution()):
            return client_map.move_clients(
                one,
                states,
                members,
                everything,
                self.execution,
                work,
                summed=summed,
                shared_specs=specs,
            )

    def train(
        self,
        state: core.State,
        fn: Callable[..., Any],
        own: Any,
        shared: Any,
        reference: Any,
        known: core.Downlink,
    ) -> tuple[core.State, Any, core.Upload, Any]:
        """Trains every member, and receives what it sends; see `core.Link`.

        Whether a client's state is finite is found, and its message transformed and
        kept, while both are in the cache. An attack needs all messages before the
        server has them. A message that the client's state tells is not kept; what
        everybody sends is then added up at once.
        """
        old = self.take(state.rows.get("messages"))
        is_told = self.message_of is not None
        at_once = (old is not None or is_told) and self.attack is None
        if not self.transforms:
            known = core.Downlink(shared=None)
        keys = self._transform_keys()
        if self.present is not None:
            fn = self._timed(fn, shifts=self.aggregate_over != "all")
            staleness = None if self.timing is None else self.timing.staleness
            past = state.memory.get("past")
            own, shared = (own, (staleness, self.present)), (shared, past)

        def one(view: ClientView, before: tuple[Any, ...], own: Any, shared: Any):
            client, message, memory = before
            (own, own_known, key), (shared, common) = own, shared
            new, upload, report = fn(view, own, client, shared)
            is_whole, is_lost = client_rows.is_finite(new), jnp.zeros((), bool)
            if self.on_nonfinite != "stop":
                new = optax.tree.where(is_whole, new, client)
            if self.transforms:
                point = common if own_known is None else own_known
                upload, memory = self._send(key, memory, upload, point)
            part = None
            if at_once:
                upload, is_lost = self._arrived(upload, common)
                last = self.message_of(client) if self.message_of else message
                last = optax.tree.where(upload.weight > 0, upload.message, last)
                if not is_told:
                    message = last
                elif self.everyone:
                    part = self._part(last, view.data.num_examples)
                upload = dataclasses.replace(
                    upload, message=last if is_told and part is None else None
                )
            return (new, message, memory), ((upload, report, is_whole, is_lost), part)

        before = (
            self.take(state.clients),
            old if at_once else None,
            self.take(state.rows.get("transforms")),
        )
        after, (outputs, mean) = self._move(
            one, before, (own, known.own, keys), (shared, known.shared), summed=True
        )
        (rows, _, memories), (uploads, report, is_whole, is_lost) = after, outputs
        state = self._remembering(state, memories)
        if self.on_nonfinite == "stop":
            self.seen.append((rows, is_whole))
        else:
            state = self._count_rows(state, is_whole)
        if not at_once:
            state, uploads = self._receive(state, uploads, reference, known, keys)
            return self.store(state, uploads), rows, uploads, report
        state = self._count_messages(state, uploads, is_lost)
        sent = uploads.message if mean is None else mean
        state, messages = self._with_messages(state, before, after, sent)
        uploads = dataclasses.replace(uploads, message=messages)
        return state, rows, uploads, report

    def _with_messages(
        self,
        state: core.State,
        before: tuple[Any, ...],
        after: tuple[Any, ...],
        sent: Any,
    ) -> tuple[core.State, Any]:
        """Keeps the cohort's messages, or the mean of those that states tell.

        Args:
          state: state of before.
          before: the cohort's states, kept messages and memories of transforms.
          after: the same after its work.
          sent: where states tell messages, their mean over everybody `[*P]`, or those
            of the cohort `[K, *P]`.

        Returns:
          State, and the cohort's messages `[K, *P]`.
        """
        if self.message_of is None:
            return self._stored(state, before[1], after[1]), after[1]
        if self.everyone:
            kept = (sent, client_rows.magnitude(sent))
            return _with_mean(state, kept), self._told(after[0])
        kept = self._moved_mean(state, self._told(before[0]), sent)
        return _with_mean(state, kept), sent

    def _told(self, clients: Any) -> Any:
        """Returns the last messages `[K, *P]` of clients, from their states."""
        assert self.message_of is not None
        return jax.vmap(self.message_of)(clients)

    def _part(self, message: Any, num_examples: jax.Array) -> Any:
        """Returns ONE client's summand `[*P]` in the mean over all messages."""
        share = shares(self.aggregator, num_examples, self.population)
        return jax.tree.map(lambda leaf: share.astype(leaf.dtype) * leaf, message)

    def _timed(self, fn: Callable[..., Any], *, shifts: bool) -> Callable[..., Any]:
        """Makes the work of a client one that is left out, or begun some rounds ago.

        Args:
          fn: see `train`.
          shifts: whether messages are models of the server, so that a late one becomes
            the present model plus its discounted change.
        """
        now = self.ctx.round

        def work(view: ClientView, own: Any, client: Any, shared: Any):
            (own, (staleness, present)), (shared, past) = own, shared
            then = shared
            if past is not None:
                count = jax.tree.leaves(past)[0].shape[0]
                then = client_rows.take(past, (now - staleness) % count)
            new, upload, report = fn(view, own, client, then)
            if past is not None and shifts:
                part = jnp.where(staleness > 0, self.weight(staleness), 1.0)
                message = jax.tree.map(
                    lambda u, a, b: jnp.where(staleness > 0, b + part * (u - a), u),
                    upload.message,
                    then,
                    shared,
                )
                upload = dataclasses.replace(upload, message=message)
            weight = jnp.where(present, upload.weight, 0)
            upload = dataclasses.replace(upload, weight=weight)
            return optax.tree.where(present, new, client), upload, report

        return work

    def finite(self, rows: Any) -> jax.Array:
        """Says `bool[K]` for every member whether its row is finite."""
        for known, is_whole in self.seen:
            if _is_same(rows, known):
                return is_whole
        return client_rows.finite_rows(rows, self.ctx.cohort.shape[0])

    def keep_finite(self, state: core.State, old: Any, new: Any) -> tuple[Any, Any]:
        """Counts rows that are not finite; outside `stop`, keeps the old ones."""
        if self.on_nonfinite == "stop":
            return state, new  # the process counts what is in the state in the end
        is_finite = self.finite(new)
        rows = client_rows.select_rows(is_finite, new, old)
        return self._count_rows(state, is_finite), rows

    def upload(
        self, state: core.State, uploads: core.Upload, reference: Any
    ) -> tuple[core.State, core.Upload]:
        """Returns what arrives: messages after the attack, non-finite ones dropped."""
        keys, known = self._transform_keys(), core.Downlink(shared=reference)
        if self.transforms:
            send = jax.vmap(self._send, in_axes=(0, 0, 0, None))
            memories = self.take(state.rows.get("transforms"))
            uploads, memories = send(keys, memories, uploads, reference)
            state = self._remembering(state, memories)
        return self._receive(state, uploads, reference, known, keys)

    def _remembering(self, state: core.State, memories: Any) -> core.State:
        """Writes the cohort's memories of transforms back, if there are any."""
        old = state.rows.get("transforms")
        return (
            state
            if old is None
            else state.with_rows(transforms=self.put(old, memories))
        )

    def _transform_keys(self) -> Any:
        """Returns one key per cohort member for the transforms, if there are any."""
        return self._keys(core.Stream.TRANSFORMS, 0) if self.transforms else None

    def _send(
        self, key: core.Key, memory: Any, upload: core.Upload, known: Any
    ) -> tuple[core.Upload, Any]:
        """Transforms ONE client's message, and as the server does, if it is honest.

        A client that sends nothing, or nothing finite, keeps its memory.
        """
        message = _difference(upload.message, known)
        old = (None,) * len(self.transforms) if memory is None else memory
        new = []
        for number, (transform, own) in enumerate(
            zip(self.transforms, old, strict=True)
        ):
            if not (number == 0 and self._clips_once):
                part = jax.random.fold_in(key, number)
                message, own = transform.send(part, own, message)
            new.append(own)
        if memory is not None:
            memory = tuple(new)
            is_used = (upload.weight > 0) & client_rows.is_finite(memory)
            memory = optax.tree.where(is_used, memory, old)
        if self.attack is None:
            message, within = self._checked(key, message)
            upload = dataclasses.replace(upload, within=within)
        upload = dataclasses.replace(upload, message=_moved(message, known, upload))
        return upload, memory

    @property
    def _clips_once(self) -> bool:
        """Whether the server's clip of honest messages is that of their clients.

        It is where nothing but noise, which waits for the aggregate, is between them.
        """
        others = self.transforms[1:]
        is_alone = all(isinstance(transform, ServerNoise) for transform in others)
        is_clip = isinstance(self.transforms[0], ClipNorm)
        return self.attack is None and is_clip and is_alone

    def _checked(self, key: core.Key, message: Any) -> tuple[Any, Any]:
        """Returns what the server makes of ONE message, and whether it was in a clip.

        That is known only where the clip adapts, which is the last to be undone.
        """
        within = None
        for number, transform in reversed(list(enumerate(self.transforms))):
            if self._adaptive is not None and number == 0:
                within = self._adaptive.within(message)
            message = transform.receive(jax.random.fold_in(key, number), message)
        return message, within

    def _arrive(
        self, key: core.Key, upload: core.Upload, is_malicious: jax.Array, known: Any
    ) -> core.Upload:
        """Returns ONE upload behind the attack, as the server makes it out.

        A malicious client is bound by the encoding, but not by what clients ought to
        do.
        """
        sent = message = _difference(upload.message, known)
        for number, transform in enumerate(self.transforms):
            sent = transform.fit(jax.random.fold_in(key, number), sent)
        arrived = optax.tree.where(is_malicious, sent, message)
        message, within = self._checked(key, arrived)
        message = _moved(message, known, upload)
        return dataclasses.replace(upload, message=message, within=within)

    def _receive(
        self,
        state: core.State,
        uploads: core.Upload,
        reference: Any,
        known: core.Downlink,
        keys: Any,
    ) -> tuple[core.State, core.Upload]:
        """Returns what the server has of uploads that have left the clients."""
        if self.attack is not None:
            malicious = self.take(self.federation.malicious)
            messages, attack_state = self.attack(
                self._keys(core.Stream.ATTACK, 0),
                state.memory.get("attack"),
                uploads.message,
                malicious,
                reference,
            )
            state = state.with_memory(attack=attack_state)
            uploads = dataclasses.replace(uploads, message=messages)
            if self.transforms:
                is_shared = known.own is None
                point = known.shared if is_shared else known.own
                axes = (0, 0, 0, None if is_shared else 0)
                arrive = jax.vmap(self._arrive, in_axes=axes)
                uploads = arrive(keys, uploads, malicious, point)
        arrived = jax.vmap(self._arrived, in_axes=(0, None))
        received, is_lost = arrived(uploads, known.shared)
        return self._count_messages(state, received, is_lost), received

    def _count_messages(
        self, state: core.State, received: core.Upload, is_lost: jax.Array
    ) -> core.State:
        """Counts an exchange's lost messages, and adapts the clip to the others."""
        self.arrived.append(received.weight)
        self.lost.append(is_lost)
        return self._adapted(count(state, is_lost.sum()), received)

    def _count_rows(self, state: core.State, is_finite: jax.Array) -> core.State:
        """Counts the members' states that are not finite."""
        self.broken.append(~is_finite)
        return count(state, self.broken[-1].sum())

    def treat_rows(self, old: core.State, new: core.State) -> core.State:
        """Counts rows that are not finite in the end; outside `stop`, keeps old ones.

        A round's last step may spread a non-finite server over them.
        """
        rows = self.take(new.clients)
        is_finite = self.finite(rows)
        new = self._count_rows(new, is_finite)
        if self.on_nonfinite == "stop":
            return new
        rows = client_rows.select_rows(is_finite, rows, self.take(old.clients))
        return dataclasses.replace(new, clients=self.put(new.clients, rows))

    @property
    def diverged(self) -> jax.Array:
        """Honest members `bool[K]` that `on_nonfinite` is about.

        Their states are not finite, or their messages to a server that takes a mean.
        Other rules leave such messages out, as long as another honest one arrives.
        """
        is_honest = ~self.take(self.federation.malicious)
        nothing = jnp.zeros(is_honest.shape, bool)
        is_lost = functools.reduce(jnp.logical_or, self.lost, nothing)
        if not self.aggregator.incremental and self.arrived:
            is_lost &= ~((self.arrived[-1] > 0) & is_honest).any()
        return functools.reduce(jnp.logical_or, self.broken, is_lost) & is_honest

    def _arrived(self, sent: core.Upload, known: Any) -> tuple[core.Upload, jax.Array]:
        """Returns what arrives of ONE client's upload, and `bool[]` whether it is lost.

        An upload that is not finite is dropped: all of it is zero. Under noise nobody
        may be missed: a client that sends nothing counts as one that changes nothing,
        and all clients count the same.
        """
        is_finite = client_rows.is_finite(sent)
        received = optax.tree.where(is_finite, sent, optax.tree.zeros_like(sent))
        is_there = received.weight > 0
        if received.within is not None:
            within = jnp.where(is_there, received.within, 0)
            received = dataclasses.replace(received, within=within)
        if self.noise is not None:
            received = dataclasses.replace(
                received,
                message=optax.tree.where(is_there, received.message, known),
                weight=jnp.ones_like(sent.weight),
            )
        return received, ~is_finite & (sent.weight > 0)

    @property
    def _adaptive(self) -> AdaptiveClip | None:
        """Clip that adapts, if the first of the transforms does."""
        return privacy.adaptive_clip(self)

    def _adapted(self, state: core.State, received: core.Upload) -> core.State:
        """Moves the clip towards the wanted quantile of the cohort's norms."""
        clip = self._adaptive
        if clip is None:
            return state
        key = self._threefry(core.Stream.NOISE_OF_COUNTS, self.ctx.round)
        count = self.ctx.expected or received.within.shape[0]
        return state.with_memory(clip=clip.next_norm(key, received.within, count))

    def store(self, state: core.State, received: core.Upload) -> core.State:
        """Keeps what was received, and the mean over all of it."""
        if "messages" not in state.rows:
            return state
        old = self.take(state.rows["messages"])
        new = client_rows.select_rows(received.weight > 0, received.message, old)
        return self._stored(state, old, new)

    def _stored(self, state: core.State, old: Any, new: Any) -> core.State:
        """Keeps messages `[K, ...]` in place of older ones, and the mean over all."""
        state = state.with_rows(messages=self.put(state.rows["messages"], new))
        if "mean" not in state.memory:
            return state
        if self.everyone:
            kept = self._mean_of_all(state, new)
        else:
            kept = self._moved_mean(state, old, new)
        return _with_mean(state, kept)

    def _moved_mean(self, state: core.State, old: Any, new: Any) -> tuple[Any, Any]:
        """Returns the kept mean after the cohort's messages changed, and its peak.

        A sum loses what is below the rounding of its largest term. A mean that is much
        smaller than what has been in it, or not finite as a difference overflowed, is
        recomputed; so the error is at most that of `RECOMPUTE_EVERY` sums of
        `_CANCELLED` times its size. Where the others' messages are not at hand, an
        infinite peak asks for that.
        """
        counts = self.take(self.federation.train.num_examples)
        parts = shares(self.aggregator, counts, self.population)
        difference = jax.tree.map(lambda a, b: a - b, new, old)
        change = client_rows.weighted_sum(difference, parts)
        mean = jax.tree.map(lambda a, b: a + b, state.memory["mean"], change)
        size, largest = client_rows.magnitude(mean), client_rows.magnitude(difference)
        peak = jnp.maximum(state.memory["peak"], size)
        peak = jnp.maximum(peak, parts.max().astype(largest.dtype) * largest)
        every = RECOMPUTE_EVERY if self.members is None else RARELY
        due = (self.ctx.round + 1) % every == 0
        stale = due | ~(jnp.isfinite(peak) & (size >= peak / _CANCELLED))

        if self.members is not None:
            recomputed = (self.members.mean, client_rows.magnitude(self.members.mean))
            moved = (mean, jnp.where(stale, jnp.inf, peak))
            use = self.members.use_mean
            return optax.tree.where(use, recomputed, moved)

        def recompute() -> tuple[Any, Any]:
            fresh = self._mean_of_all(state, new)
            return optax.tree.where(stale, fresh, (mean, peak))

        # A lane that needs it takes all through the branch, but changes only its own.
        return lax.cond(client_map.lane_max(stale), recompute, lambda: (mean, peak))

    def _mean_of_all(self, state: core.State, new: Any) -> tuple[Any, jax.Array]:
        """Returns the mean over all clients' messages, and its peak.

        Args:
          state: state with messages that are kept; or with clients' states before the
            round, which tell the others'.
          new: messages `[K, *P]` of the cohort.
        """
        counts, message_of = self.federation.train.num_examples, self.message_of
        if message_of is None:
            messages = state.rows["messages"]
            return cached_mean(messages, counts, self.aggregator, self.population)
        is_other = jnp.ones(counts.shape, bool).at[self.ctx.cohort].set(False)

        def one(still: None, row: tuple[Any, ...], shared: None):
            client, num_examples, counts = row
            part = self._part(message_of(client), num_examples)
            nothing = optax.tree.zeros_like(part)
            return still, (None, optax.tree.where(counts, part, nothing))

        rows = (state.clients, counts, is_other)
        others = client_map.move_clients(
            one, None, rows, None, self.execution, summed=True
        )[1][1]
        parts = shares(self.aggregator, self.take(counts), self.population)
        mean = jax.tree.map(jnp.add, others, client_rows.weighted_sum(new, parts))
        return mean, client_rows.magnitude(mean)

    def aggregate(
        self, state: core.State, received: core.Upload, reference: Any
    ) -> tuple[Any, Any]:
        """Aggregates over the cohort or over all, and the aggregator's info."""
        if (mean := state.memory.get("mean")) is not None:
            return self._noisy(state, mean, self.population.num_clients), {}
        key = core.stream_key(self.key, core.Stream.AGGREGATION, self.ctx.round)
        messages, weights = received.message, received.weight
        if self.aggregate_over == "all":
            weights = self.federation.train.num_examples.astype(weights.dtype)
            messages = state.rows["messages"]
        rule = self.aggregator
        if not (rule.by_columns or rule.incremental):  # which sums where rows are
            messages = sharding.split_parameters(messages, self.execution)
        if self.noise is None:
            return self.aggregator(key, messages, weights, reference)
        if self.aggregator.incremental:
            mean, info = self.aggregator(key, messages, weights, reference)
            size = weights.shape[0]
            if (expected := self.ctx.expected) is not None:
                mean = jax.tree.map(
                    lambda x, r: r + size / expected * (x - r), mean, reference
                )
                size = expected
            return self._noisy(state, mean, size), info
        messages, weights = self._noisy_rows(messages), jnp.ones_like(weights)
        return self.aggregator(key, messages, weights, reference)

    @property
    def noise(self) -> ServerNoise | None:
        """Noise that the server adds, if it does."""
        return privacy.noise_of(self)

    def _threefry(self, stream: core.Stream, round: Any) -> core.Key:
        """Returns a round's key of JAX's Threefry of 20 rounds, for noise."""
        return randomness.noise_key(core.stream_key(self.key, stream, round))

    def _noise_key(self, round: Any) -> core.Key:
        """Returns the key of a round's noise."""
        return self._threefry(core.Stream.NOISE, round)

    def _noisy(self, state: core.State, mean: Any, count: int | float) -> Any:
        """Adds noise to a mean over `count` clients, where there is some."""
        noise = self.noise
        if noise is None:
            return mean
        draws = state.memory.get("draws")
        round = NoisyRound(self.ctx.round, self._noise_key, self.period, draws)
        return noise.in_round(round, mean, self._clip / count)

    @property
    def _clip(self) -> Any:
        """Returns the norm of the clip, which is the first transform under noise."""
        return struct.get_field(self.transforms[0], "norm")

    def _noisy_rows(self, messages: Any) -> Any:
        """Adds noise to every message `[K, *P]`, by identity."""
        identities = self.federation.train.client_id
        if self.aggregate_over != "all":
            identities = self.take(identities)
        noise: Any = self.noise
        key, clip = self._noise_key(self.ctx.round), self._clip

        def noisy(identity: jax.Array, message: Any) -> Any:
            return noise.add(jax.random.fold_in(key, identity), message, clip)

        return jax.vmap(noisy)(identities, messages)

    def step(self, state: core.State, server: Any) -> tuple[core.State, Any]:
        """Takes the server optimizer's step, if there is one, for the new model."""
        if self.server_optimizer is None:
            return state, server
        memory = state.memory.get("optimizer")
        server, memory = self.server_optimizer(memory, state.server, server)
        return state.with_memory(optimizer=memory), server

    def bytes_up(self, messages: Any) -> int:
        """Counts the bytes of the cohort's messages `[K, *P]` on their way up."""
        row = jax.eval_shape(lambda: jax.tree.map(lambda leaf: leaf[0], messages))
        encoding = Encoding.plain(row)
        for part in (*self.transforms, self.aggregator):
            encoding = part.encoding(encoding)
        return encoding.num_bytes * self.ctx.cohort.shape[0]

    def info(
        self,
        client: Any,
        aggregator: Any,
        server: Any = None,
        *,
        bytes_up: int | jax.Array,
        bytes_down: int | jax.Array,
    ) -> core.RoundInfo:
        """Returns the round's report."""
        cohort = self.ctx.cohort
        if self.present is not None and self.timing is None:
            cohort = jnp.where(self.present, cohort, -1)
        return core.RoundInfo(
            cohort=cohort,
            client=client,
            aggregator=aggregator,
            server=server or {},
            num_nonfinite=jnp.zeros((), jnp.int32),
            client_diverged=jnp.zeros(cohort.shape, bool),
            server_diverged=jnp.zeros((), bool),
            bytes_up=self._sent(bytes_up, "sent"),
            bytes_down=self._sent(bytes_down, "received"),
        )

    def with_bytes(self, info: core.RoundInfo, each: int) -> core.RoundInfo:
        """Adds as many bytes to what every member sends and receives."""
        more = each * self.ctx.cohort.shape[0]
        return dataclasses.replace(
            info,
            bytes_up=info.bytes_up + self._sent(more, "sent"),
            bytes_down=info.bytes_down + self._sent(more, "received"),
        )

    def _sent(self, count: int | jax.Array, by: str) -> jax.Array:
        """Counts bytes of the cohort, where some are left out of who takes part."""
        if self.present is None or not isinstance(count, int):
            return _words(count)
        each, number = count // self.ctx.cohort.shape[0], self.present.sum()
        if self.timing is not None:
            number = getattr(self.timing, by)
        return byte_counts.times(_words(each), number)


def _is_same(tree: Any, other: Any) -> bool:
    """Tells whether two trees have the very same leaves."""
    leaves, others = jax.tree.leaves(tree), jax.tree.leaves(other)
    return len(leaves) == len(others) and all(map(operator.is_, leaves, others))


def _difference(message: Any, known: Any) -> Any:
    """Returns ONE message relative to what its client and the server know."""
    if jax.tree.structure(message) != jax.tree.structure(known):
        raise checks.InputError(
            "Expected a method whose `reference` is like its messages, to transform"
            f" them, got {jax.tree.structure(known)} and"
            f" {jax.tree.structure(message)}."
        )
    return optax.tree.sub(message, known)


def _moved(message: Any, known: Any, like: core.Upload) -> Any:
    """Inverse of `_difference`, in the type of the upload that was sent."""
    return jax.tree.map(
        lambda x, point, sent: (x + point).astype(sent.dtype),
        message,
        known,
        like.message,
    )


def _words(count: int | jax.Array) -> jax.Array:
    """Returns the two words of a count, or those that it is already."""
    return byte_counts.words(count) if isinstance(count, int) else count


def _with_mean(state: core.State, kept: tuple[Any, jax.Array]) -> core.State:
    """Returns the state with another mean over all messages, and its peak."""
    return state.with_memory(mean=kept[0], peak=kept[1])


def count(state: core.State, more: jax.Array) -> core.State:
    """Adds to the number of non-finite messages and rows met."""
    met = state.memory["nonfinite"] + more.astype(jnp.int32)
    return state.with_memory(nonfinite=met)


def shares(
    aggregator: core.Aggregator, counts: jax.Array, population: core.Population
) -> jax.Array:
    """Shares `[K]` in the mean over all clients, from numbers of examples `[K]`."""
    if aggregator.incremental == "uniform":
        return jnp.full(counts.shape, 1 / population.num_clients)
    return counts.astype(jnp.zeros(()).dtype) / population.num_examples


def cached_mean(
    messages: Any,
    counts: jax.Array,
    aggregator: core.Aggregator,
    population: core.Population,
) -> tuple[Any, jax.Array]:
    """Computes the share of clients' messages in the mean over all, and its magnitude.

    Args:
      messages: pytree of `[K, *P]`.
      counts: `int32[K]` training examples of these clients.
      aggregator: one that can be kept incrementally.
      population: what is known of all clients.

    Returns:
      Pytree of `[*P]`, for K = N the mean; and a value `[]`.
    """
    mean = client_rows.weighted_sum(messages, shares(aggregator, counts, population))
    return mean, client_rows.magnitude(mean)

"""The one communication round, whatever the algorithm."""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import optax

from fedjax_pfl import core
from fedjax_pfl.core import (
    checks,
    client_rows,
    divided_examples,
    randomness,
    sharding,
    statistics,
    struct,
)
from fedjax_pfl.engine import cohort_link, kept, local_privacy, privacy
from fedjax_pfl.local import participation as participations
from fedjax_pfl.local import schedules

__all__ = ["PARTS", "FederatedProcess"]

VMAP = sharding.Execution()
PARTS = {  # field of a process -> its class or what it has, and an example
    "algorithm": ("predictors", "FedAvg()"),
    "aggregator": (core.Aggregator, "CoordinateMedian()"),
    "server_optimizer": ("init", "ServerMomentum()"),
    "participation": (core.Participation, "UniformCohort(size=10)"),
    "work": ("__call__", "FullWork()"),
    "attack": (core.Attack, "SignFlip()"),
}


@struct.pytree_dataclass
class FederatedProcess:
    """An algorithm with everything around it; its fields are dotted names of grids.

    Attributes:
      algorithm: the method.
      aggregator: how messages are combined; None takes the algorithm's own.
      server_optimizer: what takes the change of the server's model in a round for a
        gradient, or None; only for methods whose server state is such a model.
      participation: who takes part in a round.
      work: how much local work the members may do.
      attack: what malicious clients send, or None.
      transforms: what happens to every message between its client and the server, in
        this order; the server undoes and checks it in reverse order, after the attack.
      on_nonfinite: static. An upload with a non-finite value has weight 0 in every
        mode, and is counted. A client diverges if it is honest and its state is not
        finite, or its message to a server that takes a mean. Malicious clients never
        diverge; rules other than means go on without such messages, unless no honest
        one arrives. `stop`: the training is reported as diverged at that round, and the
        values of the clients that diverged end there; with a non-finite server state
        all values end. `drop`: a client or server whose new state is not finite keeps
        its old one, and the training goes on. `freeze`: a round in which the server or
        a client diverges leaves the whole state as it was, except for the round number
        and the count.
      per_client: values `[N]` by dotted name, such as `algorithm.lam`, of numbers of
        the algorithm of which every client has its own: in its first state, in its
        local work and in its models. Of some numbers also `[N, L]`, a value for each of
        the L arrays of a model's parameters, in JAX's order. Servers, and clients that
        never trained, have the algorithm's. None for none.
    """

    algorithm: Any
    aggregator: Any = None
    server_optimizer: Any = None
    participation: Any = participations.AllClients()
    work: Any = participations.FullWork()
    attack: Any = None
    transforms: tuple[Any, ...] = ()
    on_nonfinite: str = struct.static_field(default="stop")
    per_client: Any = None

    def __post_init__(self):
        checks.known(self.on_nonfinite, ("stop", "drop", "freeze"), "on_nonfinite")
        for name, (_, example) in PARTS.items():
            wanted = f"an object such as {example}"
            struct.refuse_stand_in(name, getattr(self, name), wanted)
        if not isinstance(self.transforms, tuple):
            raise checks.InputError(
                "Expected transforms to be a tuple such as (fp.TopK(fraction=0.01),),"
                f" got {checks.shown(self.transforms)}."
            )
        for number, part in enumerate(self.transforms):
            name = f"transforms.{number}"
            struct.refuse_stand_in(name, part, "an object such as TopK()")
        self._check_per_client()

    def _check_per_client(self) -> None:
        """Refuses values per client of what is no number of the algorithm."""
        if self.per_client is None:
            return
        if not isinstance(self.per_client, Mapping):
            raise checks.InputError(
                "Expected per_client to be values by dotted name, such as"
                f" {{'algorithm.lam': array}}, got {checks.shown(self.per_client)}."
            )

    def _check_values(self, num_clients: int) -> None:
        """Refuses values per client of what is no number, or of others than N."""
        if self.per_client is None:
            return
        numbers = struct.traced_numbers(self)
        for name, values in self.per_client.items():
            if not name.startswith("algorithm.") or name not in numbers:
                known = [n for n in numbers if n.startswith("algorithm.")]
                raise checks.InputError(
                    "Expected per_client to have traced numbers of the algorithm,"
                    f" {', '.join(known)}, got {name!r}."
                )
            shape = jnp.shape(values)
            if shape[:1] != (num_clients,) or len(shape) > 2:
                raise checks.InputError(
                    f"Expected {num_clients} values of {name} in per_client, one per"
                    " client, or as many rows with a value per layer, got an array of"
                    f" shape {shape}."
                )
            if len(shape) == 2:
                self.algorithm.check_per_layer([name.removeprefix("algorithm.")])
        fields = [name.removeprefix("algorithm.") for name in self.per_client]
        self.algorithm.check_per_client(fields)

    def method(self, client: jax.Array) -> Any:
        """Returns the algorithm with the values of ONE client.

        Args:
          client: `int32[]` its number; from N on, of one that never trained.
        """
        method = self.algorithm
        for name, values in (self.per_client or {}).items():
            inner = name.removeprefix("algorithm.")
            own = jnp.asarray(values)[jnp.minimum(client, len(values) - 1)]
            common = struct.get_field(method, inner)
            own = jnp.where(client < len(values), own, common)
            method = struct.replace_field(method, inner, own)
        return method

    def used_aggregator(self) -> core.Aggregator:
        """Returns the aggregator of the process, or the algorithm's own."""
        if self.aggregator is None:
            return self.algorithm.default_aggregator()
        return self.aggregator

    def first_optimizer(self, server: Any) -> Any:
        """Returns the server optimizer's state before the first round, or None."""
        self._check_server_optimizer()
        if self.server_optimizer is None:
            return None
        return self.server_optimizer.init(server)

    def _check_server_optimizer(self) -> None:
        """Refuses an optimizer where the server has no model to be optimized."""
        if self.server_optimizer is None or self.algorithm.server_is_model:
            return
        raise checks.InputError(
            f"Expected no server_optimizer with {type(self.algorithm).__name__}, whose"
            " server state is not one model into which the clients' are averaged, got"
            f" {type(self.server_optimizer).__name__}."
        )

    @property
    def keeps_mean(self) -> bool:
        """Whether the mean over all clients' messages is kept incrementally."""
        over_all = self.algorithm.aggregate_over == "all"
        return over_all and bool(self.used_aggregator().incremental)

    @property
    def tells_messages(self) -> bool:
        """Whether clients' states tell their last messages, which are not kept then.

        So it is where everything that a client sends arrives as it is.
        """
        is_plain = self.attack is None and not self.transforms
        is_kept = self.keeps_mean and self.on_nonfinite == "stop"
        tells = self.algorithm.message_of is not None
        return tells and is_kept and is_plain and not self.participation.is_timed

    def messages_of(self, state: core.State) -> Any:
        """Returns the last messages `[K, *P]`, kept or told by client states."""
        if not self.tells_messages:
            return state.rows.get("messages")
        return jax.vmap(self.algorithm.message_of)(state.clients)

    def first_rows(
        self,
        key: core.Key,
        model: core.Model,
        population: core.Population,
        train: core.ClientData,
    ) -> tuple[Any, dict[str, Any]]:
        """Draws the first states of the server and of some clients.

        Args:
          key: `[]` key of the run.
          model: the model.
          population: what is known of all clients.
          train: training examples of K clients.

        Returns:
          Server state, see `SingleExchange.init`, and rows `[K, ...]` by name, as
          `State.of_clients` has them; messages are left out if client states tell them.
        """
        train = self.with_first_kept(key, model, train)
        init_key = core.stream_key(key, core.Stream.INIT, 0)
        first = functools.partial(
            self._first, init_key, kept.started(model, train), population, train.pool()
        )
        server, clients, messages = jax.vmap(first, out_axes=(None, 0, 0))(train.rows())
        (count,) = train.num_examples.shape
        others = {
            "messages": None if self.tells_messages else messages,
            "carry": kept.first_carry(model, train),
            "transforms": self._first_transforms(server, count),
            "statistics": core.Constants.of(train.constants).statistics,
        }
        given = {name: rows for name, rows in others.items() if rows is not None}
        return server, {"clients": clients, **given}

    def _first(
        self,
        key: core.Key,
        model: core.Model,
        population: core.Population,
        pool: core.ClientData,
        fields: dict[str, Any],
    ) -> tuple[Any, Any, Any]:
        """Draws the first states of the server and of ONE client, and its message."""
        data = pool.with_rows(fields)
        return self.method(data.client_id).init(key, model, population, data)

    def starts_with_one_message(
        self, model: core.Model, population: core.Population, train: core.ClientData
    ) -> bool:
        """Tells whether all clients' first messages are the same; computes nothing.

        Args:
          model: the model.
          population: what is known of all clients.
          train: training examples of at least one client.

        Returns:
          False where a client's data have a say in its first message.
        """
        is_local = self._keeps_statistics(model)
        pool = kept.with_first_statistics(model, train, is_local=is_local).pool()
        model = kept.started(model, train)

        def message(key: core.Key, fields: dict[str, Any]) -> Any:
            return self._first(key, model, population, pool, fields)[2]

        mapped = jax.vmap(message, in_axes=(None, 0), out_axes=None)
        try:
            jax.eval_shape(mapped, jax.random.key(0), train.rows())
        except ValueError:  # what vmap raises for an output that depends on the client
            return False
        return True

    def check_cohort(self, size: int, num_clients: int) -> None:
        """Validates the size of the cohort with all parts, before anything is traced.

        Args:
          size: K, clients per round.
          num_clients: N.
        """
        self._check_server_optimizer()
        self._check_values(num_clients)
        privacy.check(self)
        privacy.check_bands(self, num_clients)
        local_privacy.check(self)
        self.algorithm.check_cohort(size)
        if not self.algorithm.aggregates:
            return
        everyone = self.algorithm.aggregate_over == "all"
        self.used_aggregator().check_cohort(num_clients if everyone else size)

    def init(
        self, key: core.Key, model: core.Model, federation: core.Federation
    ) -> core.State:
        """Returns the state before the first round.

        Args:
          key: `[]` key of the run (`jax.random.key(seed)`).
          model: the model, already given the federation's shapes.
          federation: data of N clients.

        Returns:
          The state; all its randomness follows from `key`.
        """
        population = federation.population
        server, rows = self.first_rows(key, model, population, federation.train)
        state = core.State(
            round=jnp.zeros((), jnp.int32), key=key, server=server, clients=None
        ).at(rows)
        memory = self.first_memory(
            model, state, federation.train, population.num_clients
        )
        state = state.with_memory(**memory)
        if not self.keeps_mean:
            return state
        mean, peak = cohort_link.cached_mean(
            self.messages_of(state),
            federation.train.num_examples,
            self.used_aggregator(),
            population,
        )
        return state.with_memory(mean=mean, peak=peak)

    def first_memory(
        self,
        model: core.Model,
        state: core.State,
        train: core.ClientData,
        num_clients: int,
    ) -> dict[str, Any]:
        """Returns what parts keep at the server before the first round, by name.

        Args:
          model: the model.
          state: server, and rows of any clients.
          train: examples of any clients.
          num_clients: N.

        Returns:
          Entries of `State.memory`, but for the mean of messages; None for none.
        """
        server, attack = state.server, self.attack
        return {
            "nonfinite": jnp.zeros((), jnp.int32),
            "attack": attack and attack.init(state.rows.get("messages")),
            "optimizer": self.first_optimizer(server),
            "steps": self.first_steps(num_clients),
            "past": self._first_past(server),
            "statistics": self.first_statistics(model, train),
            "clip": privacy.first_clip(self),
            "draws": self.first_draws(server),
        }

    def with_first_kept(
        self, key: core.Key, model: core.Model, train: core.ClientData
    ) -> core.ClientData:
        """Returns data with what clients have of a model before the first round.

        Args:
          key: `[]` key of the run.
          model: the model.
          train: examples of K clients.

        Returns:
          The data of the same clients; as they are where the model keeps nothing.
        """
        train = kept.with_first_personal(key, model, train)
        is_local = self._keeps_statistics(model)
        return kept.with_first_statistics(model, train, is_local=is_local)

    def _keeps_statistics(self, model: core.Model) -> bool:
        """Tells whether running statistics stay with the clients."""
        return statistics.are_local(model) or not self.algorithm.shares_statistics

    def first_statistics(self, model: core.Model, train: core.ClientData) -> Any:
        """Returns running statistics that all clients have at first, or None.

        Args:
          model: the model.
          train: examples of any clients.

        Returns:
          `[*S]`.
        """
        if self._keeps_statistics(model):
            return None
        return statistics.first(kept.started(model, train))

    def _first_past(self, server: Any) -> Any:
        """Returns rows for the server states that late clients need, or None."""
        count = self.participation.max_staleness + 1
        return None if count == 1 else client_rows.broadcast(server, count)

    def _first_transforms(self, server: Any, num_clients: int) -> Any:
        """Returns the transforms' memory `[K, ...]` of K clients at first, or None."""
        message = self.algorithm.reference(server)
        rows = tuple(transform.init(message) for transform in self.transforms)
        if not jax.tree.leaves(rows):
            return None
        return client_rows.broadcast(rows, num_clients)

    def first_draws(self, server: Any) -> Any:
        """Returns what noise over rounds keeps before the first round, or None.

        Args:
          server: first state of the server.

        Returns:
          Pytree of `[b, *P]`.
        """
        noise = privacy.noise_of(self)
        return noise and noise.first_draws(self.algorithm.reference(server))

    def _next_draws(self, state: core.State) -> Any:
        """Returns what noise over rounds keeps, with the round's own."""
        noise: Any = privacy.noise_of(self)
        key = core.stream_key(state.key, core.Stream.NOISE, state.round)
        return noise.next_draws(
            randomness.noise_key(key), state.round, state.memory["draws"]
        )

    def first_steps(self, num_clients: int) -> jax.Array | None:
        """Returns the clients' local steps so far, none, where a schedule asks."""
        if not schedules.counts_steps(self.algorithm):
            return None
        return jnp.zeros(num_clients, jnp.int32)

    def cohort(self, key: core.Key, round: jax.Array, num_clients: int) -> jax.Array:
        """Draws the cohort of a round.

        Args:
          key: `[]` key of the run.
          round: `int32[]` round number.
          num_clients: N.

        Returns:
          `int32[K]` rows of the cohort's members, distinct and ascending.
        """
        key = core.stream_key(key, core.Stream.PARTICIPATION, round)
        return self.participation.in_round(key, num_clients, round)

    def round(
        self,
        state: core.State,
        model: core.Model,
        federation: core.Federation,
        execution: sharding.Execution = VMAP,
        members: core.Members | None = None,
    ) -> tuple[core.State, core.RoundInfo]:
        """Runs one communication round; pure.

        Args:
          state: state before the round.
          model: the model.
          federation: data of N clients.
          execution: how the map over clients is run.
          members: who takes part, where rows of state and federation are those of the
            cohort only, in its order; None draws the cohort.

        Returns:
          State after the round and a report.
        """
        work_key, server_key = (
            core.stream_key(state.key, stream, state.round)
            for stream in (core.Stream.WORK, core.Stream.SERVER)
        )
        population = federation.population if members is None else members.population
        if members is None:
            cohort = self.cohort(state.key, state.round, population.num_clients)
        else:
            cohort = members.cohort
        identities = federation.train.client_id
        if identities.shape != cohort.shape:
            identities = identities[cohort]
        work, timing = self.work(work_key, identities), self._timing(state.round)
        present = self._present(state, population.num_clients)
        if timing is not None:
            steps, present = jnp.minimum(work.steps, timing.steps), timing.present
            work = dataclasses.replace(work, steps=steps)
        elif present is not None:
            steps = jnp.where(present, work.steps, 0)
            work = dataclasses.replace(work, steps=steps)
        if "past" in state.memory:
            state = state.with_memory(past=_remembered(state))
        if "draws" in state.memory:
            state = state.with_memory(draws=self._next_draws(state))
        federation = kept.with_kept(state, model, federation)
        train = federation.train
        if members is None and cohort.shape[0] < population.num_clients:
            train = divided_examples.of_cohort(train, cohort, execution)
        is_series = isinstance(model, core.SequenceModel)
        link = cohort_link.CohortLink(
            ctx=core.RoundContext(
                key=server_key,
                round=state.round,
                cohort=cohort,
                num_clients=population.num_clients,
                expected=self._expected(population.num_clients),
            ),
            work=work,
            model=model,
            federation=federation,
            data=train,
            carry=state.rows.get("carry") if is_series else None,
            steps=state.memory.get("steps"),
            execution=execution,
            aggregator=self.used_aggregator(),
            attack=self.attack,
            server_optimizer=self.server_optimizer,
            transforms=self._transforms(state),
            aggregate_over=self.algorithm.aggregate_over,
            on_nonfinite=self.on_nonfinite,
            population=population,
            members=members,
            key=state.key,
            method=self.method,
            message_of=self.algorithm.message_of if self.tells_messages else None,
            timing=timing,
            present=present,
            period=self.participation.separation(population.num_clients),
            weight=self.participation.weight,
        )
        with sharding.over(execution):
            new, info = self.algorithm.round(state, link)
        new, info = kept.after_round(link, new, info, type(self.algorithm).__name__)
        info = _with_times(timing, _with_clip(state, info))
        new, server_diverged = self._treat_server(state, new)
        new = link.treat_rows(state, new)
        client_diverged = link.diverged
        info = dataclasses.replace(
            info,
            num_nonfinite=new.memory["nonfinite"] - state.memory["nonfinite"],
            client_diverged=client_diverged,
            server_diverged=server_diverged,
        )
        if self.on_nonfinite == "freeze":
            frozen = state.with_memory(nonfinite=new.memory["nonfinite"])
            diverged = server_diverged | client_diverged.any()
            new = optax.tree.where(diverged, frozen, new)
        return dataclasses.replace(new, round=state.round + 1), info

    def _timing(self, round: jax.Array) -> core.Timetable | None:
        """Returns the round's part of the timetable, if there is one."""
        timetable = self.participation.timetable
        return None if timetable is None else timetable.at(round)

    def _present(self, state: core.State, num_clients: int) -> jax.Array | None:
        """Says `bool[K]` which rows of the cohort take part; None for all."""
        key = core.stream_key(state.key, core.Stream.PARTICIPATION, state.round)
        return self.participation.present(key, num_clients)

    def _expected(self, num_clients: int) -> float | None:
        """Returns how many take part on average, if only that may be told."""
        if privacy.noise_of(self) is None:
            return None
        return self.participation.expected(num_clients)

    def _transforms(self, state: core.State) -> tuple[Any, ...]:
        """Returns the transforms of a round, with the clip of the round."""
        clip = privacy.adaptive_clip(self)
        if clip is None:
            return self.transforms
        return (clip.at(state.memory["clip"]), *self.transforms[1:])

    def _treat_server(
        self, old: core.State, new: core.State
    ) -> tuple[core.State, jax.Array]:
        """Counts a non-finite server state; outside `stop`, keeps the old one.

        The server optimizer's state is a part of it. Also returns `bool[]`, whether it
        was not finite.
        """
        finite = client_rows.is_finite((new.server, new.memory.get("optimizer")))
        new = cohort_link.count(new, ~finite)
        if self.on_nonfinite == "stop":
            return new, ~finite
        pairs = ((s.server, s.memory.get("optimizer")) for s in (new, old))
        server, optimizer = optax.tree.where(finite, *pairs)
        new = dataclasses.replace(new, server=server)
        return new.with_memory(optimizer=optimizer), ~finite

    def before_evaluation(
        self, state: core.State, model: core.Model, federation: core.Federation
    ) -> core.State:
        """Returns the state to evaluate; see `SingleExchange.before_evaluation`."""
        return self.algorithm.before_evaluation(state, model, federation)

    def predictors(
        self,
        key: core.Key,
        state: core.State,
        client: Any,
        model: core.Model,
        data: core.ClientData,
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
        view = core.ClientView(key=key, round=state.round, data=data)
        method = self.method(data.client_id)
        return method.predictors(view, state.server, client, model)


def _remembered(state: core.State) -> Any:
    """Puts the server's state among those of before, in place of the oldest."""
    past = state.memory["past"]
    count = jax.tree.leaves(past)[0].shape[0]
    return client_rows.put(past, state.round % count, state.server)


def _with_times(timing: core.Timetable | None, info: core.RoundInfo) -> core.RoundInfo:
    """Adds virtual time and staleness to a report."""
    if timing is None:
        return info
    times = {"virtual_seconds": timing.seconds, "arrived": timing.present.sum()}
    times["staleness"] = timing.staleness.mean(dtype=jnp.zeros(()).dtype)
    return dataclasses.replace(info, server=info.server | times)


def _with_clip(state: core.State, info: core.RoundInfo) -> core.RoundInfo:
    """Adds the clip of the round to a report, where it adapts."""
    clip = state.memory.get("clip")
    if clip is None:
        return info
    return dataclasses.replace(info, server=info.server | {"clip_norm": clip})

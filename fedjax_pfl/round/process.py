"""A method with everything around it."""

import functools
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from fedjax_pfl import core
from fedjax_pfl.core import checks, sharding, struct
from fedjax_pfl.local import participation as participations
from fedjax_pfl.local import schedules
from fedjax_pfl.round import local_privacy, privacy, run
from fedjax_pfl.round.part import First, Part, check_entries
from fedjax_pfl.round.parts import (
    attack,
    lateness,
    mailbox,
    model_state,
    noise,
    nonfinite,
    server_optimizer,
    steps,
    transforms,
)

__all__ = ["PARTS", "FederatedProcess"]

VMAP = sharding.Execution()
PARTS = {  # field of a process -> its class or an attribute of it, and an example
    "algorithm": ("predictors", "FedAvg()"),
    "aggregator": (core.Aggregator, "CoordinateMedian()"),
    "server_optimizer": (core.ServerOptimizer, "ServerMomentum()"),
    "participation": (core.Participation, "UniformCohort(size=10)"),
    "work": (core.Work, "FullWork()"),
    "attack": (core.Attack, "SignFlip()"),
}


@struct.pytree_dataclass
class FederatedProcess:
    """An algorithm with everything around it; its fields are dotted names of grids.

    Attributes:
      algorithm: the method.
      aggregator: rule that combines messages; None takes the algorithm's own.
      server_optimizer: optimizer that uses the change of the server's model in a round
        as a gradient, or None; for methods with a model as server state.
      participation: draws the cohort of a round.
      work: draws the budgets of local work.
      attack: replaces the messages of malicious clients, or None.
      transforms: transforms of messages, in the order of the clients; the server
        applies their inverses in reverse order, after the attack.
      parts: additional `Part`s of the round.
      on_nonfinite: static. An upload with a non-finite value has weight 0 in every
        mode, and is counted. A client diverges if it is honest and its state is not
        finite, or its message to a server that takes a mean. Malicious clients never
        diverge; rules other than means go on without such messages, unless no honest
        one arrives. `stop`: the training is reported as diverged at that round, and the
        values of the clients that diverged end there; with a non-finite server state
        all values end. `drop`: a client or server with a non-finite new state keeps
        its old one, and the training goes on. `freeze`: a round in which the server or
        a client diverges leaves the whole state as it was, except for the round number
        and the count.
      per_client: values `[N]` by dotted name, such as `algorithm.lam`, in place of
        numbers of the algorithm in initial states, local work and models of clients.
        For some numbers also `[N, L]`, a value for each of the L arrays of a model's
        parameters, in JAX's order. Servers, and clients that never trained, use the
        algorithm's numbers. None for none.
    """

    algorithm: Any
    aggregator: Any = None
    server_optimizer: Any = None
    participation: Any = participations.AllClients()
    work: Any = participations.FullWork()
    attack: Any = None
    transforms: tuple[Any, ...] = ()
    parts: tuple[Any, ...] = ()
    on_nonfinite: str = struct.static_field(default="stop")
    per_client: Any = None

    __repr__ = struct.changed_repr

    def __post_init__(self):
        checks.known(self.on_nonfinite, ("stop", "drop", "freeze"), "on_nonfinite")
        for name, (_, example) in PARTS.items():
            description = f"an object such as {example}"
            struct.refuse_stand_in(name, getattr(self, name), description)
        if not isinstance(self.transforms, tuple):
            raise checks.InputError(
                "Expected transforms to be a tuple such as (fp.TopK(fraction=0.01),),"
                f" got {checks.shown(self.transforms)}."
            )
        for number, part in enumerate(self.transforms):
            name = f"transforms.{number}"
            struct.refuse_stand_in(name, part, "an object such as TopK()")
        if not isinstance(self.per_client, Mapping | None):
            raise checks.InputError(
                "Expected per_client to be values by dotted name, such as"
                f" {{'algorithm.lam': array}}, got {checks.shown(self.per_client)}."
            )

    def _check_values(self, num_clients: int) -> None:
        """Checks names and shapes of `per_client` for N clients."""
        if self.per_client is None:
            return
        numbers = struct.traced_numbers(self)
        for name, values in self.per_client.items():
            if not name.startswith("algorithm.") or name not in numbers:
                allowed = [n for n in numbers if n.startswith("algorithm.")]
                raise checks.InputError(
                    "Expected per_client to have traced numbers of the algorithm,"
                    f" {', '.join(allowed)}, got {name!r}."
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
          client: `int32[]` number of the client; from N on, one that never trained.
        """
        method = self.algorithm
        for name, values in (self.per_client or {}).items():
            inner = name.removeprefix("algorithm.")
            # Clients that never trained have larger numbers, and the numbers of the
            # algorithm.
            value = jnp.asarray(values)[jnp.minimum(client, len(values) - 1)]
            default = struct.get_field(method, inner)
            value = jnp.where(client < len(values), value, default)
            method = struct.replace_field(method, inner, value)
        return method

    def used_aggregator(self) -> core.Aggregator:
        """Returns the aggregator of the process, or the algorithm's default."""
        if self.aggregator is None:
            return self.algorithm.default_aggregator()
        return self.aggregator

    @property
    def _mailbox(self) -> mailbox.Mailbox:
        """The part that keeps messages, and their mean."""
        over_all = self.algorithm.aggregate_over == "all"
        rule = self.used_aggregator()
        keeps_mean = over_all and bool(rule.incremental)
        is_plain = self.attack is None and not self.transforms
        # Last messages follow from client states, by `message_of`, if all arrive
        # unchanged.
        is_plain = is_plain and keeps_mean and self.on_nonfinite == "stop"
        tells = is_plain and not self.participation.is_timed
        return mailbox.Mailbox(
            rule, keeps_mean, self.algorithm.message_of if tells else None
        )

    def all_parts(self) -> tuple[Part, ...]:
        """Returns the parts of a round, in the order in which each hook is called.

        Parts without a feature to handle are left out.
        """
        plan, rule = self.participation, self.used_aggregator()
        server_noise = noise.noise_of(self)
        # Hooks run in this order: changes of messages come before the checks for
        # non-finite values, and noise and the cache of messages after them.
        optional = (
            (lateness.Lateness(plan, self.algorithm.aggregate_over != "all"),),
            schedules.counts_steps(self.algorithm) and (steps.Steps(),),
            (self._model_state,),
            self.transforms and (transforms.Transforms(self),),
            self.attack is not None and (attack.Attack(self.attack),),
            self.server_optimizer is not None
            and (
                server_optimizer.ServerOptimizer(self.algorithm, self.server_optimizer),
            ),
            self.parts,
            (nonfinite.Nonfinite(self.on_nonfinite, bool(rule.incremental)),),
            server_noise is not None and (noise.Noise(self, server_noise),),
            (self._mailbox,),
        )
        return tuple(part for group in optional if group for part in group)

    @property
    def _model_state(self) -> model_state.ModelState:
        """The part with model state outside the method."""
        return model_state.ModelState(self.algorithm)

    @property
    def keeps_mean(self) -> bool:
        """Returns whether the mean over all clients' messages is kept incrementally."""
        return self._mailbox.keeps_mean

    def messages_of(self, state: core.State) -> core.Message:
        """Returns the last messages `[K, *P]`."""
        return self._mailbox.messages(state)

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
          population: totals over all clients.
          train: training examples of K clients.

        Returns:
          Server state, see `SingleExchange.init`, and rows `[K, ...]` by name, as
          `State.of_clients` has them.
        """
        # Before `init`, which gets clients with their personal parameters.
        train = self.with_first_kept(key, model, train)
        init_key = core.stream_key(key, core.Stream.INIT, 0)
        started = model_state.started(model, train)
        init = functools.partial(
            self._init_client, init_key, started, population, train.pool()
        )
        server, clients, messages = jax.vmap(init, out_axes=(None, 0, 0))(train.rows())
        at = First(model, train, population.num_clients, server, messages)
        rows = {"clients": clients}
        for part in self.all_parts():
            entries = {n: v for n, v in part.first_rows(at).items() if v is not None}
            check_entries(part, entries, rows, len(train.num_examples))
            rows |= entries
        return server, rows

    def _init_client(
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
        """Returns whether all initial messages are equal, by tracing only.

        Args:
          model: the model.
          population: totals over all clients.
          train: training examples of at least one client.

        Returns:
          False if the initial message depends on client data.
        """
        pool = self._model_state.with_first_statistics(model, train).pool()
        model = model_state.started(model, train)

        def message(key: core.Key, fields: dict[str, Any]) -> core.Message:
            return self._init_client(key, model, population, pool, fields)[2]

        # Without an output axis, vmap refuses a message that depends on the client.
        mapped = jax.vmap(message, in_axes=(None, 0), out_axes=None)
        try:
            jax.eval_shape(mapped, jax.random.key(0), train.rows())
        except ValueError:  # raised by vmap for an output that depends on the client
            return False
        return True

    def check_cohort(self, size: int, num_clients: int) -> None:
        """Validates the size of the cohort with all parts, before anything is traced.

        Args:
          size: K, clients per round.
          num_clients: N.
        """
        parts = self.all_parts()
        for part in parts:
            part.check(self, num_clients)
        names = [part.name for part in parts]
        for part in self.parts:
            if not part.name or names.count(part.name) > 1:
                raise checks.InputError(
                    f"Expected {type(part).__name__} to have a name of its own among"
                    f" {', '.join(sorted(set(names)))}, got {part.name!r}."
                )
        self._check_values(num_clients)
        privacy.check(self)
        privacy.check_bands(self, num_clients)
        local_privacy.check(self)
        self.algorithm.check_cohort(size)
        if not self.algorithm.aggregates:
            return
        is_over_all = self.algorithm.aggregate_over == "all"
        self.used_aggregator().check_cohort(num_clients if is_over_all else size)

    def init(
        self, key: core.Key, model: core.Model, federation: core.Federation
    ) -> core.State:
        """Returns the state before the first round.

        Args:
          key: `[]` key of the run (`jax.random.key(seed)`).
          model: the model, with the federation's shapes.
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
        counts = federation.train.num_examples
        return self._mailbox.with_first_mean(
            state.with_memory(**memory), counts, population
        )

    def first_memory(
        self,
        model: core.Model,
        state: core.State,
        train: core.ClientData,
        num_clients: int,
    ) -> dict[str, Any]:
        """Returns initial server states of parts, by name.

        Args:
          model: the model.
          state: server, and rows of any clients.
          train: examples of any clients.
          num_clients: N.

        Returns:
          Entries of `State.memory`, except for the mean of messages; None for none.
        """
        at, memory = First(model, train, num_clients, state.server), {}
        for part in self.all_parts():
            entries = part.first_memory(at, state.of_clients())
            check_entries(part, entries, memory)
            memory |= entries
        return memory

    def with_first_kept(
        self, key: core.Key, model: core.Model, train: core.ClientData
    ) -> core.ClientData:
        """Returns data with the initial model state of clients.

        Args:
          key: `[]` key of the run.
          model: the model.
          train: examples of K clients.

        Returns:
          Data of the same clients, unchanged if the model has no such state.
        """
        return self._model_state.with_first(key, model, train)

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
          members: the cohort, if state and federation contain its rows only, in its
            order; None draws the cohort.

        Returns:
          State after the round and a report.
        """
        return run.run(self, state, model, federation, execution, members)

    def before_evaluation(
        self, state: core.State, model: core.Model, federation: core.Federation
    ) -> core.State:
        """Returns the state to evaluate; see `SingleExchange.before_evaluation`."""
        return self.algorithm.before_evaluation(state, model, federation)

    def predictors(
        self,
        key: core.Key,
        state: core.State,
        client: core.ClientState,
        model: core.Model,
        data: core.ClientData,
    ) -> dict[str, Any]:
        """Returns functions `x -> outputs` of ONE client, by name.

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

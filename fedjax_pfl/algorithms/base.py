"""The abstract base of algorithms whose round has one exchange."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from fedjax_pfl import aggregators, core, local
from fedjax_pfl.core import checks, client_rows, exchange

__all__ = [
    "SingleExchange",
    "check_plain_sgd",
    "half_squared_distance",
    "map_everyone",
    "mixture",
    "problem_weight",
]


class SingleExchange:
    """One message down and one up per round; concrete classes are final dataclasses.

    Subclasses are `@pytree_dataclass`es that fill in `init`, `client_update` and
    `predictors`, and override the other hooks where the defaults do not fit. A method
    with several exchanges overrides `round`.
    """

    @property
    def aggregate_over(self) -> str:
        """`"cohort"`, or `"all"` clients' last messages."""
        return "cohort"

    @property
    def aggregates(self) -> bool:
        """Whether messages become one aggregate; else no aggregator acts."""
        return True

    @property
    def reads(self) -> str:
        """Whose rows a round looks at: the `"cohort"`'s, or `"all"` clients'."""
        return "cohort"

    @property
    def server_is_model(self) -> bool:
        """Whether a change of the server state can be taken for a gradient.

        That is where the server state is exactly the model that clients start from and
        into which the messages, models of theirs, are averaged.
        """
        return False

    def default_aggregator(self) -> core.Aggregator:
        """The aggregator where the process names none: the weighted mean."""
        return aggregators.WeightedMean()

    def init(
        self,
        key: core.Key,
        model: core.Model,
        population: core.Population,
        data: core.ClientData,
    ) -> tuple[Any, Any, Any]:
        """First `(server, client, message or None)`, from the view of ONE client.

        Args:
          key: `[]` key, the same for all clients.
          model: the model.
          population: what is known of all clients together.
          data: training examples of this client.

        Returns:
          Server state, which must not depend on the client; state of this client, or
          None; what the server would have received from it before the first round, or
          None for a method that never looks back.
        """
        raise NotImplementedError

    def reference(self, server: Any) -> Any:
        """The point about which messages are compared, shaped like a message."""
        return server

    def down(
        self, ctx: core.RoundContext, server: Any, clients: Any, messages: Any
    ) -> core.Downlink:
        """What the cohort receives: by default the server state, shared.

        Args:
          ctx: key, round, cohort and number of clients.
          server: server state.
          clients: states of the cohort `[K]`; of all N where the method `reads` all.
          messages: last messages, of the same clients.

        Returns:
          The downlink.
        """
        del ctx, clients, messages
        return core.Downlink(shared=server)

    def client_update(
        self,
        key: core.Key,
        round: jax.Array,
        work: core.Budget,
        down: core.Downlink,
        client: Any,
        model: core.Model,
        data: core.ClientData,
    ) -> tuple[Any, core.Upload, Any]:
        """Local work of ONE client.

        Args:
          key: `[]` key of this client in this round.
          round: `int32[]` round number, for schedules.
          work: budget of this client.
          down: what it received; `own` without the axis K.
          client: its state.
          model: the model.
          data: its training examples.

        Returns:
          New client state, upload, and a dict of `[]` values to report, which
          `LocalInfo.report` makes.
        """
        raise NotImplementedError

    def server_update(
        self,
        ctx: core.RoundContext,
        server: Any,
        aggregate: Any,
        uploads: core.Upload,
    ) -> Any:
        """New server state: by default the aggregate, None where there is none."""
        del ctx, server, uploads
        return aggregate

    def finish(self, ctx: core.RoundContext, server: Any, clients: Any) -> Any:
        """What the cohort does after the server's update, rows `[K]`: nothing."""
        del ctx, server
        return clients

    def predictors(
        self,
        key: core.Key,
        round: jax.Array,
        server: Any,
        client: Any,
        model: core.Model,
        data: core.ClientData,
    ) -> dict[str, Any]:
        """Functions `x -> outputs` of ONE client, by name; may adapt first.

        Args:
          key: `[]` key of evaluation for this client.
          round: `int32[]` finished rounds.
          server: server state.
          client: its state.
          model: the model.
          data: its training examples.

        Returns:
          For example `{"personal": fn, "global": fn}`, best as `Predictor`s, whose
          networks can be saved.
        """
        raise NotImplementedError

    def before_evaluation(
        self, state: core.State, model: core.Model, federation: core.Federation
    ) -> core.State:
        """The state that is evaluated: by default the state as it is.

        For methods whose personal models are made of what all clients have at that
        moment; the training never sees the result.
        """
        del model, federation
        return state

    def check_cohort(self, size: int) -> None:
        """Refuses or warns of values that do not fit K = `size` clients per round.

        Called before anything is traced, so that fields are concrete.
        """
        del size

    def collaboration(
        self, state: core.State, federation: core.Federation
    ) -> jax.Array | None:
        """Weights `[N, N]` with which clients would receive each other's messages.

        Row i is how the server would mix the messages for client i if everyone took
        part in the next round; None for methods that do not mix.
        """
        del state, federation
        return None

    def diagnostics(
        self, state: core.State, model: core.Model, federation: core.Federation
    ) -> dict[str, jax.Array]:
        """Values `[]` that prove or disprove theory, by name; by default none."""
        del state, model, federation
        return {}

    def round(
        self, state: core.State, link: exchange.Link
    ) -> tuple[core.State, core.RoundInfo]:
        """One exchange, written with the same link that multi-exchange rounds use."""
        ctx = link.ctx
        old = link.take(state.clients)
        rows = (old, link.take(state.messages))
        if self.reads == "all":
            rows = (state.clients, state.messages)
        down = self.down(ctx, state.server, *rows)

        def update(view: exchange.ClientView, row: Any, shared: Any):
            own, client = row
            received = core.Downlink(shared=shared, own=own)
            return self.client_update(
                view.key, view.round, view.work, received, client, link.model, view.data
            )

        rows, uploads, info = link.map(update, (down.own, old), down.shared)
        state, rows = link.keep_finite(state, old, rows)
        reference = self.reference(state.server)
        state, received = link.upload(state, uploads, reference)
        state = link.store(state, received)
        aggregate, aggregator_info = None, {}
        if self.aggregates:
            aggregate, aggregator_info = link.aggregate(state, received, reference)
        server = self.server_update(ctx, state.server, aggregate, received)
        state, server = link.step(state, server)
        rows = self.finish(ctx, server, rows)
        state = dataclasses.replace(
            state, server=server, clients=link.put(state.clients, rows)
        )
        cohort_size = ctx.cohort.shape[0]
        return state, link.info(
            info,
            aggregator_info,
            down.info,
            floats_up=client_rows.size(uploads.message),
            floats_down=client_rows.size(down.shared) * cohort_size
            + client_rows.size(down.own),
        )


CHUNK = 16
"""Clients whose full gradients are in memory at once."""


def map_everyone(
    fn: Callable[[Any, core.ClientData], Any], rows: Any, federation: core.Federation
) -> Any:
    """Applies `fn(row, training examples)` to every client, `CHUNK` at a time.

    Args:
      fn: function of ONE client.
      rows: pytree of `[N, ...]`.
      federation: data of N clients.

    Returns:
      Pytree of `[N, ...]`.
    """
    pool = federation.train.pool()

    def one(row: tuple[Any, dict[str, Any]]) -> Any:
        return fn(row[0], pool.with_rows(row[1]))

    return lax.map(one, (rows, federation.train.rows()), batch_size=CHUNK)


def check_plain_sgd(algorithm: str, solver: Any) -> None:
    """Refuses local solvers whose steps are not a learning rate times a gradient."""
    if not isinstance(solver, local.SGD) or solver.momentum is not None:
        given = "Optax" if isinstance(solver, local.Optax) else repr(solver)
        raise checks.InputError(
            f"Expected {algorithm}'s local solver to be SGD without momentum, whose "
            f"plain steps its rule is made of, got {given}."
        )


def mixture(v: Any, w: Any, alpha: Any) -> Any:
    """The convex combination `alpha v + (1 - alpha) w`.

    Args:
      v: `[*P]`.
      w: `[*P]`.
      alpha: `[]` weight of v; at 1 the result is exactly v where w is finite.

    Returns:
      `[*P]`.

    Example:
      >>> mixture(4.0, 0.0, 0.25)
      1.0
    """
    return jax.tree.map(lambda a, b: alpha * a + (1 - alpha) * b, v, w)


def half_squared_distance(a: Any, b: Any) -> jax.Array:
    """Half the squared Euclidean distance `[]` of two trees: the proximal term.

    Args:
      a: `[*P]`.
      b: `[*P]`.

    Returns:
      `||a - b||^2 / 2`, whose gradient in `a` is `a - b`.

    Example:
      >>> float(half_squared_distance({"w": 3.0}, {"w": 1.0}))
      2.0
    """
    squares = jax.tree.map(lambda x, y: jnp.sum((x - y) ** 2), a, b)
    return jnp.asarray(sum(jax.tree.leaves(squares))) / 2


def with_server(state: core.State, server: Any) -> core.State:
    """The state with another server state."""
    return dataclasses.replace(state, server=server)


def model_predictor(model: core.Model, params: Any, constants: Any) -> core.Predictor:
    """A predictor that applies the model with fixed parameters, in evaluation mode."""

    def apply(params: Any, x: jax.Array) -> jax.Array:
        return model.apply(params, x, constants=constants)

    return core.Predictor(apply, params)


def example_weight(data: core.ClientData, params: Any) -> jax.Array:
    """Number of training examples as a weight `[]` in the parameters' dtype."""
    return data.num_examples.astype(jnp.result_type(*jax.tree.leaves(params)))


def problem_weight(
    weighting: str, population: core.Population, data: core.ClientData, params: Any
) -> jax.Array:
    """Weight alpha_i `[]` of ONE client: 1/N if `uniform`, else by its examples."""
    dtype = jnp.result_type(*jax.tree.leaves(params))
    if weighting == "uniform":
        return jnp.asarray(1 / population.num_clients, dtype)
    return data.num_examples / population.num_examples.astype(dtype)

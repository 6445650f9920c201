"""The abstract base of algorithms whose round has one exchange."""

from collections.abc import Callable, Sequence
from typing import Any, Self

import jax

from fedjax_pfl import aggregators, core, local
from fedjax_pfl.core import checks, struct, tree_paths
from fedjax_pfl.round import run
from fedjax_pfl.round.exchange import Exchange

__all__ = [
    "PersonalHead",
    "SingleExchange",
    "mixture",
    "model_predictor",
    "model_predictors",
]


class SingleExchange(core.Pluggable):
    """One message down and one up per round; concrete classes are final dataclasses.

    Subclasses are `@pytree_dataclass`es that fill in `first` or `init`, `client_update`
    and `parameters` or `predictors`, and override the other hooks if the defaults do
    not fit. A method with several exchanges overrides `round`.

    Attributes:
      local: local solver, of methods with one.
      fine_tune: local solver run before evaluation, of methods with one.
      search: line search of the server's step, of methods with one.
      batch_size: most examples of a step, of methods that take their own.
      aggregate_over: `"cohort"`, or `"all"` clients' last messages.
      aggregates: whether messages become one aggregate; else no aggregator acts.
      reads: rows that a round reads, of the `"cohort"` or of `"all"` clients.
      server_is_model: whether a change of the server state can serve as a gradient:
        the server state is exactly the model that clients start from and into which
        the messages, models of theirs, are averaged.
      message_of: function of ONE client's state that returns the message which it sent
        last, or would have sent before the first round; messages need not be kept
        then. None if the state does not determine it.
      shares_statistics: whether running statistics of a `StatisticsModel` become one
        mean, unless they are to stay with the clients; else they always stay there.
      layered: dotted names of fields, such as `lam`, that may have a value per layer,
        in `per_client`.
      released: the aggregate of messages that the server sends on, in words, if it
        sends no other function of them; else None, and noise cannot make the method
        private.
      uploads_through: name of the solver through which alone messages see examples, so
        that a `PrivateSGD` there makes them private; of `Local`, which sends nothing,
        through which its models do; else None.
    """

    local: core.Solver = None
    fine_tune: core.Solver = None
    search: Any = None
    batch_size: Any = None
    aggregate_over: str = "cohort"
    aggregates: bool = True
    reads: str = "cohort"
    server_is_model: bool = False
    message_of: Callable[[core.ClientState], core.Message] | None = None
    shares_statistics: bool = True
    layered: tuple[str, ...] = ()
    released: str | None = None
    uploads_through: str | None = None

    def default_aggregator(self) -> core.Aggregator:
        """Returns the aggregator if the process names none: the weighted mean."""
        return aggregators.WeightedMean()

    def init(
        self,
        key: core.Key,
        model: core.Model,
        population: core.Population,
        data: core.ClientData,
    ) -> tuple[Any, Any, Any]:
        """Returns the first `(server, client, message or None)` of ONE client.

        Args:
          key: `[]` key, the same for all clients.
          model: the model.
          population: facts about all clients together.
          data: training examples of this client.

        Returns:
          Server state, which must not depend on the client; state of this client, or
          None; what the server would have received from it before the first round, or
          None for a method that never looks back. By default `first` of the network
          that the model draws.
        """
        return self.first(model.init(key))

    def first(self, params: core.Params) -> tuple[Any, Any, Any]:
        """Returns the result of `init`, from parameters `[*P]` for all clients."""
        raise NotImplementedError

    def reference(self, server: core.ServerState) -> core.Message:
        """Returns the point about which messages are compared, like a message."""
        return server

    def known(self, server: core.ServerState, down: core.Downlink) -> core.Downlink:
        """Returns the state shared by all members and the server, like a message.

        Transforms act on the difference of messages to it.

        Args:
          server: server state.
          down: the cohort's download.

        Returns:
          One point for all, by default `reference`, or rows `per_client`.
        """
        return core.Downlink(shared=self.reference(server))

    def down(
        self,
        ctx: core.RoundContext,
        server: core.ServerState,
        clients: core.ClientState,
        messages: core.Message,
    ) -> core.Downlink:
        """Returns the cohort's download: by default the server state, shared.

        Args:
          ctx: key, round, cohort and number of clients.
          server: server state.
          clients: states of the cohort `[K]`; of all N if the method `reads` all.
          messages: last messages, of the same clients.

        Returns:
          The downlink.
        """
        return core.Downlink(shared=server)

    def client_update(
        self,
        view: core.ClientView,
        down: core.Downlink,
        client: core.ClientState,
        model: core.Model,
    ) -> tuple[Any, core.Upload, Any]:
        """Runs the local work of ONE client.

        Args:
          view: its key, round, training examples and budget.
          down: its download; `per_client` without the axis K.
          client: its state.
          model: the model.

        Returns:
          New client state, upload, which `view.upload` makes, and a dict of `[]` values
          to report, which `LocalInfo.report` makes.
        """
        raise NotImplementedError

    def server_update(
        self,
        ctx: core.RoundContext,
        server: core.ServerState,
        aggregate: core.Message,
        uploads: core.Upload,
    ) -> core.ServerState:
        """Returns the new server state: by default the aggregate, or None."""
        return aggregate

    def finish(
        self,
        ctx: core.RoundContext,
        server: core.ServerState,
        clients: core.ClientState,
    ) -> core.ClientState:
        """Ends the cohort's round after the server's update, rows `[K]`."""
        return clients

    def predictors(
        self,
        view: core.ClientView,
        server: core.ServerState,
        client: core.ClientState,
        model: core.Model,
    ) -> dict[str, Any]:
        """Returns functions `x -> outputs` of ONE client, by name; may adapt first.

        By default the model at each of `parameters`.

        Args:
          view: its key of evaluation, finished rounds and training examples; the budget
            has no caps.
          server: server state.
          client: its state.
          model: the model.

        Returns:
          For example `{"personal": fn, "global": fn}`, best as `Predictor`s, whose
          networks can be saved.
        """
        return model_predictors(view, model, self.parameters(server, client))

    def parameters(
        self, server: core.ServerState, client: core.ClientState
    ) -> dict[str, Any]:
        """Returns parameters `[*P]` of the networks that predict for ONE client."""
        raise NotImplementedError

    def before_evaluation(
        self, state: core.State, model: core.Model, federation: core.Federation
    ) -> core.State:
        """Returns the state to evaluate: by default the state as it is.

        For methods whose personal models are made of what all clients have at that
        moment; the training never sees the result.
        """
        return state

    def check_cohort(self, size: int) -> None:
        """Refuses or warns of values that do not fit K = `size` clients per round.

        Called before anything is traced, so that fields are concrete.
        """

    @classmethod
    def with_solver(cls, solver: core.Solver) -> Self:
        """Returns the method with the local solver that others have, for comparisons.

        Methods that do not use all of it take what they do use.
        """
        return cls(local=solver)  # pyright: ignore[reportCallIssue]

    @property
    def is_usual(self) -> bool:
        """Returns whether the round has the one exchange of `SingleExchange`."""
        return type(self).round is SingleExchange.round

    @property
    def allows_late(self) -> bool:
        """Returns whether messages trained from older server states have a meaning.

        They have where clients receive the server state itself, and the server averages
        models into it or keeps all clients' latest messages.
        """
        is_broadcast = type(self).down is SingleExchange.down
        keeps = self.aggregate_over == "all" or self.server_is_model
        return self.is_usual and is_broadcast and keeps

    def check_per_client(self, fields: Sequence[str]) -> None:
        """Refuses fields of which clients cannot have values of their own.

        By default those of a method whose round is not the usual one, and so does not
        ask for them.

        Args:
          fields: dotted names within the method, such as `lam`.
        """
        if not self.is_usual:
            raise checks.InputError(
                f"Expected a method whose clients have values of their own, got"
                f" {type(self).__name__}, whose round is not the usual one."
            )

    def check_per_layer(self, fields: Sequence[str]) -> None:
        """Refuses fields of which layers cannot have values of their own.

        Args:
          fields: dotted names within the method, such as `lam`.
        """
        for field in fields:
            if field not in self.layered:
                some = ", ".join(self.layered) or "none"
                raise checks.InputError(
                    f"Expected a field of {type(self).__name__} that layers can have"
                    f" for themselves ({some}), got {field}."
                )

    def collaboration(
        self, state: core.State, federation: core.Federation
    ) -> jax.Array | None:
        """Returns weights `[N, N]` with which clients would mix their messages.

        Row i is how the server would mix the messages for client i if everyone took
        part in the next round; None for methods that do not mix.
        """
        return None

    def diagnostics(
        self, state: core.State, model: core.Model, federation: core.Federation
    ) -> dict[str, jax.Array]:
        """Returns values `[]` that test the theory, by name; by default none."""
        return {}

    def round(
        self, state: core.State, exchange: Exchange
    ) -> tuple[core.State, core.RoundInfo]:
        """Runs a round; by default the usual one, of one message down and one up."""
        return run.usual(self, state, exchange)


@struct.pytree_dataclass
class PersonalHead(SingleExchange):
    """A method with a head per client, found by the names of leaves; abstract."""

    # Searched in names such as `head/kernel`: some leaves must match, and some not.
    head: str = struct.static_field(default="^head/")
    local: core.Solver = local.SGD()

    def __post_init__(self):
        tree_paths.check_pattern("head", self.head)

    def first(self, params: core.Params):
        """Keeps the body at the server and the head at every client."""
        head, body = tree_paths.head_and_body(params, self.head)
        return body, head, None


def model_predictor(
    model: core.Model, params: core.Params, constants: core.Constants
) -> core.Predictor:
    """Returns the model with fixed parameters, in evaluation mode."""

    def apply(params: core.Params, x: jax.Array) -> jax.Array:
        return model.apply(params, x, constants=constants)

    return core.Predictor(apply, params)


def model_predictors(
    view: core.ClientView, model: core.Model, networks: dict[str, Any]
) -> dict[str, core.Predictor]:
    """Returns the predictors of ONE client from parameters `[*P]` by name."""
    constants = view.data.constants
    return {n: model_predictor(model, p, constants) for n, p in networks.items()}


def mixture(v: core.Tree, w: core.Tree, alpha: core.Scalar) -> core.Tree:
    """Returns the convex combination `alpha v + (1 - alpha) w` of trees `[*P]`."""
    # In this form it is exactly v at alpha = 1, if w is finite.
    return jax.tree.map(lambda a, b: alpha * a + (1 - alpha) * b, v, w)

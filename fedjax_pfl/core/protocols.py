"""The protocols of every pluggable part of a process."""

import abc
from typing import Annotated, Any, ClassVar, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_pfl.core.aliases import Message, Params, Tree
from fedjax_pfl.core.batch import Batch
from fedjax_pfl.core.federation import ClientData, Federation
from fedjax_pfl.core.randomness import Key
from fedjax_pfl.core.state import Budget, State

__all__ = [
    "Aggregator",
    "Attack",
    "LocalSolver",
    "Model",
    "Participation",
    "Pluggable",
    "RankedModel",
    "RoleModel",
    "SequenceModel",
    "ServerOptimizer",
    "Solver",
    "Specification",
    "StatisticsModel",
    "SummedModel",
    "Transform",
    "Work",
]


class Pluggable:
    """Base of the parts of a process, with what derivatives of trainings do at them.

    Attributes:
      chooses: the choices by comparison, in words, that derivatives hold fixed; or
        None.
      no_derivative: why trainings have no derivatives, in words; or None.
      forward_only: why derivatives do not go back through rounds, in words; or None.
    """

    chooses: ClassVar[str | None] = None
    no_derivative: ClassVar[str | None] = None
    forward_only: ClassVar[str | None] = None


class Model(abc.ABC):
    """A frozen, hashable object without arrays.

    A model is a subclass that defines the five abstract methods; the rest has defaults.
    `for_federation` fills in properties of the data (input shape, number of outputs).

    Attributes:
      num_classes: C of logits `[B, C]`, or None for other outputs.
      class_weights: C weights of the classes' examples in the loss, or None.
      initial_params: initial parameters of all trainings, or None; see
        `fedjax_pfl.models.starts`.
      local_statistics: whether running statistics stay with the clients.
      outputs_first: whether matrices among the parameters are `[outputs, inputs]`.
      bfloat16_products: whether operands of products are rounded.
      rows_per_example: rows of an example in the products.
      floats_per_example: numbers that `apply` computes per example, or None for about
        as many as an example has.
      ranks: columns of the low-rank adapters of every client, or None.
    """

    num_classes: int | None = None
    class_weights: tuple[float, ...] | None = None
    initial_params: Params = None
    local_statistics: bool = False
    outputs_first: bool = False
    bfloat16_products: bool = False
    rows_per_example: int = 1
    floats_per_example: int | None = None
    ranks: tuple[int, ...] | None = None

    @abc.abstractmethod
    def for_federation(self, federation: Federation) -> "Model":
        """Returns the model with input shape and number of outputs filled in."""

    @abc.abstractmethod
    def init(self, key: Key) -> Params:
        """Draws initial parameters."""

    @abc.abstractmethod
    def apply(
        self,
        params: Params,
        x: jax.Array,
        *,
        key: Key | None = None,
        constants: Tree = None,
    ) -> jax.Array:
        """Computes outputs `[B, ...]`; without a key in evaluation mode."""

    @abc.abstractmethod
    def loss(self, outputs: jax.Array, batch: Batch) -> jax.Array:
        """Returns the weighted mean loss `[]` of a batch; 0 for an empty one."""

    @abc.abstractmethod
    def metrics(self, outputs: jax.Array, batch: Batch) -> dict[str, jax.Array]:
        """Returns per-example values `[B]` by name, always including `loss`.

        Evaluations average them over a client's examples.
        """

    def check_start(self) -> None:
        """Refuses `initial_params` that do not fit."""
        return None

    def first_statistics(self) -> Tree:
        """Returns running statistics before the first round; None without any."""
        return None

    def merged(self, params: Params) -> Params:
        """Returns parameters with all adapters added to their kernels."""
        return params


@runtime_checkable
class SummedModel(Protocol):
    """A model with metrics that follow from sums over examples, such as F1 scores.

    Sums are added up over the batches of ONE client and predictor, then finished.
    """

    def metric_sums(self, outputs: jax.Array, batch: Batch) -> Tree:
        """Returns a pytree of sums over the rows of weight > 0."""
        ...

    def finish_metrics(self, sums: Tree, count: jax.Array) -> dict[str, jax.Array]:
        """Maps sums over `count int32[]` examples to values `[]` by name.

        A metric that is undefined for the examples is NaN. Without examples all are.
        """
        ...


@runtime_checkable
class RankedModel(Protocol):
    """A model with metrics that need all examples of a client at once, such as the AUC.

    The rows of all examples of ONE client and predictor are stored, then finished.
    """

    def metric_rows(self, outputs: jax.Array, batch: Batch) -> Tree:
        """Returns a pytree of rows `[B, ...]`, numbers of each example."""
        ...

    def finish_rows(self, rows: Tree, weight: jax.Array) -> dict[str, jax.Array]:
        """Maps rows `[M, ...]` and weights `bool[M]` to values `[]` by name.

        Rows of weight 0 are padding. A metric that is undefined for the examples is
        NaN. Without examples all are.
        """
        ...


@runtime_checkable
class SequenceModel(Protocol):
    """A model of examples that are moments of a sequence, such as days.

    Its output at one moment is an input at the next. `apply` on a client's examples, in
    order, runs through the sequence from its start. Local training visits pieces of it
    in any order, with the outputs before a piece from a carry. The client's solver
    keeps the carry from round to round, and it may be of older parameters.
    """

    def first_carry(self, data: ClientData) -> Tree:
        """Returns the carry of ONE client before the first round."""
        ...

    def positions(
        self, key: Key, round: jax.Array | None, data: ClientData, batch_size: int
    ) -> tuple[jax.Array, jax.Array]:
        """Draws a piece of ONE client's sequence.

        Returns positions `int32[B]` and weights `bool[B]`; `round` is `int32[]`, or
        None for the first.
        """
        ...

    def recall(self, carry: Tree, batch: Batch) -> Tree:
        """Returns inputs `[B, ...]` for `apply`, with the previous outputs."""
        ...

    def remember(self, carry: Tree, batch: Batch, outputs: jax.Array) -> Tree:
        """Returns the carry after outputs `[B, ...]` for a batch."""
        ...

    def sequence_metrics(
        self, outputs: jax.Array, batch: Batch
    ) -> tuple[dict[str, jax.Array], dict[str, jax.Array]]:
        """Evaluates a client's whole sequence: values `[]`, and time series `[T]`.

        Replaces means over examples; NaN without examples.
        """
        ...


@runtime_checkable
class RoleModel(Protocol):
    """A model with trained parameters, which `init` returns, and other parameters.

    `apply` takes the others from `Constants`; personal ones may also be among its
    parameters.
    """

    def frozen_params(self, start: Params = None) -> dict[str, Any]:
        """Returns the untrained parameters by name, the same for every run.

        `start` are pretrained parameters of the model on the device; their arrays
        are then used.
        """
        ...

    def first_personal(self, key: Key) -> Params:
        """Returns initial personal parameters of ONE client, or None.

        `key` is the key of `init`.
        """
        ...

    def fixed_rows(self) -> Tree:
        """Returns `Constants.fixed` for all clients, `[N, ...]`, or None."""
        ...


@runtime_checkable
class StatisticsModel(Protocol):
    """A model that normalizes by statistics of batches, and keeps running ones.

    With a key, `apply` normalizes by the batch without rows of weight 0 in `Constants`;
    without a key by the running statistics in `Constants`, or by those among the
    parameters (`core.statistics`). Running statistics are state, and methods' rules do
    not act on them.
    """

    def first_statistics(self) -> Tree:
        """Returns running statistics before the first round; None without any."""
        ...

    def apply_with_statistics(
        self, params: Params, x: jax.Array, *, key: Key | None, constants: Tree
    ) -> tuple[jax.Array, Any]:
        """Returns the outputs of `apply`, and running statistics after this batch."""
        ...


class LocalSolver(Pluggable, abc.ABC):
    """Minimizes one client's local objective.

    A solver is a subclass that defines `solve`; the rest has defaults.

    Attributes:
      epochs: local epochs, or None for solvers without epochs.
      num_steps: local steps in place of epochs, or None.
      batch_size: most examples of a step; None for all examples of a client.
      learning_rate: `[]` step size, a schedule, or None.
      decay: `[]` factor of the learning rate per round, or None.
    """

    epochs: Any = None
    num_steps: Any = None
    batch_size: Any = None
    learning_rate: Any = None
    decay: Any = None

    @abc.abstractmethod
    def solve(
        self, view: Any, objective: Any, params: Params, context: Tree = None
    ) -> tuple[Any, Any, Any]:
        """Maps a `ClientView`, an objective and a start to `(params, context, info)`.

        The objective is `(key, params, batch, context) -> []`.
        """


Solver = Annotated[Any, LocalSolver]


class Aggregator(Pluggable, abc.ABC):
    """Combines messages into one; returns the reference if all weights are zero.

    A rule is a subclass that defines `__call__`; the rest has defaults.

    Attributes:
      incremental: weighting of a mean that can be updated by the messages of a cohort,
        `"uniform"` or `"weighted"`; None for rules that need all messages together.
      by_columns: whether devices may each combine some of the coordinates.
      of_pairs: whether that requires inner products of all pairs of messages.
      sees_messages: whether it works on messages themselves, not on an encoding.
      weighting: `"examples"` if clients count by their examples, else `"uniform"`.
    """

    incremental: ClassVar[str | None] = None
    by_columns: ClassVar[bool] = False
    of_pairs: ClassVar[bool] = False
    sees_messages: ClassVar[bool] = True
    weighting: str = "uniform"

    @abc.abstractmethod
    def __call__(
        self, key: Key, messages: Message, weights: jax.Array, reference: Tree
    ) -> tuple[Any, Any]:
        """Maps `[K, *P]`, weights `[K]`, reference `[*P]` to `([*P], info)`."""

    def check_cohort(self, size: int) -> None:
        """Refuses a number K of messages that does not fit; before tracing."""
        return None

    def check_state(self, state: State) -> None:
        """Refuses a training by the shapes of its state; before tracing."""
        return None

    def encoding(self, before: Any) -> Any:
        """Returns the `Encoding` in which the rule receives a message."""
        return before


class Attack(Pluggable, abc.ABC):
    """Replaces the messages of malicious clients, and only those."""

    def init(self, message: Message) -> Tree:
        """Returns the attack's state before the first round; by default none.

        `message` `[*P]` is the first message of a client. The state belongs to the
        attacker and has no axis of clients, since every round has other members.
        """
        return None

    @abc.abstractmethod
    def __call__(
        self,
        key: Key,
        state: Tree,
        messages: Message,
        malicious: jax.Array,
        reference: Tree,
    ) -> tuple[Any, Any]:
        """Maps messages `[K, *P]` and `malicious bool[K]` to `(messages, state)`.

        `key` is `[K]`, one key per client: randomness belongs to the client.
        """


class Transform(Pluggable):
    """A transform of every message on its way to the server, for ONE client.

    Messages are relative to a point that client and server share. A client applies
    `send` of all transforms in order; the server applies `receive` in reverse order.
    Messages of malicious clients go through `fit`, in order. By default messages are
    unchanged, and clients have no memory.
    """

    def init(self, message: Message) -> Tree:
        """Returns the client's memory before the first round, or None."""
        return None

    def send(self, key: Key, memory: Tree, message: Message) -> tuple[Any, Any]:
        """Maps memory and message `[*P]` of an honest client to (sent, memory)."""
        return message, memory

    def fit(self, key: Key, message: Message) -> Message:
        """Returns the part of any message `[*P]` that the encoding can represent."""
        return message

    def receive(self, key: Key, message: Message) -> Message:
        """Returns the message that the server decodes from a received one `[*P]`."""
        return message

    def encoding(self, before: Any) -> Any:
        """Maps a message's `Encoding` before the transform to the one after it."""
        return before


class ServerOptimizer(Pluggable, abc.ABC):
    """Uses the change of the server's model in a round as a gradient."""

    @abc.abstractmethod
    def init(self, params: Params) -> Tree:
        """Returns the first state for a model `[*P]`, without a client axis."""

    @abc.abstractmethod
    def __call__(self, memory: Tree, params: Params, target: Params) -> tuple[Any, Any]:
        """Maps memory, model and the round's new model to the next model and memory."""


class Participation(Pluggable, abc.ABC):
    """Chooses the cohort of a round.

    A subclass defines `cohort_size`, and `__call__` or, if the cohort depends on the
    number of the round, `in_round`; the rest has defaults.

    Attributes:
      max_staleness: largest age, in rounds, of the model from which a member starts.
      is_timed: whether rounds follow a `timetable` in virtual time, which `schedule`
        computes before a training.
      is_buffered: whether members may start from earlier models of the server.
    """

    max_staleness: int = 0
    is_timed: ClassVar[bool] = False
    is_buffered: ClassVar[bool] = False
    timetable: Any = None

    @abc.abstractmethod
    def cohort_size(self, num_clients: int) -> int:
        """Returns the static number K of cohort members."""

    def __call__(self, key: Key, num_clients: int) -> jax.Array:
        """Draws distinct rows `int32[K]`, the same way in every round."""
        raise NotImplementedError

    def in_round(self, key: Key, num_clients: int, round: jax.Array) -> jax.Array:
        """Returns distinct rows `int32[K]` of round `int32[]`, from 0."""
        return self(key, num_clients)

    def present(self, key: Key, num_clients: int) -> jax.Array | None:
        """Returns whether the drawn rows take part, `bool[K]`; None if all do."""
        return None

    def expected(self, num_clients: int) -> float | None:
        """Returns the expected number of participants, if their number varies."""
        return None

    def separation(self, num_clients: int) -> int | None:
        """Returns b if no client is in two of b consecutive rounds, or None."""
        return None

    def eligible(self, num_clients: int) -> int:
        """Returns the number of clients from which cohorts are drawn."""
        return num_clients

    def weight(self, staleness: jax.Array) -> jax.Array:
        """Returns the weight `[]` of a change that began `staleness` rounds ago."""
        return jnp.ones_like(staleness)

    def schedule(self, rng: np.random.Generator, charges: Any, num_rounds: int) -> Any:
        """Computes the `Timetable` of R rounds from clients' charges, if `is_timed`."""
        raise NotImplementedError

    @property
    def may_lose(self) -> bool:
        """Returns whether work may arrive too late."""
        return False


class Work(Pluggable, abc.ABC):
    """Draws the budgets of a cohort."""

    @abc.abstractmethod
    def __call__(self, key: Key, client_ids: jax.Array) -> Budget:
        """Returns budgets `[K]` for clients `int32[K]`; the same for every method."""


@runtime_checkable
class Specification(Protocol):
    """A frozen, hashable recipe of a federation; grids may sweep its fields."""

    @property
    def seed(self) -> int:
        """The seed of the draws."""
        ...

    def build(self) -> Federation:
        """Builds the federation on the host and places it on the device."""
        ...

    def describe(self) -> dict[str, Any]:
        """Returns the flat configuration in JSON types; `dataset` names the data."""
        ...

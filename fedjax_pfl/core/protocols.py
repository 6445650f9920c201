"""The protocols of every pluggable part of a process."""

import abc
from typing import Annotated, Any, ClassVar, Protocol, runtime_checkable

import jax
import jax.numpy as jnp

from fedjax_pfl.core.batch import Batch
from fedjax_pfl.core.federation import ClientData, Federation
from fedjax_pfl.core.randomness import Key
from fedjax_pfl.core.state import Budget, State

__all__ = [
    "Aggregator",
    "Attack",
    "LocalSolver",
    "Model",
    "Params",
    "Participation",
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

Params = Any


class Model(abc.ABC):
    """A frozen, hashable object without arrays.

    A model is a subclass that defines the five abstract methods; the rest has defaults.
    `for_federation` fills in what the data decide (input shape, number of outputs).

    Attributes:
      num_classes: C of logits `[B, C]`, or None for other outputs.
      class_weights: C weights of the classes' examples in the loss, or None.
      initial_params: what all trainings start from, or None; see
        `fedjax_pfl.models.starts`.
      local_statistics: whether running statistics stay with the clients.
      outputs_first: whether matrices among the parameters are `[outputs, inputs]`.
      bfloat16_products: whether operands of products are rounded.
      rows_per_example: rows that an example has in the products.
      floats_per_example: numbers that `apply` makes of an example, or None for about as
        many as an example has.
      ranks: of every client, columns of its low-rank adapters, or None.
    """

    num_classes: int | None = None
    class_weights: tuple[float, ...] | None = None
    initial_params: Any = None
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
        constants: Any = None,
    ) -> jax.Array:
        """Computes outputs `[B, ...]`; without a key in evaluation mode."""

    @abc.abstractmethod
    def loss(self, outputs: jax.Array, batch: Batch) -> jax.Array:
        """Returns the weighted mean loss `[]` of a batch; 0 for an empty one."""

    @abc.abstractmethod
    def metrics(self, outputs: jax.Array, batch: Batch) -> dict[str, jax.Array]:
        """Returns per-example values `[B]` by name, always including `loss`.

        Their means over a client's examples are measured.
        """

    def check_start(self) -> None:
        """Refuses `initial_params` that do not fit."""
        return None

    def first_statistics(self) -> Any:
        """Returns running statistics before the first round; None without any."""
        return None

    def merged(self, params: Params) -> Params:
        """Returns parameters with all adapters added to their kernels."""
        return params


@runtime_checkable
class SummedModel(Protocol):
    """A model with metrics that follow from sums over examples, such as F1 scores.

    Sums are added up over the batches of ONE client and predictor, and finished once.
    """

    def metric_sums(self, outputs: jax.Array, batch: Batch) -> Any:
        """Returns a pytree of sums over the rows of weight > 0."""
        ...

    def finish_metrics(self, sums: Any, count: jax.Array) -> dict[str, jax.Array]:
        """Maps sums over `count int32[]` examples to values `[]` by name.

        A metric that the examples leave undefined is NaN. Without examples all are.
        """
        ...


@runtime_checkable
class RankedModel(Protocol):
    """A model with metrics that need all examples of a client at once, such as the AUC.

    The rows of all examples of ONE client and predictor are kept, and finished once.
    """

    def metric_rows(self, outputs: jax.Array, batch: Batch) -> Any:
        """Returns a pytree of rows `[B, ...]`, numbers of each example."""
        ...

    def finish_rows(self, rows: Any, weight: jax.Array) -> dict[str, jax.Array]:
        """Maps rows `[M, ...]` and weights `bool[M]` to values `[]` by name.

        Rows of weight 0 are padding. A metric that the examples leave undefined is NaN.
        Without examples all are.
        """
        ...


@runtime_checkable
class SequenceModel(Protocol):
    """A model whose examples are moments of a sequence, such as days.

    Its output at one moment is an input at the next. `apply` on a client's examples, in
    order, runs through the sequence from its start. Local training visits pieces of it
    in any order; there the outputs before a piece come from a carry, which the client's
    solver keeps from round to round and which may be of older parameters.
    """

    def first_carry(self, data: ClientData) -> Any:
        """Returns the carry of ONE client before the first round."""
        ...

    def positions(
        self, key: Key, round: Any, data: ClientData, batch_size: int
    ) -> tuple[jax.Array, jax.Array]:
        """Draws a piece of ONE client's sequence.

        Returns positions `int32[B]` and weights `bool[B]`; `round` is `int32[]`, or
        None for the first.
        """
        ...

    def recall(self, carry: Any, batch: Batch) -> Any:
        """Returns inputs `[B, ...]` for `apply`, with the outputs before each."""
        ...

    def remember(self, carry: Any, batch: Batch, outputs: jax.Array) -> Any:
        """Returns the carry after outputs `[B, ...]` for a batch."""
        ...

    def sequence_metrics(
        self, outputs: jax.Array, batch: Batch
    ) -> tuple[dict[str, jax.Array], dict[str, jax.Array]]:
        """Judges a client's whole sequence: values `[]`, and courses `[T]`.

        Takes the place of means over examples; NaN where there are none.
        """
        ...


@runtime_checkable
class RoleModel(Protocol):
    """A model of which a method moves some parameters only, those that `init` returns.

    `apply` takes the others from `Constants`; personal ones also where they stand among
    the parameters.
    """

    def frozen_params(self, start: Any = None) -> dict[str, Any]:
        """Returns by name the parameters that nobody trains, the same for every run.

        `start` are pretrained parameters of the model on the device, whose arrays are
        then taken as they are.
        """
        ...

    def first_personal(self, key: Key) -> Any:
        """Returns what stays with ONE client, before the first round; or None.

        `key` is that of `init`.
        """
        ...

    def fixed_rows(self) -> Any:
        """Returns what `Constants.fixed` has of all clients `[N, ...]`, or None."""
        ...


@runtime_checkable
class StatisticsModel(Protocol):
    """A model that normalizes by statistics of batches, and keeps running ones.

    With a key, `apply` normalizes by the batch, of which rows of weight 0 in
    `Constants` are no part; without a key by the running statistics there, or those
    that stand among the parameters (`core.statistics`). They are state, and nothing
    that a method's rule acts on.
    """

    def first_statistics(self) -> Any:
        """Returns running statistics before the first round; None without any."""
        ...

    def moved(
        self, params: Params, x: jax.Array, *, key: Key | None, constants: Any
    ) -> tuple[jax.Array, Any]:
        """Returns the outputs of `apply`, and running statistics after this batch."""
        ...


class LocalSolver(abc.ABC):
    """Minimizes one client's local objective.

    A solver is a subclass that defines `solve`; the rest has defaults.

    Attributes:
      epochs: local epochs, or None where it does not walk through examples in epochs.
      num_steps: local steps in place of epochs, or None.
      batch_size: most examples of a step; None for all of a client.
      learning_rate: `[]` step size, a schedule, or None.
    """

    epochs: Any = None
    num_steps: Any = None
    batch_size: Any = None
    learning_rate: Any = None

    @abc.abstractmethod
    def solve(
        self, view: Any, objective: Any, params: Any, context: Any = None
    ) -> tuple[Any, Any, Any]:
        """Maps a `ClientView`, an objective and a start to `(params, context, info)`.

        The objective is `(key, params, batch, context) -> []`.
        """


Solver = Annotated[Any, LocalSolver]


class Aggregator(abc.ABC):
    """Combines messages into one; the reference where all weights are zero.

    A rule is a subclass that defines `__call__`; the rest has defaults.

    Attributes:
      incremental: weighting of a mean that can be kept up to date as cohorts come and
        go, `"uniform"` or `"weighted"`; None for rules that need all messages together.
      by_columns: whether devices may each combine some of the coordinates.
      of_pairs: whether that takes inner products of all pairs of messages.
      sees_messages: whether it works on messages as they are, not on an encoding.
      weighting: `"examples"` where clients count by their examples, else `"uniform"`.
    """

    incremental: ClassVar[str | None] = None
    by_columns: ClassVar[bool] = False
    of_pairs: ClassVar[bool] = False
    sees_messages: ClassVar[bool] = True
    weighting: str = "uniform"

    @abc.abstractmethod
    def __call__(
        self, key: Key, messages: Any, weights: jax.Array, reference: Any
    ) -> tuple[Any, Any]:
        """Maps `[K, *P]`, weights `[K]`, reference `[*P]` to `([*P], info)`."""

    def check_cohort(self, size: int) -> None:
        """Refuses a number K of messages that does not fit; before tracing."""
        return None

    def check_state(self, state: State) -> None:
        """Refuses a training by the shapes of its state; before tracing."""
        return None

    def encoding(self, before: Any) -> Any:
        """Maps a message's `Encoding` to the one in which the rule receives it."""
        return before


class Attack(abc.ABC):
    """Replaces the messages of malicious clients, and only those."""

    def init(self, messages: Any) -> Any:
        """Returns the attack's state before the first round; by default none."""
        return None

    @abc.abstractmethod
    def __call__(
        self, key: Key, state: Any, messages: Any, malicious: jax.Array, reference: Any
    ) -> tuple[Any, Any]:
        """Maps messages `[K, *P]` and `malicious bool[K]` to `(messages, state)`.

        `key` is `[K]`, one key per client: randomness belongs to the client.
        """


class Transform:
    """A step of every message's way to the server, for ONE client.

    Messages are relative to what client and server both know. A client applies `send`
    of all transforms in order; the server applies `receive` in reverse order. What a
    malicious client sends in place of its message goes through `fit`, in order. By
    default nothing changes, and a client remembers nothing.
    """

    def init(self, message: Any) -> Any:
        """Returns the client's memory before the first round, or None."""
        return None

    def send(self, key: Key, memory: Any, message: Any) -> tuple[Any, Any]:
        """Maps memory and message `[*P]` of an honest client to (sent, memory)."""
        return message, memory

    def fit(self, key: Key, message: Any) -> Any:
        """Returns what of any message can be sent at all, `[*P]`."""
        return message

    def receive(self, key: Key, message: Any) -> Any:
        """Returns what the server makes of a message `[*P]` that has arrived."""
        return message

    def encoding(self, before: Any) -> Any:
        """Maps the message's `Encoding` before it to the one behind it."""
        return before


class ServerOptimizer(abc.ABC):
    """Takes the change that a round made of the server's model for a gradient."""

    @abc.abstractmethod
    def init(self, params: Any) -> Any:
        """Returns the first state for a model `[*P]`, without a client axis."""

    @abc.abstractmethod
    def __call__(self, memory: Any, params: Any, target: Any) -> tuple[Any, Any]:
        """Maps the model and what a round made of it to the next one, and memory."""


class Participation(abc.ABC):
    """Chooses the cohort of a round.

    A subclass defines `cohort_size`, and `__call__` or, if the cohort depends on the
    number of the round, `in_round`; the rest has defaults.

    Attributes:
      max_staleness: rounds that the server model from which a member begins may be old.
      is_timed: whether rounds follow a `timetable` in virtual time, which `schedule`
        computes before a training.
      is_buffered: whether members may begin at earlier models of the server.
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
        """Returns `bool[K]`: which of the drawn rows take part; None if all do."""
        return None

    def expected(self, num_clients: int) -> float | None:
        """Returns how many take part on average, if their number varies."""
        return None

    def separation(self, num_clients: int) -> int | None:
        """Returns the rounds in a row of which no client has two, if that is known."""
        return None

    def eligible(self, num_clients: int) -> int:
        """Returns how many clients may ever take part."""
        return num_clients

    def weight(self, staleness: jax.Array) -> jax.Array:
        """Returns what a change counts, `[]`, that began so many rounds ago."""
        return jnp.ones_like(staleness)

    def schedule(self, rng: Any, charges: Any, num_rounds: int) -> Any:
        """Returns the `Timetable` of R rounds from clients' charges, if `is_timed`."""
        raise NotImplementedError

    @property
    def may_lose(self) -> bool:
        """Returns whether work may come too late to be used."""
        return False


class Work(abc.ABC):
    """Draws the budgets of a cohort."""

    @abc.abstractmethod
    def __call__(self, key: Key, client_ids: jax.Array) -> Budget:
        """Budgets `[K]` for clients `int32[K]`; the same for every method."""


@runtime_checkable
class Specification(Protocol):
    """A frozen, hashable recipe of a federation, whose fields a grid may sweep."""

    seed: int

    def build(self) -> Federation:
        """Builds the federation on the host and places it on the device."""
        ...

    def describe(self) -> dict[str, Any]:
        """Returns the flat configuration as JSON knows it; `dataset` names the data."""
        ...

"""The protocols of every pluggable part of a process."""

from typing import Any, Protocol, runtime_checkable

import jax

from fedjax_pfl.core.federation import Batch, ClientData, Federation
from fedjax_pfl.core.randomness import Key
from fedjax_pfl.core.state import Budget

__all__ = [
    "Aggregator",
    "Attack",
    "Model",
    "Params",
    "Participation",
    "SeriesModel",
    "ServerOptimizer",
    "Specification",
    "Work",
]

Params = Any


class Model(Protocol):
    """A frozen, hashable object without arrays.

    `for_federation` fills in what the data decide (input shape, number of outputs).
    """

    def for_federation(self, federation: Federation) -> "Model":
        """Returns the model with input shape and number of outputs filled in."""
        ...

    def init(self, key: Key) -> Params:
        """Draws initial parameters."""
        ...

    def apply(
        self,
        params: Params,
        x: jax.Array,
        *,
        key: Key | None = None,
        constants: Any = None,
    ) -> jax.Array:
        """Computes outputs `[B, ...]`; without a key in evaluation mode."""
        ...

    def loss(self, outputs: jax.Array, batch: Batch) -> jax.Array:
        """Weighted mean loss `[]` of a batch; 0 for an empty one."""
        ...

    def metrics(self, outputs: jax.Array, batch: Batch) -> dict[str, jax.Array]:
        """Per-example values `[B]` by name, always including `loss`."""
        ...


@runtime_checkable
class SeriesModel(Protocol):
    """What a model adds whose examples are moments of a series, such as days.

    What it answers at one moment is an input at the next. `apply` on a client's
    examples as they come, in order, goes through them one after the other, from where
    the series starts. Local training visits pieces of the series in any order: there
    the last answers come from a memory that each client keeps from round to round, of
    whatever parameters gave them.
    """

    def memory(self, data: ClientData) -> Any:
        """What ONE client remembers before the first round."""
        ...

    def positions(
        self, key: Key, round: Any, data: ClientData, batch_size: int
    ) -> tuple[jax.Array, jax.Array]:
        """A piece of ONE client's series: positions `int32[B]` and weights `bool[B]`.

        `round` is `int32[]`, or None for the first.
        """
        ...

    def recall(self, memory: Any, batch: Batch) -> Any:
        """Inputs `[B, ...]` with the answers before them, for `apply`."""
        ...

    def remember(self, memory: Any, batch: Batch, outputs: jax.Array) -> Any:
        """The memory after answers `[B, ...]` to a batch."""
        ...

    def series_metrics(
        self, outputs: jax.Array, batch: Batch
    ) -> tuple[dict[str, jax.Array], dict[str, jax.Array]]:
        """What a client's whole series is judged by: values `[]`, and series `[T]`.

        Takes the place of means over examples; NaN where there are none.
        """
        ...


class Aggregator(Protocol):
    """Combines messages into one; the reference where all weights are zero.

    A rule that does not fit every number of messages also has `check_cohort(size)`,
    which refuses a K before anything is traced.
    """

    @property
    def incremental(self) -> str | None:
        """Weighting of a mean that can be kept: `"uniform"`, `"weighted"`, or None."""
        ...

    def __call__(
        self, key: Key, messages: Any, weights: jax.Array, reference: Any
    ) -> tuple[Any, Any]:
        """Maps `[K, *P]`, weights `[K]`, reference `[*P]` to `([*P], info)`."""
        ...


class Attack(Protocol):
    """Replaces the messages of malicious clients, and only those."""

    def init(self, messages: Any) -> Any:
        """State of the attack before the first round, or None."""
        ...

    def __call__(
        self, key: Key, state: Any, messages: Any, malicious: jax.Array, reference: Any
    ) -> tuple[Any, Any]:
        """Maps messages `[K, *P]` and `malicious bool[K]` to `(messages, state)`.

        `key` is `[K]`, one key per client: randomness belongs to the client.
        """
        ...


class ServerOptimizer(Protocol):
    """Takes the change that a round made of the server's model for a gradient."""

    def init(self, params: Any) -> Any:
        """Memory before the first round, of a model `[*P]`; without a client axis."""
        ...

    def __call__(self, memory: Any, params: Any, target: Any) -> tuple[Any, Any]:
        """Maps the model and what a round made of it to the next one, and memory."""
        ...


class Participation(Protocol):
    """Chooses the cohort of a round."""

    def cohort_size(self, num_clients: int) -> int:
        """Static number K of cohort members."""
        ...

    def __call__(self, key: Key, num_clients: int) -> jax.Array:
        """Distinct rows `int32[K]`."""
        ...


class Work(Protocol):
    """Draws the budgets of a cohort."""

    def __call__(self, key: Key, client_ids: jax.Array) -> Budget:
        """Budgets `[K]` for clients `int32[K]`; the same for every method."""
        ...


@runtime_checkable
class Specification(Protocol):
    """A frozen, hashable recipe of a federation, whose fields a grid may sweep."""

    seed: int

    def build(self) -> Federation:
        """Builds the federation on the host and places it on the device."""
        ...

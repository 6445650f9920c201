"""The link between an algorithm's round and its cohort."""

from typing import Any, Protocol

import jax

from fedjax_pfl import core
from fedjax_pfl.core import struct

__all__ = ["ClientView", "Link"]


@struct.pytree_dataclass
class ClientView:
    """Client as seen by a function that is mapped over the cohort.

    Attributes:
      key: `[]` key of this client, round and exchange.
      round: `int32[]` round number.
      work: budget of this client.
      data: training examples of this client.
    """

    key: core.Key
    round: jax.Array
    work: core.Budget
    data: core.ClientData


class Link(Protocol):
    """Exchange with the cohort that an algorithm's round may use; made by the process.

    Attributes:
      ctx: key, round, cohort and number of clients.
      work: budgets of the cohort, leading axis K.
      model: the model.
      federation: data of all clients.
    """

    ctx: core.RoundContext
    work: core.Budget
    model: Any
    federation: core.Federation

    def take(self, tree: Any) -> Any:
        """Rows of the cohort, `[N, ...]` to `[K, ...]`."""
        ...

    def put(self, tree: Any, rows: Any) -> Any:
        """Writes rows of the cohort back."""
        ...

    def map(self, fn: Any, rows: Any, shared: Any, *, exchange: int = 0) -> Any:
        """Applies `fn(view, row, shared)` to every member, in any execution mode."""
        ...

    def upload(
        self, state: core.State, uploads: core.Upload, reference: Any
    ) -> tuple[core.State, core.Upload]:
        """Returns what arrives: messages after the attack, non-finite ones dropped."""
        ...

    def store(self, state: core.State, received: core.Upload) -> core.State:
        """Keeps what was received in `state.messages`."""
        ...

    def aggregate(
        self, state: core.State, received: core.Upload, reference: Any
    ) -> tuple[Any, Any]:
        """Aggregates over the cohort or over all, and the aggregator's info."""
        ...

    def step(self, state: core.State, server: Any) -> tuple[core.State, Any]:
        """Takes the server optimizer's step, if there is one, for the new model."""
        ...

    def keep_finite(self, state: core.State, old: Any, new: Any) -> tuple[Any, Any]:
        """Counts rows that are not finite and treats them as the process says."""
        ...

    def info(
        self, client: Any, aggregator: Any, server: Any = None, **floats: Any
    ) -> Any:
        """Forms the round's report: dicts of values, and `floats_up`, `floats_down`."""
        ...

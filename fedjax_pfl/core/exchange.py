"""The link between an algorithm's round and its cohort."""

import dataclasses
from typing import Any, Protocol

import jax
import jax.numpy as jnp

from fedjax_pfl import core
from fedjax_pfl.core import struct

__all__ = ["ClientView", "Link"]


@struct.pytree_dataclass
class ClientView:
    """ONE client at one moment, as its local work sees it.

    Attributes:
      key: `[]` key of this client, round and exchange.
      round: `int32[]` round number, for schedules; None counts as 0.
      data: training examples of this client.
      work: budget of this client; without caps outside of rounds.
      carry: what the client's solver kept from its last round, or None; personal
        parameters and running statistics come with the data.
      steps: `int32[]` local steps that the client took in earlier rounds, where a
        schedule asks for them; None counts as 0.
    """

    key: core.Key
    round: jax.Array
    data: core.ClientData
    work: core.Budget = dataclasses.field(default_factory=core.Budget.unlimited)
    carry: Any = None
    steps: jax.Array | None = None

    def upload(self, message: Any, aux: Any = None) -> core.Upload:
        """Returns the upload of a message, weighted by the client's examples.

        Args:
          message: what an attack may replace; its dtype is that of the weight.
          aux: side information, never attacked.

        Returns:
          The upload of ONE client.
        """
        dtype = jnp.result_type(float, *jax.tree.leaves(message))
        weight = self.data.num_examples.astype(dtype)
        return core.Upload(message=message, weight=weight, aux=aux)


class Link(Protocol):
    """Exchange with the cohort that an algorithm's round may use; made by the process.

    Attributes:
      ctx: key, round, cohort and number of clients.
      work: budgets of the cohort, leading axis K.
      model: the model.
      federation: data of all clients.
      method: makes the algorithm of ONE client, which may have values of its own, from
        its number `int32[]`.
    """

    ctx: core.RoundContext
    work: core.Budget
    model: Any
    federation: core.Federation
    method: Any

    def take(self, tree: Any) -> Any:
        """Rows of the cohort, `[N, ...]` to `[K, ...]`."""
        ...

    def put(self, tree: Any, rows: Any) -> Any:
        """Writes rows of the cohort back."""
        ...

    def map(self, fn: Any, rows: Any, shared: Any, *, exchange: int = 0) -> Any:
        """Applies `fn(view, row, shared)` to every member, in any execution mode."""
        ...

    def train(
        self,
        state: core.State,
        fn: Any,
        own: Any,
        shared: Any,
        reference: Any,
        known: core.Downlink,
    ) -> tuple[core.State, Any, core.Upload, Any]:
        """Runs the exchange of a usual round: work, upload, storage.

        `fn(view, own, client, shared) -> (client, upload, report)` is every member's
        work; its messages are compared about `reference`, and transformed about
        what it and the server have in common, `known`. Returns the state with what
        was received, client rows `[K]`, received uploads, where the message of a
        weight of 0 may be the last one received, and reports.
        """
        ...

    def upload(
        self, state: core.State, uploads: core.Upload, reference: Any
    ) -> tuple[core.State, core.Upload]:
        """Returns what arrives: messages after the attack, non-finite ones dropped."""
        ...

    def store(self, state: core.State, received: core.Upload) -> core.State:
        """Keeps what was received in `state.rows["messages"]`."""
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

    def bytes_up(self, messages: Any) -> int:
        """Counts the bytes of the cohort's messages `[K, *P]` on their way up."""
        ...

    def info(
        self,
        client: Any,
        aggregator: Any,
        server: Any = None,
        *,
        bytes_up: int | jax.Array,
        bytes_down: int | jax.Array,
    ) -> Any:
        """Forms the round's report: dicts of values, and the bytes that were sent.

        A count that is not known before the round is `byte_counts.words` of it.
        """
        ...

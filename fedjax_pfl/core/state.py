"""State of a training, and the messages and reports of a round."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from fedjax_pfl.core import struct
from fedjax_pfl.core.aliases import ClientState, Message, ServerState, Tree
from fedjax_pfl.core.randomness import Key

__all__ = [
    "Budget",
    "Downlink",
    "Members",
    "Population",
    "Report",
    "RoundContext",
    "RoundInfo",
    "State",
    "Upload",
]


@struct.pytree_dataclass
class State:
    """State of a training; owned by the process.

    Every part of a process stores its server state in `memory`, and its state of every
    client in `rows`. Parts without state have no entry.

    Entries of `memory`:

    * `nonfinite`: `int32[]` number of non-finite messages and client states so far.
    * `mean` and `peak`: mean of all clients' messages, updated incrementally (`[*P]`),
      and its largest magnitude `[]` since it was last computed from all messages.
    * `attack`, `optimizer`: state of the attack and of the server optimizer.
    * `past`: for late clients, server states before the latest rounds, round r at row r
      modulo their number.
    * `statistics`: running statistics of a `StatisticsModel` that all clients share.
    * `clip`: `[]` norm to which messages of this round are clipped, if it adapts.
    * `draws`: draws of earlier rounds that later rounds use for their noise.

    Entries of `rows`, which are never sent:

    * `messages`: last received message of every client.
    * `steps`: `int32[N]` local steps of every client so far, for schedules.
    * `carry`: state of local solvers between rounds; personal parameters of a
      `RoleModel`.
    * `transforms`: memory of every transform of messages.
    * `statistics`: running statistics that stay with the clients.

    Attributes:
      round: `int32[]` number of finished rounds.
      key: `[]` key of the run.
      server: state of the method's server; no leaf has a client axis.
      clients: states of the method's clients; every leaf has leading axis N.
      memory: server state of parts, by name.
      rows: client states of parts, by name; every leaf has leading axis N.
    """

    round: jax.Array
    key: Key
    server: ServerState
    clients: ClientState
    memory: dict[str, Any] = dataclasses.field(default_factory=dict)
    rows: dict[str, Any] = dataclasses.field(default_factory=dict)

    def with_memory(self, **entries: Tree) -> "State":
        """Returns the state with other entries of `memory`; None removes one."""
        return dataclasses.replace(self, memory=_merged(self.memory, entries))

    def with_rows(self, **entries: Tree) -> "State":
        """Returns the state with other entries of `rows`; None removes one."""
        return dataclasses.replace(self, rows=_merged(self.rows, entries))

    def of_clients(self) -> dict[str, Any]:
        """Returns all rows of clients by name, with `clients` among them."""
        return {"clients": self.clients, **self.rows}

    def at(self, rows: dict[str, Any] | None) -> "State":
        """Returns the state with other rows, as `of_clients` returns them, or none."""
        clients = None if rows is None else rows["clients"]
        entries = {n: v for n, v in (rows or {}).items() if n != "clients"}
        return dataclasses.replace(self, clients=clients, rows=entries)


def _merged(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """Merges entries; entries that are None are removed."""
    return {name: v for name, v in (old | new).items() if v is not None}


@struct.pytree_dataclass
class Downlink:
    """Broadcast that clients receive.

    Attributes:
      shared: pytree for all members.
      per_client: pytree of rows `[K, ...]`, one per member, or None.
      info: dict of `[]` values for the report, which are not sent.
    """

    shared: Tree
    per_client: Tree = None
    info: Tree = dataclasses.field(default_factory=dict)


@struct.pytree_dataclass
class Upload:
    """Messages that clients send; leading axis K once mapped over the cohort.

    Attributes:
      message: pytree that an attack may replace.
      weight: `[]` honest number of examples; 0 means dropped.
      aux: side information (losses, affinities), never attacked, or None.
      within: `[]` count for adaptive clipping, or None: 1/2 for a message within the
        clip, -1/2 for another, 0 for no message.
    """

    message: Message
    weight: jax.Array
    aux: Tree = None
    within: Tree = None

    def __post_init__(self):
        struct.check_arrays("message", self.message)
        struct.check_arrays("aux", self.aux)


@struct.pytree_dataclass
class Budget:
    """Local work that a cohort member may do; leading axis K once drawn.

    Attributes:
      epochs: `int32[]` cap on local epochs.
      steps: `int32[]` cap on local steps.
      straggler: `bool[]` whether the client is a straggler.
    """

    epochs: jax.Array
    steps: jax.Array
    straggler: jax.Array

    @classmethod
    def unlimited(cls) -> "Budget":
        """Returns the budget of ONE client without caps, for work outside of rounds."""
        many = jnp.asarray(2**30, jnp.int32)
        return cls(epochs=many, steps=many, straggler=jnp.zeros((), bool))


@struct.pytree_dataclass
class Report:
    """A client's report of its local work; leading axis K once mapped over the cohort.

    Attributes:
      values: dict of `[]` values.
      carry: state of its solver for the next round, or None; personal parameters of a
        `RoleModel`.
      steps: `int32[]` local steps, or None if no local solver reports them.
      statistics: running statistics of a `StatisticsModel` after the work, or None.
    """

    values: dict[str, Any]
    carry: Tree = None
    steps: jax.Array | None = None
    statistics: Tree = None

    @classmethod
    def of(cls, report: Tree) -> "Report":
        """Returns a report from a report, or from its values alone."""
        return report if isinstance(report, cls) else cls(values=report)

    def named(self) -> dict[str, Any]:
        """Returns all values by name, the steps among them."""
        steps = {} if self.steps is None else {"client_steps": self.steps}
        return self.values | steps


@struct.pytree_dataclass
class Population:
    """Totals over all clients.

    Attributes:
      num_clients: N.
      num_examples: `int32[]` training examples of all clients.
    """

    num_clients: int = struct.static_field()
    num_examples: jax.Array


@struct.pytree_dataclass
class Members:
    """The members of a round that receives rows of its cohort only.

    Attributes:
      cohort: `int32[K]` rows of the cohort's members in the population.
      population: totals over all clients.
      mean: `[*P]` mean over all clients' messages after this round, or None for methods
        that do not keep one.
      use_mean: `bool[]` whether it replaces the incrementally updated mean.
    """

    cohort: jax.Array
    population: Population
    mean: Tree
    use_mean: jax.Array


@struct.pytree_dataclass
class RoundContext:
    """Context of a round for the hooks of a method.

    Attributes:
      key: `[]` key of the server's own randomness in this round.
      round: `int32[]` round number, from 0.
      cohort: `int32[K]` rows of the cohort's members.
      num_clients: N.
      expected: expected number of participants, by which the server divides if their
        number is secret; else None.
    """

    key: Key
    round: jax.Array
    cohort: jax.Array
    num_clients: int = struct.static_field()
    expected: float | None = struct.static_field(default=None)


@struct.pytree_dataclass
class RoundInfo:
    """Report of a round; stacked over rounds by the driver.

    Attributes:
      cohort: `int32[K]` participants; -1 in empty rows.
      client: pytree of `[K]` values from the clients' updates.
      aggregator: pytree of values from the aggregator.
      server: dict of `[]` values from the server's preparation of the downlink.
      num_nonfinite: `int32[]` non-finite messages and state rows of this round.
      client_diverged: `bool[K]` honest members with a non-finite state, or with a
        non-finite message to a server that takes a mean.
      server_diverged: `bool[]` whether the server's state was not finite.
      bytes_up: `uint32[2]` bytes sent by clients, as `byte_counts.words`.
      bytes_down: `uint32[2]` bytes sent to clients.
    """

    cohort: jax.Array
    client: Tree
    aggregator: Tree
    server: ServerState
    num_nonfinite: jax.Array
    client_diverged: jax.Array
    server_diverged: jax.Array
    bytes_up: jax.Array
    bytes_down: jax.Array

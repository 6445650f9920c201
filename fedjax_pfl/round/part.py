"""A part of a round: one feature, with what it keeps at the server and for clients."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import jax

from fedjax_pfl import core
from fedjax_pfl.core import checks

if TYPE_CHECKING:
    from fedjax_pfl.round.exchange import Exchange

__all__ = ["First", "Part", "Turn", "check_entries", "check_turn"]


@dataclasses.dataclass(frozen=True)
class First:
    """What there is before the first round.

    Attributes:
      model: the model.
      train: examples of K clients, with what these have of the model at first.
      num_clients: N.
      server: the method's first state of the server.
      messages: what the server would have received from them `[K, *P]`, or None.
    """

    model: Any
    train: core.ClientData
    num_clients: int
    server: Any
    messages: Any = None


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Turn:
    """ONE client's turn in an exchange; leading axis K once mapped over the cohort.

    The dicts are by part; `method` stands for the method itself.

    Attributes:
      view: the client; None once its message has left it.
      before: rows that are kept for it, as they were before the turn.
      rows: the same after the turn.
      given: what this client has of the round.
      shared: what all clients have of the round.
      upload: message on its way to the server.
      report: of the client's work.
      notes: what the part remembers until the round ends.
      sums: what is added up over the cohort, and never held side by side.
    """

    view: Any
    before: dict[str, Any]
    rows: dict[str, Any]
    given: dict[str, Any]
    shared: dict[str, Any]
    upload: Any = None
    report: Any = None
    notes: dict[str, Any] = dataclasses.field(default_factory=dict)
    sums: dict[str, Any] = dataclasses.field(default_factory=dict)

    def with_rows(self, **rows: Any) -> Turn:
        """Returns the turn with other rows."""
        return dataclasses.replace(self, rows=self.rows | rows)

    def with_upload(self, **fields: Any) -> Turn:
        """Returns the turn with other fields of its upload."""
        return dataclasses.replace(
            self, upload=dataclasses.replace(self.upload, **fields)
        )

    def noting(self, **notes: Any) -> Turn:
        """Returns the turn with more notes."""
        return dataclasses.replace(self, notes=self.notes | notes)


class Part:
    """A feature of a round. Every hook has a default that does nothing.

    Hooks are called in the order in which they stand here, each of all parts in the
    order of `FederatedProcess.all_parts`. What a part keeps has names of its own in
    `State.memory` and `State.rows`.
    """

    name: str = ""
    """Name among other parts."""

    moved: tuple[str, ...] = ()
    """Entries of `State.rows` that turns change; they are put back after each."""

    divided: tuple[str, ...] = ()
    """Entries of `State.memory` whose leaves have a row per client."""

    def check(self, process: Any, num_clients: int) -> None:
        """Refuses what does not fit together; before anything is traced."""

    def first_rows(self, at: First) -> dict[str, Any]:
        """Returns entries of `State.rows`, `[K, ...]`, before the first round."""
        return {}

    def first_memory(self, at: First, rows: dict[str, Any]) -> dict[str, Any]:
        """Returns entries of `State.memory` before the first round; None for nothing.

        `rows` are those of some clients, as `State.of_clients` returns them.
        """
        return {}

    def begin(self, state: core.State) -> core.State:
        """Returns the state with which the round begins."""
        return state

    def hand_out(
        self, exchange: Exchange, known: core.Downlink | None
    ) -> tuple[Any, Any]:
        """Returns what a turn needs: for every member `[K, ...]`, and for all alike.

        `known` is what members and server have in common, like a message; None where
        the members do not send one.
        """
        return None, None

    def before(self, turn: Turn) -> Turn:
        """Prepares ONE client's work."""
        return turn

    def after(self, turn: Turn) -> Turn:
        """Acts on ONE client's new state and its upload, where the client is."""
        return turn

    def send(self, turn: Turn) -> Turn:
        """Acts on ONE message as it leaves an honest client."""
        return turn

    def arrive(self, turn: Turn) -> Turn:
        """Acts on ONE message at the server, behind the attack."""
        return turn

    def received(
        self, exchange: Exchange, state: core.State, turns: Turn
    ) -> tuple[core.State, Turn]:
        """Acts on the state, once all messages `[K, *P]` of an exchange are there."""
        return state, turns

    def end(
        self,
        exchange: Exchange,
        state: core.State,
        info: core.RoundInfo,
    ) -> tuple[core.State, core.RoundInfo]:
        """Ends the round, which began with `exchange.start`."""
        return state, info

    def encoding(self, encoding: Any) -> Any:
        """Returns the encoding of a message behind the part."""
        return encoding


def check_entries(
    part: Part, new: dict[str, Any], taken: dict[str, Any], count: int | None = None
) -> None:
    """Refuses entries of a state whose names are taken, or without a row per client."""
    name = type(part).__name__
    for entry in new:
        if entry in taken:
            raise checks.InputError(
                f"Expected {name} to keep what it needs by a name of its own, got"
                f" {entry!r}, which another part has."
            )
    shapes = [jax.numpy.shape(leaf) for leaf in jax.tree.leaves(new)]
    if wrong := [s for s in shapes if count is not None and s[:1] != (count,)]:
        raise checks.InputError(
            f"Expected first_rows of {name} to return arrays with a row for each of"
            f" {count} clients, got one of shape {wrong[0]}."
        )


def check_turn(part: Part, new: Turn, old: Turn) -> None:
    """Refuses a turn after which rows of a part are not like those before it."""
    for name in old.rows:
        shapes = [
            jax.tree.map(lambda x: (jax.numpy.shape(x), jax.numpy.result_type(x)), rows)
            for rows in (new.rows[name], old.rows[name])
        ]
        if shapes[0] != shapes[1]:
            raise checks.InputError(
                f"Expected {type(part).__name__} to leave {name!r} of ONE client as it"
                f" was, {shapes[1]}, got {shapes[0]}."
            )

"""A part of a round: one feature, with its state at the server and per client."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import jax

from fedjax_pfl import core
from fedjax_pfl.core import checks

if TYPE_CHECKING:
    from fedjax_pfl.messages import Encoding
    from fedjax_pfl.round.exchange import Exchange
    from fedjax_pfl.round.process import FederatedProcess

__all__ = ["First", "Part", "Turn", "check_entries", "check_turn"]


@dataclasses.dataclass(frozen=True)
class First:
    """The context in which parts create their first state.

    Attributes:
      model: the model.
      train: examples of K clients, with their initial personal parameters.
      num_clients: N.
      server: the method's first state of the server.
      messages: initial messages `[K, *P]`, or None.
    """

    model: core.Model
    train: core.ClientData
    num_clients: int
    server: core.ServerState
    messages: core.Message = None


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Turn:
    """ONE client's turn in an exchange; leading axis K once mapped over the cohort.

    Dictionaries have one entry per part; `method` is the entry of the method.

    Attributes:
      view: the client; None after the client map.
      before: the client's rows before the turn.
      rows: the client's rows after the turn.
      given: input of this client, from `Part.hand_out`.
      shared: input of all clients, from `Part.hand_out`.
      upload: the message.
      report: report of the local work.
      notes: intermediate values of a part, for its later hooks.
      sums: values to be summed over the cohort inside the map.
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

    def with_rows(self, **rows: core.Tree) -> Turn:
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
    """A feature of a round. By default hooks have no effect.

    Hooks run in the order in which they are defined here. Each hook runs for all parts
    in the order of `FederatedProcess.all_parts`. A part stores its state in
    `State.memory` and `State.rows`, under names that no other part uses.
    """

    name: str = ""
    """Name of the part, unique in the process."""

    changed_rows: tuple[str, ...] = ()
    """Entries of `State.rows` that client hooks change."""

    def check(self, process: FederatedProcess, num_clients: int) -> None:
        """Raises an `InputError` if the part does not fit the process."""

    def first_rows(self, at: First) -> dict[str, Any]:
        """Returns entries of `State.rows`, `[K, ...]`, before the first round."""
        return {}

    def first_memory(self, at: First, rows: dict[str, Any]) -> dict[str, Any]:
        """Returns entries of `State.memory` before the first round.

        `rows` are initial rows of some clients, as `State.of_clients` returns them.
        """
        return {}

    def begin(self, state: core.State) -> core.State:
        """Updates the state at the start of a round."""
        return state

    def hand_out(
        self, exchange: Exchange, known: core.Downlink | None
    ) -> tuple[Any, Any]:
        """Returns inputs of the turns: `[K, ...]` per member, and shared ones.

        `known` is the point, like a message, that members and server share; None in an
        exchange without messages.
        """
        return None, None

    def before(self, turn: Turn) -> Turn:
        """Runs before ONE client's local work."""
        return turn

    def after(self, turn: Turn) -> Turn:
        """Runs after ONE client's local work, on its state and its upload."""
        return turn

    def send(self, turn: Turn) -> Turn:
        """Transforms ONE message at an honest client."""
        return turn

    def arrive(self, turn: Turn) -> Turn:
        """Transforms ONE message at the server, after the attack."""
        return turn

    def received(
        self, exchange: Exchange, state: core.State, turns: Turn
    ) -> tuple[core.State, Turn]:
        """Updates the state when all messages `[K, *P]` have arrived."""
        return state, turns

    def end(
        self,
        exchange: Exchange,
        state: core.State,
        info: core.RoundInfo,
    ) -> tuple[core.State, core.RoundInfo]:
        """Updates state and report at the end of the round."""
        return state, info

    def encoding(self, encoding: Encoding) -> Encoding:
        """Returns the encoding of a message after the part."""
        return encoding


def check_entries(
    part: Part, new: dict[str, Any], taken: dict[str, Any], count: int | None = None
) -> None:
    """Checks that entries have unused names, and `count` rows if that is given."""
    name = type(part).__name__
    for entry in new:
        if entry in taken:
            raise checks.InputError(
                f"Expected {name} to store its state under names that no other part"
                f" uses, got {entry!r}."
            )
    shapes = [jax.numpy.shape(leaf) for leaf in jax.tree.leaves(new)]
    if wrong := [s for s in shapes if count is not None and s[:1] != (count,)]:
        raise checks.InputError(
            f"Expected first_rows of {name} to return arrays with a row for each of"
            f" {count} clients, got one of shape {wrong[0]}."
        )


def check_turn(part: Part, new: Turn, old: Turn) -> None:
    """Checks that a hook of ONE client keeps shapes and dtypes of its rows."""
    for name in old.rows:
        shapes = [
            jax.tree.map(lambda x: (jax.numpy.shape(x), jax.numpy.result_type(x)), rows)
            for rows in (new.rows[name], old.rows[name])
        ]
        if shapes[0] != shapes[1]:
            raise checks.InputError(
                f"Expected {type(part).__name__} to keep shapes and dtypes of {name!r}"
                f" of ONE client, {shapes[1]}, got {shapes[0]}."
            )

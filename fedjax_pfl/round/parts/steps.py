"""Numbers of local steps, for schedules of learning rates."""

import dataclasses
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp

from fedjax_pfl import core
from fedjax_pfl.core import checks
from fedjax_pfl.round.part import First, Part, Turn

if TYPE_CHECKING:
    from fedjax_pfl.round.exchange import Exchange

__all__ = ["Steps"]


class Steps(Part):
    """Counts the local steps of clients in rows `steps`, `int32[N]`."""

    name = "steps"

    def first_rows(self, at: First) -> dict[str, Any]:
        """Returns zeros."""
        return {"steps": jnp.zeros(at.train.num_examples.shape, jnp.int32)}

    def hand_out(
        self, exchange: "Exchange", known: core.Downlink | None
    ) -> tuple[Any, Any]:
        """Returns the step counts of the members."""
        return exchange.take(exchange.start.rows["steps"]), None

    def before(self, turn: Turn) -> Turn:
        """Passes the step count to the solver."""
        view = dataclasses.replace(turn.view, steps=turn.given[self.name])
        return dataclasses.replace(turn, view=view)

    def end(
        self, exchange: "Exchange", state: core.State, info: core.RoundInfo
    ) -> tuple[core.State, core.RoundInfo]:
        """Adds the reported steps."""
        if info.client.steps is None:
            raise checks.InputError(
                "Expected a method whose clients train through a local solver with a"
                " schedule of steps, got one with minibatches of its own; add"
                " per_round=True."
            )
        old = state.rows["steps"]
        steps = exchange.take(old) + info.client.steps
        return state.with_rows(steps=exchange.put(old, steps)), info

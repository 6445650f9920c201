"""Local steps of clients, where a schedule of learning rates asks for their number."""

import dataclasses
from typing import Any

import jax.numpy as jnp

from fedjax_pfl import core
from fedjax_pfl.core import checks
from fedjax_pfl.round.part import First, Part, Turn

__all__ = ["Steps"]


class Steps(Part):
    """Counts in rows `steps`, `int32[N]`, the local steps that clients have taken."""

    name = "steps"

    def first_rows(self, at: First) -> dict[str, Any]:
        """Returns no steps."""
        return {"steps": jnp.zeros(at.train.num_examples.shape, jnp.int32)}

    def hand_out(self, exchange: Any, known: core.Downlink | None) -> tuple[Any, Any]:
        """Returns the members' steps."""
        return exchange.take(exchange.start.rows["steps"]), None

    def before(self, turn: Turn) -> Turn:
        """Tells the client's solver."""
        view = dataclasses.replace(turn.view, steps=turn.given[self.name])
        return dataclasses.replace(turn, view=view)

    def end(self, exchange: Any, state: core.State, info: core.RoundInfo) -> Any:
        """Adds the steps that the members report."""
        if info.client.steps is None:
            raise checks.InputError(
                "Expected a method whose clients train through a local solver with a"
                " schedule of steps, got one with minibatches of its own; add"
                " per_round=True."
            )
        old = state.rows["steps"]
        steps = exchange.take(old) + info.client.steps
        return state.with_rows(steps=exchange.put(old, steps)), info

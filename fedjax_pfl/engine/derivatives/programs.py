"""Compiled programs that carry derivatives forward through rounds.

For p fields, tangents `[p, ...]` go beside every floating-point leaf of the states.
`jax.jvp` of a program, vmapped over p directions, makes the rounds themselves once and
only their derivatives p times.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from fedjax_pfl import core
from fedjax_pfl.core import client_map
from fedjax_pfl.engine import evaluation, resident, stacking
from fedjax_pfl.engine.derivatives import fields
from fedjax_pfl.engine.derivatives.objective import Objective
from fedjax_pfl.engine.groups import Plan

__all__ = ["init", "measure", "moving", "segment"]


def moving(tree: Any) -> list[Any]:
    """Returns the floating-point leaves of a tree, which have derivatives."""
    leaves = jax.tree.leaves(tree)
    return [leaf for leaf in leaves if jnp.issubdtype(leaf.dtype, jnp.floating)]


def _moved(tree: Any, floats: list[Any]) -> Any:
    """Returns a tree with other floating-point leaves."""
    rest = iter(floats)
    return jax.tree.map(
        lambda leaf: next(rest) if jnp.issubdtype(leaf.dtype, jnp.floating) else leaf,
        tree,
    )


def _forward(
    fn: Callable[[Any, list[Any]], tuple[Any, Any]],
    values: dict[str, Any],
    floats: list[Any],
    tangents: list[Any],
) -> tuple[Any, Any, Any]:
    """Differentiates a function in the direction of every field.

    Args:
      fn: `(values, floats) -> (output, more)`, of which `more` has no derivative.
      values: `[G]` of the p fields, by name.
      floats: further arguments, each `[...]`.
      tangents: their derivatives, each `[p, ...]`.

    Returns:
      Output, its derivatives `[p, ...]`, and more.
    """
    directions = {
        name: jnp.zeros((len(values), *value.shape), value.dtype).at[number].set(1)
        for number, (name, value) in enumerate(values.items())
    }

    def one(direction: dict[str, Any], tangent: list[Any]):
        return jax.jvp(fn, (values, floats), (direction, tangent), has_aux=True)

    return jax.vmap(one, out_axes=(None, 0, None))(directions, tangents)


@functools.partial(jax.jit, static_argnames=("plan", "names"))
def init(
    plan: Plan,
    names: tuple[str, ...],
    processes: Any,
    keys: Any,
    rows: Any,
    pool: Any,
) -> tuple[core.State, list[Any]]:
    """Makes the states of all points, and their derivatives `[p, G, ...]`."""

    def run(values: dict[str, Any], floats: list[Any]):
        del floats
        states = resident.init(plan, fields.put(processes, values), keys, rows, pool)
        return moving(states), states

    values = fields.taken(processes, names)
    _, tangents, states = _forward(run, values, [], [])
    return states, tangents


@functools.partial(
    jax.jit, static_argnames=("plan", "names"), donate_argnames=("states", "tangents")
)
def segment(
    plan: Plan,
    names: tuple[str, ...],
    processes: Any,
    states: core.State,
    tangents: list[Any],
    rows: Any,
    pool: Any,
    active: jax.Array,
    start: jax.Array,
    num_rounds: jax.Array,
) -> tuple[core.State, list[Any], core.RoundInfo]:
    """Runs one segment as `resident.segment` does, and moves the derivatives along."""

    def run(values: dict[str, Any], floats: list[Any]):
        changed = fields.put(processes, values)
        before = _moved(states, floats)
        limits = (active, start, num_rounds)
        after, reports = resident.segment(plan, changed, before, rows, pool, *limits)
        return moving(after), (after, reports)

    values = fields.taken(processes, names)
    _, tangents, (states, reports) = _forward(run, values, moving(states), tangents)
    return states, tangents, reports


@functools.partial(jax.jit, static_argnames=("plan", "names", "objective"))
def measure(
    plan: Plan,
    names: tuple[str, ...],
    objective: Objective,
    processes: Any,
    states: core.State,
    tangents: list[Any],
    rows: Any,
    pool: Any,
) -> tuple[jax.Array, jax.Array]:
    """Returns the objective `[G]`, and its derivatives `[p, G]`."""

    def one(row: tuple[Any, ...], pool: Any) -> jax.Array:
        process, state, own = row
        federation = stacking.join(own, pool)
        members = plan.schedule.members(process, state, federation.num_clients)
        metrics = evaluation.evaluate(
            process,
            state,
            plan.model,
            federation,
            data=(objective.data,),
            members=members,
        )[0]
        kinds = evaluation.predictor_names(process, state, plan.model, federation)
        if members is None:
            members = jnp.arange(federation.num_clients, dtype=jnp.int32)
        count = getattr(federation, objective.data).num_examples
        counted = ((count > 0) & ~federation.malicious)[members]
        values = metrics[objective.metric][kinds.index(objective.model), 0]
        return objective.of(values, members, counted)

    def run(values: dict[str, Any], floats: list[Any]):
        changed, now = fields.put(processes, values), _moved(states, floats)
        measured = client_map.map_clients(one, (changed, now, rows), pool, plan.points)
        return measured, None

    values = fields.taken(processes, names)
    value, slope, _ = _forward(run, values, moving(states), tangents)
    return value, slope

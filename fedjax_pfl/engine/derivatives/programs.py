"""Compiled programs that carry derivatives through rounds, forward or back.

For p fields, tangents `[p, ...]` go with every floating-point leaf of the states.
`jax.jvp` of a program, vmapped over p directions, computes the rounds once and only
their derivatives p times. Derivatives in many values go back through the rounds.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from fedjax_pfl import core
from fedjax_pfl.core import client_map, client_rows, loops
from fedjax_pfl.engine import evaluation, resident, stacking
from fedjax_pfl.engine.derivatives import fields
from fedjax_pfl.engine.derivatives.objective import Objective
from fedjax_pfl.engine.groups import Plan

__all__ = [
    "backward",
    "init",
    "kept_bytes",
    "measure",
    "measured",
    "with_floats",
    "moving",
    "segment",
]


def moving(tree: Any) -> list[Any]:
    """Returns the floating-point leaves of a tree, which have derivatives."""
    leaves = jax.tree.leaves(tree)
    return [leaf for leaf in leaves if jnp.issubdtype(leaf.dtype, jnp.floating)]


def with_floats(tree: Any, floats: list[Any]) -> Any:
    """Returns a tree with other floating-point leaves; see `moving`."""
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
    """Returns the output of `fn`, its derivatives `[p, ...]`, and further values."""
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
        first_states = with_floats(states, floats)
        parts = (plan, changed, first_states, rows, pool)
        after, reports = resident.segment(*parts, active, start, num_rounds)
        return moving(after), (after, reports)

    values = fields.taken(processes, names)
    _, tangents, (states, reports) = _forward(run, values, moving(states), tangents)
    return states, tangents, reports


def measured(
    plan: Plan,
    objective: Objective,
    process: Any,
    state: core.State,
    federation: core.Federation,
) -> jax.Array:
    """Computes the objective `[]` of one point."""
    members = plan.schedule.members(process, state, federation.num_clients)
    metrics = evaluation.evaluate(
        process, state, plan.model, federation, data=(objective.data,), members=members
    )[0]
    kinds = evaluation.predictor_names(process, state, plan.model, federation)
    if members is None:
        members = jnp.arange(federation.num_clients, dtype=jnp.int32)
    count = getattr(federation, objective.data).num_examples
    counted = ((count > 0) & ~federation.malicious)[members]
    values = metrics[objective.metric][kinds.index(str(objective.model)), 0]
    return objective.of(values, members, counted)


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
        process, state, row_data = row
        return measured(plan, objective, process, state, stacking.join(row_data, pool))

    def run(values: dict[str, Any], floats: list[Any]):
        changed, now = fields.put(processes, values), with_floats(states, floats)
        return client_map.map_clients(
            one, (changed, now, rows), pool, plan.points
        ), None

    values = fields.taken(processes, names)
    value, slope, _ = _forward(run, values, moving(states), tangents)
    return value, slope


def _rounds(
    plan: Plan,
    process: Any,
    federation: core.Federation,
    pieces: tuple[int, int],
    state: core.State,
) -> core.State:
    """Runs pieces of rounds; if several, each is run again on the way back."""

    def step(state: core.State, _: None) -> tuple[core.State, None]:
        return process.round(state, plan.model, federation, plan.execution)[0], None

    def piece(state: core.State, _: None = None) -> tuple[core.State, None]:
        return lax.scan(step, state, length=pieces[1])

    if pieces[0] == 1:
        return piece(state)[0]
    return lax.scan(jax.checkpoint(piece), state, length=pieces[0])[0]


@functools.partial(jax.jit, static_argnames=("plan", "names", "objective", "pieces"))
def backward(
    plan: Plan,
    names: tuple[str, ...],
    objective: Objective,
    pieces: tuple[int, int],
    processes: Any,
    keys: Any,
    rows: Any,
    pool: Any,
) -> tuple[jax.Array, dict[str, jax.Array]]:
    """Returns the objective `[G]` and its derivatives, going back through `pieces`."""

    def one(row: tuple[Any, ...], pool: Any):
        process, key, row_data = row
        federation = stacking.join(row_data, pool)

        def last(values: dict[str, Any]) -> jax.Array:
            changed = fields.put(process, values)
            state = changed.init(key, plan.model, federation)
            state = _rounds(plan, changed, federation, pieces, state)
            return measured(plan, objective, changed, state, federation)

        return jax.value_and_grad(last)(fields.taken(process, names))

    with loops.reversible():
        return client_map.map_clients(one, (processes, keys, rows), pool, plan.points)


def kept_bytes(
    plan: Plan,
    names: tuple[str, ...],
    processes: Any,
    keys: Any,
    rows: Any,
    pool: Any,
) -> tuple[int, int, int]:
    """Counts the bytes that `backward` stores for one point, from shapes."""

    def kept(num_rounds: int, row: tuple[Any, ...], pool: Any) -> tuple[Any, Any]:
        process, key, row_data = row
        federation = stacking.join(row_data, pool)

        def last(values: dict[str, Any]) -> list[Any]:
            changed = fields.put(process, values)
            state = changed.init(key, plan.model, federation)
            state = _rounds(plan, changed, federation, (1, num_rounds), state)
            return moving(state)

        return jax.vjp(last, fields.taken(process, names))

    row = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), (processes, keys, rows)
    )

    def sizes(num_rounds: int, *, keeps_work: bool = False) -> tuple[int, int]:
        with loops.reversible(keeps_work=keeps_work):
            shapes = jax.eval_shape(functools.partial(kept, num_rounds), row, pool)
        return client_rows.num_bytes(shapes[0]), client_rows.num_bytes(shapes[1])

    # Differences cancel arrays that no round stores, such as examples.
    (state, one), (_, two), (_, steps) = sizes(1), sizes(2), sizes(1, keeps_work=True)
    return state, two - one, max(steps - one, 0)

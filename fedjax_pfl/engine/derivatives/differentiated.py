"""Compiled programs that carry derivatives through rounds, forward or back.

For p fields, tangents `[p, ...]` go with every floating-point leaf of the states.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from fedjax_pfl import core
from fedjax_pfl.core import client_rows, loops
from fedjax_pfl.engine import evaluation, resident, stacking
from fedjax_pfl.engine.derivatives import fields
from fedjax_pfl.engine.derivatives.objective import Objective
from fedjax_pfl.engine.groups import Plan
from fedjax_pfl.round.process import FederatedProcess

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

_MANY = 1_000_003
"""Rounds whose stored bytes are counted, from shapes: no other axis is as long."""


def moving(tree: core.Tree) -> list[Any]:
    """Returns the floating-point leaves of a tree, which have derivatives."""
    leaves = jax.tree.leaves(tree)
    return [leaf for leaf in leaves if jnp.issubdtype(leaf.dtype, jnp.floating)]


def with_floats(tree: core.Tree, floats: list[Any]) -> core.Tree:
    """Returns a tree with other floating-point leaves; see `moving`."""
    rest = iter(floats)
    return jax.tree.map(
        lambda leaf: next(rest) if jnp.issubdtype(leaf.dtype, jnp.floating) else leaf,
        tree,
    )


def _forward(
    fn: Callable[[Any, Any], tuple[Any, Any]],
    names: tuple[str, ...],
    processes: FederatedProcess,
    states: core.State | None,
    tangents: list[jax.Array],
) -> tuple[Any, Any, Any]:
    """Returns the output of `fn`, its derivatives `[p, ...]`, and further values."""
    values = fields.taken(processes, names)

    def run(values: dict[str, jax.Array], floats: list[jax.Array]) -> tuple[Any, Any]:
        return fn(fields.put(processes, values), with_floats(states, floats))

    directions = {
        name: jnp.zeros((len(values), *value.shape), value.dtype).at[number].set(1)
        for number, (name, value) in enumerate(values.items())
    }

    def one(direction: dict[str, jax.Array], tangent: list[jax.Array]):
        at = (values, moving(states))
        return jax.jvp(run, at, (direction, tangent), has_aux=True)

    # The rounds depend on no direction, so vmap computes them once.
    return jax.vmap(one, out_axes=(None, 0, None))(directions, tangents)


@functools.partial(jax.jit, static_argnames=("plan", "names"))
def init(
    plan: Plan,
    names: tuple[str, ...],
    processes: FederatedProcess,
    keys: core.Key,
    rows: core.Tree,
    pool: core.Federation,
) -> tuple[core.State, list[Any]]:
    """Makes the states of all points, and their derivatives `[p, G, ...]`."""

    def run(processes: FederatedProcess, _: None):
        states = resident.init(plan, processes, keys, rows, pool)
        return moving(states), states

    _, tangents, states = _forward(run, names, processes, None, [])
    return states, tangents


@functools.partial(
    jax.jit, static_argnames=("plan", "names"), donate_argnames=("states", "tangents")
)
def segment(
    plan: Plan,
    names: tuple[str, ...],
    processes: FederatedProcess,
    states: core.State,
    tangents: list[Any],
    rows: core.Tree,
    pool: core.Federation,
    active: jax.Array,
    start: jax.Array,
    num_rounds: jax.Array,
) -> tuple[core.State, list[Any], core.RoundInfo]:
    """Runs one segment as `resident.segment` does, and moves the derivatives along."""

    def run(processes: FederatedProcess, states: core.State):
        parts = (plan, processes, states, rows, pool)
        after, reports = resident.segment(*parts, active, start, num_rounds)
        return moving(after), (after, reports)

    _, tangents, (states, reports) = _forward(run, names, processes, states, tangents)
    return states, tangents, reports


def measured(
    plan: Plan,
    objective: Objective,
    process: FederatedProcess,
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
    processes: FederatedProcess,
    states: core.State,
    tangents: list[Any],
    rows: core.Tree,
    pool: core.Federation,
) -> tuple[jax.Array, jax.Array]:
    """Returns the objective `[G]`, and its derivatives `[p, G]`."""
    one = functools.partial(measured, plan, objective)

    def run(processes: FederatedProcess, states: core.State):
        return resident.map_points(one, (processes, states), rows, pool, plan), None

    value, slope, _ = _forward(run, names, processes, states, tangents)
    return value, slope


def _trained(
    plan: Plan,
    process: FederatedProcess,
    key: core.Key,
    federation: core.Federation,
    pieces: tuple[int, int],
) -> core.State:
    """Runs pieces of rounds of ONE point; if several, each again on the way back."""

    def step(state: core.State, _: None) -> tuple[core.State, None]:
        return process.round(state, plan.model, federation, plan.execution)[0], None

    def piece(state: core.State, _: None = None) -> tuple[core.State, None]:
        return lax.scan(step, state, length=pieces[1])

    state = process.init(key, plan.model, federation)
    if pieces[0] == 1:
        return piece(state)[0]
    return lax.scan(jax.checkpoint(piece), state, length=pieces[0])[0]


@functools.partial(jax.jit, static_argnames=("plan", "names", "objective", "pieces"))
def backward(
    plan: Plan,
    names: tuple[str, ...],
    objective: Objective,
    pieces: tuple[int, int],
    processes: FederatedProcess,
    keys: core.Key,
    rows: core.Tree,
    pool: core.Federation,
) -> tuple[jax.Array, dict[str, jax.Array]]:
    """Returns the objective `[G]` and its derivatives, going back through `pieces`."""

    def one(process: FederatedProcess, key: core.Key, federation: core.Federation):
        def last(values: dict[str, jax.Array]) -> jax.Array:
            changed = fields.put(process, values)
            state = _trained(plan, changed, key, federation, pieces)
            return measured(plan, objective, changed, state, federation)

        return jax.value_and_grad(last)(fields.taken(process, names))

    with loops.reversible():
        return resident.map_points(one, (processes, keys), rows, pool, plan)


def kept_bytes(
    plan: Plan,
    names: tuple[str, ...],
    processes: FederatedProcess,
    keys: core.Key,
    rows: core.Tree,
    pool: core.Federation,
) -> tuple[int, int, int]:
    """Counts the bytes that `backward` stores for one point, from shapes."""

    def kept(num_rounds: int, row: tuple[Any, ...], pool: Any) -> tuple[Any, Any]:
        process, key, row_data = row
        federation = stacking.join(row_data, pool)

        def last(values: dict[str, jax.Array]) -> list[jax.Array]:
            changed = fields.put(process, values)
            return moving(_trained(plan, changed, key, federation, (1, num_rounds)))

        return jax.vjp(last, fields.taken(process, names))

    row = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), (processes, keys, rows)
    )

    def sizes(*, keeps_work: bool = False) -> tuple[int, int, int]:
        with loops.reversible(keeps_work=keeps_work):
            shapes = jax.eval_shape(functools.partial(kept, _MANY), row, pool)
        # What rounds store has them as its first axis; other arrays, such as examples,
        # are no part of a round.
        leaves = jax.tree.leaves(shapes[1])
        stored = [leaf for leaf in leaves if leaf.shape[:1] == (_MANY,)]
        of_round = client_rows.num_bytes(stored) // _MANY
        rest = client_rows.num_bytes(shapes[1]) - client_rows.num_bytes(stored)
        return client_rows.num_bytes(shapes[0]), of_round, rest + of_round

    (state, one, whole), (*_, steps) = sizes(), sizes(keeps_work=True)
    return state, one, max(steps - whole, 0)

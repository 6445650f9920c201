"""The programs of a group of grid points: compiled once, whatever their values are."""

import dataclasses
import functools
import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from fedjax_pfl import core
from fedjax_pfl.core import client_map, client_rows, sharding
from fedjax_pfl.engine import evaluation as evaluations
from fedjax_pfl.engine import schedule, stacking, trained_parameters

__all__ = [
    "Plan",
    "evaluate",
    "forget_if_many",
    "init",
    "loop_segment",
    "members",
    "segment",
    "snapshot",
    "trained",
]

_LIMIT = Path("/proc/sys/vm/max_map_count")


@dataclasses.dataclass(frozen=True)
class Plan:
    """Static part of a compiled group.

    Attributes:
      model: the model, given the shapes of the data.
      execution: how the map over clients is run.
      schedule: what is evaluated when; a segment lies between two evaluations.
      diagnostics: whether the algorithm's diagnostics are computed.
      points_per_chunk: grid points vmapped together, on each device.
      stops: whether points may end early.
      point_devices: devices that share the points; where there are several, they do not
        share clients.
    """

    model: Any
    execution: sharding.Execution
    schedule: schedule.Schedule
    diagnostics: bool
    points_per_chunk: int
    stops: bool
    point_devices: int = 1

    @property
    def points(self) -> sharding.Execution:
        """Execution mode of the map over points."""
        return sharding.Execution(
            mode="shard" if self.point_devices > 1 else "chunk",
            chunk_size=self.points_per_chunk,
            num_devices=self.point_devices,
        )

    def __str__(self) -> str:
        shared = f", points on {self.point_devices} devices"
        return str(self.execution) + (shared if self.point_devices > 1 else "")


def _map_points(
    fn: Callable[[Any, Any], Any], rows: Any, shared: Any, plan: Plan
) -> Any:
    """Applies a function of one grid point to all; a single point is not vmapped."""
    return client_map.map_clients(fn, rows, shared, plan.points)


@functools.partial(jax.jit, static_argnames="plan")
def init(plan: Plan, processes: Any, keys: Any, rows: Any, pool: Any) -> core.State:
    """States of all points; compiled, so that no two leaves share a buffer."""

    def one(row, pool):
        process, key, fields = row
        return process.init(key, plan.model, stacking.join(fields, pool))

    return _map_points(one, (processes, keys, rows), pool, plan)


@functools.partial(jax.jit, static_argnames="plan", donate_argnames="states")
def segment(
    plan: Plan,
    processes: Any,
    states: Any,
    rows: Any,
    pool: Any,
    active: jax.Array,
    start: jax.Array,
    num_rounds: jax.Array,
) -> tuple[core.State, core.RoundInfo]:
    """Runs one segment of the active points; others stay as they are.

    Reports of rounds past `num_rounds` are zeros.
    """

    def one(row, shared):
        process, before, is_active, fields = row
        pool, start, num_rounds = shared
        federation = stacking.join(fields, pool)

        @functools.partial(jax.jit, inline=True)  # traced once, not twice
        def run(process, state, federation):
            return process.round(state, plan.model, federation, plan.execution)

        def step(number, carry):
            state, reports = carry
            state, report = run(process, state, federation)
            reports = jax.tree.map(
                lambda r, new: lax.dynamic_update_index_in_dim(r, new, number, 0),
                reports,
                report,
            )
            return state, reports

        length = plan.schedule.segment
        reports = jax.tree.map(
            lambda s: jnp.zeros((length, *s.shape), s.dtype),
            jax.eval_shape(run, process, before, federation)[1],
        )
        # The round number is the same for all points: as an unbatched value it keeps
        # the conditionals on it conditionals under vmap.
        state = dataclasses.replace(before, round=start)
        # Not a scan of rounds that are masked at the end: the conditional would copy
        # the states of all clients in every round.
        count = jnp.minimum(num_rounds - start, length)
        after, info = lax.fori_loop(0, count, step, (state, reports))
        if plan.stops:
            after = jax.tree.map(lambda a, b: jnp.where(is_active, a, b), after, before)
        return after, info

    mapped = (processes, states, active, rows)
    return _map_points(one, mapped, (pool, start, num_rounds), plan)


@functools.partial(jax.jit, static_argnames=("plan", "data"))
def evaluate(
    plan: Plan,
    data: tuple[str, ...],
    processes: Any,
    states: Any,
    rows: Any,
    pool: Any,
) -> Any:
    """Evaluated clients (None for all), metrics and diagnostics."""

    def one(row, pool):
        process, state, fields = row
        federation = stacking.join(fields, pool)
        members = plan.schedule.members(process, state, federation.num_clients)
        metrics, diagnostics = evaluations.evaluate(
            process,
            state,
            plan.model,
            federation,
            data=data,
            members=members,
            diagnostics=plan.diagnostics,
        )
        return members, metrics, diagnostics

    return _map_points(one, (processes, states, rows), pool, plan)


@functools.partial(jax.jit, static_argnames="plan")
def snapshot(plan: Plan, processes: Any, states: Any, rows: Any, pool: Any):
    """Whom each client would learn from, and its series, where there are such."""

    def one(row, pool):
        process, state, fields = row
        federation = stacking.join(fields, pool)
        found = evaluations.collaboration(process, state, federation)
        series = evaluations.courses(process, state, plan.model, federation)
        return found | ({"series": series} if series else {})

    return _map_points(one, (processes, states, rows), pool, plan)


@functools.partial(jax.jit, static_argnames="plan")
def members(
    plan: Plan, point: jax.Array, processes: Any, states: Any, rows: Any
) -> jax.Array:
    """Rows `int32[K]` of the clients that are evaluated of one point."""
    process, state = client_rows.take((processes, states), point)
    count = rows["malicious"].shape[1]
    chosen = plan.schedule.members(process, state, count)
    return jnp.arange(count, dtype=jnp.int32) if chosen is None else chosen


@functools.partial(jax.jit, static_argnames=("plan", "names"))
def trained(
    plan: Plan,
    names: tuple[str, ...],
    point: jax.Array,
    members: jax.Array,
    processes: Any,
    states: Any,
    rows: Any,
    pool: Any,
) -> dict[str, Any]:
    """Returns parameters `[K, *P]` of predictors, for clients `int32[K]`."""
    process, state, fields = client_rows.take((processes, states, rows), point)
    federation = stacking.join(fields, pool)
    return trained_parameters.networks(
        process, state, plan.model, federation, members, names
    )


def loop_segment(plan, processes, states, rows, pool, active, start, num_rounds):
    """The reference: Python loops over points, rounds and clients, nothing compiled."""
    outputs = []
    for point in range(jax.tree.leaves(rows)[0].shape[0]):
        process, state, fields = client_rows.take(
            (processes, states, rows), jnp.asarray(point)
        )
        before, state = state, dataclasses.replace(state, round=start)
        federation, reports = stacking.join(fields, pool), []
        with jax.disable_jit():
            for _ in range(min(plan.schedule.segment, int(num_rounds - start))):
                state, info = process.round(
                    state, plan.model, federation, plan.execution
                )
                reports.append(info)
        empty = jax.tree.map(jnp.zeros_like, reports[-1])
        reports += [empty] * (plan.schedule.segment - len(reports))
        after = state if active[point] else before
        outputs.append((after, stacking.stack(reports)))
    return stacking.stack(outputs)


def forget_if_many() -> None:
    """Drops all compiled programs where they have used half of what Linux allows.

    On a CPU each program maps memory hundreds of times, of which a process may have
    some 65,000: without this, XLA kills a process of about 50 groups.
    """
    try:
        allowed = int(_LIMIT.read_text())
        with open("/proc/self/maps", "rb") as maps:
            used = sum(1 for _ in maps)
    except OSError:  # another system, without the limit
        return
    if 2 * used > allowed:
        jax.clear_caches()
        gc.collect()

"""The trainer that keeps all clients on the device, and its compiled programs.

Each program is compiled once for a group of grid points, for any of their values.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from fedjax_pfl import core
from fedjax_pfl.core import (
    checks,
    client_map,
    client_rows,
    divided_examples,
    sharding,
)
from fedjax_pfl.engine import (
    cost,
    evaluation,
    kept_programs,
    layout,
    programs,
    stacking,
    trained_parameters,
)
from fedjax_pfl.engine.groups import Plan, PlannedGroup
from fedjax_pfl.engine.recorder import Recorder
from fedjax_pfl.results import checkpoint
from fedjax_pfl.round.process import FederatedProcess

__all__ = [
    "Resident",
    "evaluate",
    "gradients",
    "init",
    "loop_segment",
    "map_points",
    "members",
    "rounds",
    "segment",
    "snapshot",
    "trained",
    "unseen",
]

_SNAPSHOT: programs.Name = ("snapshot",)
_UNSEEN: programs.Name = ("unseen",)


class Resident:
    """All points of a group with all their clients on the device; a `Trainer`."""

    extra_shapes: Any = ()

    def __init__(
        self,
        planned: PlannedGroup,
        store: checkpoint.Store | None = None,
        *,
        are_shapes: bool = False,
    ):
        """Places the data, without compiling; `are_shapes` is for costs only."""
        plan = planned.plan
        self.planned, self.programs = planned, programs.Programs(self._program)
        self._place_of = np.argsort(planned.order)  # of a point in the programs
        federations = layout.federations(planned, are_shapes=are_shapes)
        if are_shapes:
            federations = _shapes_of(federations)
        processes, keys, rows, pool = layout.start(planned, federations)
        processes, pool = self._placed_points(processes), self._placed_pool(pool)
        self.fixed = (processes, self._placed(rows), pool)  # of all programs but `init`
        self.start = (processes, self._placed_points(keys), *self.fixed[1:])
        self.like = self._placed_states(
            kept_programs.Program(init, (plan,), self.start).shapes()
        )
        # Clients that never train are few, if any: all devices have them.
        self.unseen = self._placed_points(layout.unseen_rows(planned, federations))
        jax.block_until_ready((self.start, self.fixed))  # memory is theirs, not XLA's
        if are_shapes:
            return
        self.execution = str(plan)
        self.recorder = Recorder(planned, planned.group.described)
        # How points are vmapped changes the rounding, and so the bits of a continued
        # run.
        self.identity = {
            "points_per_chunk": plan.points_per_chunk,
            "alike": plan.alike,
            "diagnostics": plan.diagnostics,
        }
        if store is not None:
            self.identity["data, seeds and settings"] = layout.digest(planned)

    @classmethod
    def check(cls, planned: PlannedGroup) -> PlannedGroup:
        """Refuses a group whose arrays alone will not fit; lays its data out."""
        cost.check_arrays(cls(planned, are_shapes=True))
        return layout.laid_out(planned)

    def changed(self, **fields: Any) -> "Resident":
        """Returns a trainer of shapes, for the group with other fields."""
        return Resident(dataclasses.replace(self.planned, **fields), are_shapes=True)

    def _placed(self, tree: core.Tree) -> core.Tree:
        """Places leaves `[G, N, ...]` on the devices that map points or clients."""
        plan, group = self.planned.plan, self.planned.group
        # Devices share points or clients, never both.
        if plan.points.mode == "shard":
            return sharding.shard_rows(tree, len(group.points), plan.points)
        if plan.execution.mode != "shard":
            return tree
        count = self.planned.num_clients
        return sharding.shard_rows(tree, count, plan.execution, axis=1)

    def _placed_states(self, states: core.State) -> core.State:
        """Places states of points on the devices that map points or clients."""
        execution = self.planned.plan.execution
        if execution.mode != "shard":
            return self._placed(states)
        return layout.placed_states(states, self.planned.num_clients, execution)

    def _placed_points(self, tree: core.Tree) -> core.Tree:
        """Places leaves `[G, ...]` without rows of the N clients with their points."""
        if self.planned.plan.execution.mode == "shard":
            return sharding.replicate(tree, self.planned.plan.execution)
        return self._placed(tree)

    def _placed_pool(self, pool: core.Federation) -> core.Federation:
        """Replicates the pool on all devices, except for divided examples."""
        plan = self.planned.plan
        for execution in (plan.execution, plan.points):
            if execution.mode == "shard":
                return divided_examples.placed(pool, execution)
        return pool

    def _names(self) -> list[programs.Name]:
        """Returns the names of the programs that a training runs."""
        plan, num_rounds = self.planned.plan, self.planned.options.num_rounds
        # A program for each combination of data that are due together.
        starts = range(0, num_rounds, plan.schedule.segment)
        together = {plan.schedule.due(done, False) for done in starts}
        together.add(plan.schedule.data)
        names: list[programs.Name] = [("init",)]
        names += [("segment",)] * (plan.execution.mode != "loop")
        names += [("evaluate", *data) for data in sorted(together)]
        names += [_UNSEEN] * (self.unseen is not None)
        return names + [_SNAPSHOT] * self._has_snapshot

    def _program(self, name: programs.Name) -> kept_programs.Program:
        """Returns a program with its arguments."""
        function, static, arguments = self._call(name)
        return kept_programs.Program(function, (self.planned.plan, *static), arguments)

    def _call(self, name: programs.Name) -> tuple[Any, ...]:
        """Returns function, static arguments after the plan, and arguments."""
        arguments, (kind, *data) = self._with(self.like), name
        if kind == "init":
            return init, (), self.start
        if kind == "segment":
            active = np.ones(len(self.planned.group.points), bool)
            return segment, (), (*arguments, active, *rounds())
        if kind == "evaluate":
            return evaluate, (tuple(data),), arguments
        if name == _UNSEEN:
            return unseen, (), (*arguments, self.unseen)
        return snapshot, (), arguments

    def _with(self, states: core.State) -> tuple[Any, ...]:
        """Returns processes, states, rows and pool, as the programs take them."""
        processes, rows, pool = self.fixed
        return processes, states, rows, pool

    def compile(self) -> None:
        """Lowers all programs and starts to compile them."""
        for name in self._names():
            self.programs.begin(name)

    def compiled(self) -> dict[programs.Name, jax.stages.Compiled]:
        """Returns all programs by name once they are compiled."""
        self.compile()
        return {name: self.programs[name] for name in self._names()}

    @property
    def compile_seconds(self) -> float:
        """Seconds of lowering, and of waiting for the compiler."""
        return self.programs.seconds

    def check_fits(self) -> None:
        """Refuses a group that will not fit into memory; waits for the compiler."""
        if self.planned.options.memory_limit != "none":
            cost.check(self)

    def begin(self) -> None:
        """Makes the first states."""
        self.states = self._placed_states(self.programs[("init",)](*self.start))

    def restore(self, progress: checkpoint.Progress) -> None:
        """Places the states of a checkpoint."""
        self.states = self._placed_states(progress.states)

    def saved(self) -> tuple[core.State, dict[str, np.ndarray], checkpoint.Own]:
        """Returns the states; a checkpoint needs no further arrays."""
        return self.states, {}, {}

    def advance(self, active: np.ndarray, done: int, count: int) -> core.RoundInfo:
        """Runs one segment; leaves of the reports are `[G, segment, ...]`."""
        return self.by_point(self.run(active, done, count))

    def run(self, active: np.ndarray, done: int, count: int) -> core.RoundInfo:
        """Runs one segment; reports stay on the devices, in the programs' order."""
        run: Any = functools.partial(loop_segment, self.planned.plan)
        if self.planned.plan.execution.mode != "loop":
            run = self.programs[("segment",)]  # `segment` below, compiled
        limits = (active[self.planned.order], *rounds(done, done + count))
        states, reports = run(*self._with(self.states), *limits)
        # The program expects the placement of first and restored states.
        self.states = self._placed_states(states)
        return reports

    def by_point(self, tree: core.Tree) -> core.Tree:
        """Brings leaves `[G, ...]` to the host, in the order of the group's points."""
        return jax.tree.map(lambda leaf: leaf[self._place_of], sharding.fetch(tree))

    def evaluate(self, data: tuple[str, ...], *, is_last: bool) -> tuple[Any, ...]:
        """Measures all points; snapshots only at the end, or if there are clusters."""
        arguments = self._with(self.states)
        measurements = self.programs[("evaluate", *data)](*arguments)
        has_clusters = self.planned.group.federations[0].cluster is not None
        # Weights of all pairs are large; only shares of clusters are recorded over
        # time.
        is_wanted = self._has_snapshot and (is_last or has_clusters)
        pairs = self.programs[_SNAPSHOT](*arguments) if is_wanted else {}
        if is_last and self.unseen is not None:
            pairs = pairs | {"unseen": self.programs[_UNSEEN](*arguments, self.unseen)}
        return self.by_point((*measurements, pairs))

    def measured(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Returns shapes of the metrics on all data, and of `snapshot`."""
        everything = ("evaluate", *self.planned.plan.schedule.data)
        return self.programs.shapes(everything)[1], self.programs.shapes(_SNAPSHOT)

    @functools.cached_property
    def _has_snapshot(self) -> bool:
        """Returns whether `snapshot` returns anything."""
        return bool(jax.tree.leaves(self.measured()[1]))

    def members(self, point: int) -> np.ndarray:
        """Returns rows `int32[K]` of the clients of a point that are evaluated now."""
        processes, rows, _ = self.fixed
        number = np.asarray(self._place_of[point], np.int32)
        return sharding.fetch(
            members(self.planned.plan, number, processes, self.states, rows)
        )

    def trained(
        self, point: int, members: np.ndarray, names: tuple[str, ...]
    ) -> dict[str, Any]:
        """Returns trained parameters `[K, *P]` of predictors of a point's clients."""
        place = np.asarray(self._place_of[point], np.int32)
        numbers = (place, np.asarray(members, np.int32))
        arguments = self._with(self.states)
        return sharding.fetch(trained(self.planned.plan, names, *numbers, *arguments))

    def close(self) -> None:
        """Ends the compiler's threads once they are done."""
        self.programs.close()


def _shapes_of(federations: Sequence[core.Federation]) -> list[core.Federation]:
    """Returns shapes of arrays; parts that share an array share its shape."""
    shapes: dict[int, jax.ShapeDtypeStruct] = {}

    def shape(leaf: jax.Array | np.ndarray) -> jax.ShapeDtypeStruct:
        new = jax.ShapeDtypeStruct(leaf.shape, leaf.dtype)
        return shapes.setdefault(id(leaf), new)

    return jax.tree.map(shape, list(federations))


def rounds(start: int = 0, num_rounds: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Returns round numbers as host arrays, which all processes have."""
    return np.asarray(start, np.int32), np.asarray(num_rounds, np.int32)


def map_points(
    fn: Callable[..., Any],
    points: tuple[core.Tree, ...],
    rows: core.Tree,
    pool: core.Federation,
    plan: Plan,
    *shared: core.Tree,
) -> core.Tree:
    """Maps `fn(*point, federation, *shared)` over points; one alone is not vmapped."""

    def one(row: tuple[Any, ...], shared: tuple[Any, ...]) -> core.Tree:
        *point, fields = row
        pool, *others = shared
        return fn(*point, stacking.join(fields, pool), *others)

    return client_map.map_clients(one, (*points, rows), (pool, *shared), plan.points)


@functools.partial(jax.jit, static_argnames="plan")
def gradients(
    plan: Plan,
    process: FederatedProcess,
    key: core.Key,
    federation: core.Federation,
) -> jax.Array:
    """Counts gradients `float32[]` of single examples in a first round; losses 1/3."""
    # Only the count is computed: the compiler removes the work that uses the gradients.
    state = process.init(key, plan.model, federation)
    _, info = process.round(state, plan.model, federation, plan.execution)
    if "gradient_evaluations" not in info.client:
        raise checks.InputError("Expected a method that counts its gradients.")
    counts = [info.client["gradient_evaluations"]]
    if "loss_evaluations" in info.client:
        counts.append(info.client["loss_evaluations"] / 3)
    return jnp.stack([jnp.asarray(c, jnp.float32).sum() for c in counts]).sum()


@functools.partial(jax.jit, static_argnames="plan")
def init(plan: Plan, processes: Any, keys: Any, rows: Any, pool: Any) -> core.State:
    """Makes the states of all points, compiled: no two leaves share a buffer."""

    def one(process: FederatedProcess, key: core.Key, federation: core.Federation):
        return process.init(key, plan.model, federation)

    states = map_points(one, (processes, keys), rows, pool, plan)
    # Rows of clients are made on their own devices: no device ever has all rows.
    if plan.execution.mode != "shard":
        return states
    count = rows["malicious"].shape[1]
    return layout.placed_states(states, count, plan.execution)


@functools.partial(jax.jit, static_argnames="plan", donate_argnames="states")
def segment(
    plan: Plan,
    processes: FederatedProcess,
    states: core.State,
    rows: core.Tree,
    pool: core.Federation,
    active: jax.Array,
    start: jax.Array,
    num_rounds: jax.Array,
) -> tuple[core.State, core.RoundInfo]:
    """Runs a segment of active points; reports past `num_rounds` are zeros."""

    def one(first_state: core.State, row: core.Tree, shared: core.Tree):
        if plan.alike:
            process, (shared, (fields, key)) = row, shared
        else:
            process, (fields, key) = row
        pool, start, num_rounds = shared
        federation = stacking.join(fields, pool)

        @functools.partial(jax.jit, inline=True)  # traced once, not twice
        def run(process: Any, state: core.State, federation: core.Federation):
            return process.round(state, plan.model, federation, plan.execution)

        def step(number: jax.Array, carry: tuple[core.State, Any]):
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
            jax.eval_shape(run, process, first_state, federation)[1],
        )
        # The round number is the same for all points: as an unbatched value it keeps
        # the conditionals on it conditionals under vmap. So is the key of points that
        # are alike, which makes everything that is drawn with it, and every batch.
        state = dataclasses.replace(first_state, round=start, key=key)
        # Not a scan of rounds that are masked at the end: the conditional would copy
        # the states of all clients in every round.
        count = jnp.minimum(num_rounds - start, length)
        return lax.fori_loop(0, count, step, (state, reports))

    # Ended points take no time if no point of their chunk is active.
    draws = (rows, states.key)
    return client_map.move_clients(
        one,
        states,
        processes if plan.alike else (processes, draws),
        (pool, start, num_rounds),
        plan.points,
        moves=active if plan.stops else None,
        alike=draws if plan.alike else None,
    )


@functools.partial(jax.jit, static_argnames=("plan", "data"))
def evaluate(
    plan: Plan,
    data: tuple[str, ...],
    processes: FederatedProcess,
    states: core.State,
    rows: core.Tree,
    pool: core.Federation,
) -> tuple[Any, ...]:
    """Returns evaluated clients (None for all), metrics and diagnostics."""

    def one(process: FederatedProcess, state: core.State, federation: core.Federation):
        members = plan.schedule.members(process, state, federation.num_clients)
        metrics, diagnostics = evaluation.evaluate(
            process,
            state,
            plan.model,
            federation,
            data=data,
            members=members,
            diagnostics=plan.diagnostics,
            execution=plan.execution,
        )
        return members, metrics, diagnostics

    return map_points(one, (processes, states), rows, pool, plan)


@functools.partial(jax.jit, static_argnames="plan")
def snapshot(plan: Plan, processes: Any, states: Any, rows: Any, pool: Any):
    """Returns collaboration weights, and series of metrics, if there are any."""

    def one(process: FederatedProcess, state: core.State, federation: core.Federation):
        pairs = evaluation.collaboration(process, state, federation)
        series = evaluation.courses(process, state, plan.model, federation)
        return pairs | ({"series": series} if series else {})

    return map_points(one, (processes, states), rows, pool, plan)


@functools.partial(jax.jit, static_argnames="plan")
def unseen(
    plan: Plan, processes: Any, states: Any, rows: Any, pool: Any, clients: Any
) -> dict[str, jax.Array]:
    """Returns metrics `[G, models, U]` of clients that never trained, by name."""

    def one(
        process: FederatedProcess,
        state: core.State,
        fields: dict[str, Any],
        federation: core.Federation,
    ) -> dict[str, jax.Array]:
        pool = stacking.split(federation)[1]  # without rows of clients that train
        newcomers = stacking.join(fields, pool)
        federation = dataclasses.replace(federation, unseen=newcomers)
        rule = evaluation.unseen_rule(process, state, plan.model, federation)
        return evaluation.unseen(
            process, state, plan.model, federation.population, newcomers, rule
        )

    return map_points(one, (processes, states, clients), rows, pool, plan)


@functools.partial(jax.jit, static_argnames="plan")
def members(
    plan: Plan, point: jax.Array, processes: Any, states: Any, rows: Any
) -> jax.Array:
    """Returns rows `int32[K]` of the evaluated clients of one point."""
    process, state = client_rows.take((processes, states), point)
    count = rows["malicious"].shape[1]
    sample = plan.schedule.members(process, state, count)
    return jnp.arange(count, dtype=jnp.int32) if sample is None else sample


@functools.partial(jax.jit, static_argnames=("plan", "names"))
def trained(
    plan: Plan,
    names: tuple[str, ...],
    point: jax.Array,
    members: jax.Array,
    processes: FederatedProcess,
    states: core.State,
    rows: core.Tree,
    pool: core.Federation,
) -> dict[str, Any]:
    """Returns parameters `[K, *P]` of predictors, for clients `int32[K]`."""
    process, state, fields = client_rows.take((processes, states, rows), point)
    federation = stacking.join(fields, pool)
    return trained_parameters.networks(
        process, state, plan.model, federation, members, names
    )


def loop_segment(
    plan: Plan,
    processes: FederatedProcess,
    states: core.State,
    rows: core.Tree,
    pool: core.Federation,
    active: np.ndarray,
    start: np.ndarray,
    num_rounds: np.ndarray,
) -> tuple[core.State, core.RoundInfo]:
    """Loops over points, rounds and clients in Python: the uncompiled reference."""
    outputs = []
    for point in range(jax.tree.leaves(rows)[0].shape[0]):
        process, state, fields = client_rows.take(
            (processes, states, rows), jnp.asarray(point)
        )
        first_state, state = state, dataclasses.replace(state, round=start)
        federation, reports = stacking.join(fields, pool), []
        with jax.disable_jit():
            for _ in range(min(plan.schedule.segment, int(num_rounds - start))):
                state, info = process.round(
                    state, plan.model, federation, plan.execution
                )
                reports.append(info)
        # As in `segment`: reports of rounds that do not run are zeros.
        empty = jax.tree.map(jnp.zeros_like, reports[-1])
        reports += [empty] * (plan.schedule.segment - len(reports))
        last_state = state if active[point] else first_state
        outputs.append((last_state, stacking.stack(reports)))
    return stacking.stack(outputs)

"""The compiled programs of one group: each is compiled once, and run as compiled.

They are lowered in the caller's thread, whose JAX settings hold, and compiled in
others, while the caller lowers or trains another group. How much memory a program needs
is known from its own compilation.
"""

import concurrent.futures
import functools
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from fedjax_pfl import core
from fedjax_pfl.core import sharding
from fedjax_pfl.engine import compiled, stacking

__all__ = ["Programs", "shapes_of"]

_Name = tuple[str, ...]
"""Name of a program; an evaluation's is followed by the data."""
_SNAPSHOT: _Name = ("snapshot",)
_COMPILERS = 4
"""Programs that are compiled at once."""


class Programs:
    """The programs of a group of grid points, and what they are given in every call.

    Attributes:
      plan: everything static.
      num_points: grid points G.
      num_clients: clients N of each.
      fixed: processes, rows of federations and their pool, placed on the devices.
      states: shapes of the states of all points, placed.
      seconds: so far spent on lowering, and on waiting for the compiler.
      compiler_bytes: by how much the host's resident memory has grown in that time.
    """

    def __init__(
        self,
        plan: compiled.Plan,
        processes: Any,
        federations: Sequence[core.Federation],
        keys: core.Key,
        num_rounds: int,
    ):
        """Places the data on the devices; compiles nothing yet.

        Args:
          plan: everything static.
          processes: the points' processes, stacked.
          federations: one per point. Shapes do for what is not run.
          keys: `[G]`.
          num_rounds: rounds R.
        """
        self.plan, self.num_points = plan, len(federations)
        self.num_clients = federations[0].num_clients
        self.seconds, self.compiler_bytes = 0.0, 0
        self._num_rounds = num_rounds
        rows, pool = stacking.federation_rows(federations)
        self.start = (processes, keys, rows, pool)
        self._federations = federations
        states = jax.eval_shape(functools.partial(compiled.init, plan), *self.start)
        self.states = self.placed(states)
        if plan.execution.mode == "shard":
            pool, processes = sharding.replicate((pool, processes), plan.execution)
        if plan.points.mode == "shard":
            pool = sharding.replicate(pool, plan.points)
            processes = self.placed(processes)
        self.fixed = (processes, self.placed(rows), pool)
        self._compiling: dict[_Name, concurrent.futures.Future] = {}
        self._compiled: dict[_Name, jax.stages.Compiled] = {}
        self._compilers = concurrent.futures.ThreadPoolExecutor(_COMPILERS, "compile")

    def like(self, plan: compiled.Plan, processes: Any) -> "Programs":
        """Programs of other static settings, of shapes only."""
        shapes = shapes_of(self._federations)
        return Programs(plan, processes, shapes, self.start[1], self._num_rounds)

    def placed(self, tree: Any) -> Any:
        """Leaves `[G, N, ...]` with points or rows on the devices that map them."""
        plan = self.plan
        if plan.points.mode == "shard":
            return sharding.shard_rows(tree, self.num_points, plan.points)
        if plan.execution.mode != "shard":
            return tree
        return sharding.shard_rows(tree, self.num_clients, plan.execution, axis=1)

    def compile(self) -> None:
        """Lowers all programs, and lets them be compiled."""
        for name in self._names():
            self._begin(name)

    def wait(self) -> dict[_Name, jax.stages.Compiled]:
        """Returns all programs by name once they are compiled."""
        self.compile()
        return {name: self._program(name) for name in self._names()}

    def _names(self) -> list[_Name]:
        """Returns the names of the programs that a training runs."""
        schedule = self.plan.schedule
        rounds = range(0, self._num_rounds, schedule.segment)
        together = {schedule.due(done, False) for done in rounds} | {schedule.data}
        names: list[_Name] = [("init",)]
        names += [("segment",)] * (self.plan.execution.mode != "loop")
        names += [("evaluate", *data) for data in sorted(together)]
        return names + [_SNAPSHOT] * self._has_snapshot

    def _begin(self, name: _Name) -> None:
        """Lowers a program and lets it be compiled, if that was not begun."""
        if name in self._compiling:
            return
        jax.block_until_ready((self.start, self.fixed))  # memory is theirs, not XLA's
        done = self._clock()
        plan, now, (kind, *data) = self.plan, self._given(self.states), name
        if kind == "init":
            lowered = compiled.init.lower(plan, *self.start)
        elif kind == "segment":
            active = np.ones(self.num_points, bool)
            lowered = compiled.segment.lower(plan, *now, active, *_rounds())
        elif kind == "evaluate":
            lowered = compiled.evaluate.lower(plan, tuple(data), *now)
        else:
            lowered = compiled.snapshot.lower(plan, *now)
        self._compiling[name] = self._compilers.submit(lowered.compile)
        done()

    def _program(self, name: _Name) -> jax.stages.Compiled:
        """Returns a program once it is compiled."""
        if name not in self._compiled:
            self._begin(name)
            done = self._clock()
            self._compiled[name] = self._compiling[name].result()
            done()
        return self._compiled[name]

    def _clock(self) -> Callable[[], None]:
        """Returns what adds the time and the memory since this call."""
        import psutil  # only where a training begins

        process = psutil.Process()
        started, before = time.perf_counter(), process.memory_info().rss

        def done() -> None:
            self.seconds += time.perf_counter() - started
            self.compiler_bytes += max(process.memory_info().rss - before, 0)

        return done

    def init(self) -> core.State:
        """Makes the first states of all points."""
        return self.placed(self._program(("init",))(*self.start))

    def segment(
        self, states: core.State, active: np.ndarray, start: int, num_rounds: int
    ) -> tuple[core.State, core.RoundInfo]:
        """Runs one segment; see `compiled.segment`. The states are used up."""
        run: Any = functools.partial(compiled.loop_segment, self.plan)
        if self.plan.execution.mode != "loop":
            run = self._program(("segment",))
        states, reports = run(*self._given(states), active, *_rounds(start, num_rounds))
        # Placed as at the start and after a checkpoint, as the program wants them.
        return self.placed(states), reports

    def evaluate(self, states: core.State, data: tuple[str, ...]) -> Any:
        """Measures all points; see `compiled.evaluate`."""
        return self._program(("evaluate", *data))(*self._given(states))

    def snapshot(self, states: core.State) -> dict[str, Any]:
        """Finds who learns from whom; see `compiled.snapshot`."""
        if not self._has_snapshot:
            return {}
        return self._program(_SNAPSHOT)(*self._given(states))

    def measured(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Shapes of the metrics of an evaluation on everything, and of `snapshot`."""
        plan, now = self.plan, self._given(self.states)
        measured = compiled.evaluate.eval_shape(plan, plan.schedule.data, *now)
        return measured[1], compiled.snapshot.eval_shape(plan, *now)

    @functools.cached_property
    def _has_snapshot(self) -> bool:
        """Whether there is anything that `snapshot` finds."""
        return bool(jax.tree.leaves(self.measured()[1]))

    def close(self) -> None:
        """Ends the threads of the compiler once they are done."""
        self._compilers.shutdown(wait=False)

    def members(self, states: core.State, point: int) -> jax.Array:
        """Rows `int32[K]` of the clients of a point that are evaluated."""
        processes, rows, _ = self.fixed
        number = np.asarray(point, np.int32)
        return compiled.members(self.plan, number, processes, states, rows)

    def trained(
        self,
        states: core.State,
        point: int,
        members: np.ndarray,
        names: tuple[str, ...],
    ) -> dict[str, Any]:
        """Returns parameters `[K, *P]` of predictors of a point's clients."""
        numbers = (np.asarray(point, np.int32), np.asarray(members, np.int32))
        return compiled.trained(self.plan, names, *numbers, *self._given(states))

    def _given(self, states: core.State) -> tuple[Any, ...]:
        """Processes, states, rows and pool, as the programs take them."""
        processes, rows, pool = self.fixed
        return processes, states, rows, pool


def shapes_of(federations: Sequence[core.Federation]) -> list[core.Federation]:
    """Shapes in place of arrays; parts that share an array share its shape."""
    known: dict[int, jax.ShapeDtypeStruct] = {}

    def shape(leaf: Any) -> jax.ShapeDtypeStruct:
        found = jax.ShapeDtypeStruct(leaf.shape, leaf.dtype)
        return known.setdefault(id(leaf), found)

    return jax.tree.map(shape, list(federations))


def _rounds(start: int = 0, num_rounds: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Numbers of rounds on the host, so that all processes have them."""
    return np.asarray(start, np.int32), np.asarray(num_rounds, np.int32)

"""The scan over rounds, in compiled segments, for a group of grid points."""

import contextlib
import functools
import itertools
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_pfl import (
    checkpoint,
    clients,
    compiled,
    history,
    planning,
    stacking,
)
from fedjax_pfl import recorder as recorder_
from fedjax_pfl import settings as settings_

__all__ = [
    "Interrupted",
    "Run",
    "compile_clock",
    "run_group",
]


class Interrupted(Exception):  # noqa: N818 (not an error)
    """A training was asked to end before its last round.

    Attributes:
      reason: what was asked for.
      done: finished rounds of the group that was being trained.
    """

    def __init__(self, reason: str, done: int):
        """Keeps what happened; see the class."""
        super().__init__(f"{reason} at round {done}")
        self.reason, self.done = reason, done


@contextlib.contextmanager
def compile_clock() -> Iterator[list[float]]:
    """Adds up the seconds that JAX reports for lowering and compiling."""
    total = [0.0]

    def listen(event: str, duration_secs: float, **_: Any) -> None:
        if event.startswith("/jax/core/compile/") and "trace" not in event:
            total[0] += duration_secs

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        yield total
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)


def run_group(
    group: planning.Group,
    settings: settings_.Settings,
    *,
    store: checkpoint.Store | None = None,
    interrupt: Callable[[], str | None] = lambda: None,
    evaluated: Callable[[recorder_.Recorder, int], None] = lambda recorder, number: (
        None
    ),
    around: Callable[[int], contextlib.AbstractContextManager[None]] = (
        lambda number: contextlib.nullcontext()
    ),
) -> tuple[history.History, "Run"]:
    """Trains the points of one group together.

    Args:
      group: points of one structure.
      settings: how they are trained.
      store: where checkpoints are kept, or None. What it has is continued.
      interrupt: asked between segments; a reason ends the training.
      evaluated: told of every evaluation by its number, first of those that the store
        has. An error in it goes on after a checkpoint.
      around: gives the context of a segment from its number since the start.

    Returns:
      The history, and the run at its end, with the last states.

    Raises:
      Interrupted: after a checkpoint, if there was a reason to end.
    """
    started = time.perf_counter()
    with compile_clock() as clock:
        run = Run(group, settings, store)

        def seconds() -> tuple[float, float]:
            compiled = run.earlier[0] + clock[0]
            total = sum(run.earlier) + time.perf_counter() - started
            return min(compiled, total), max(total - compiled, 0.0)

        if run.is_new:
            run.measure()
        for number in range(len(run.recorder.rounds)):
            evaluated(run.recorder, number)
        segments = itertools.count()
        while not run.ended:
            reason = interrupt()
            if reason is not None:
                run.save(seconds())
                raise Interrupted(reason, run.done)
            with around(next(segments)):
                run.segment()
            run.measure()
            is_due = run.ended or (store is not None and store.due())
            with checkpoint.kept(lambda: run.save(seconds()), is_due=is_due):
                evaluated(run.recorder, len(run.recorder.rounds) - 1)
        return run.recorder.finish(run.config, *seconds()), run


class Run:
    """One group being trained: its arguments on the device, its state, its history."""

    def __init__(
        self,
        group: planning.Group,
        settings: settings_.Settings,
        store: checkpoint.Store | None,
    ):
        """Makes the first states, or reads those of the newest checkpoint."""
        first = group.federations[0]
        self._first, self._store = first, store
        self._num_points, self._num_rounds = len(group.points), settings.num_rounds
        self._plan, processes = planning.planned(group, settings)
        plan = self._plan
        rows, pool = stacking.federation_rows(group.federations)
        keys = jnp.stack([planning.own_key(key) for key in group.keys])
        first_states = (plan, processes, keys, rows, pool)
        like = jax.eval_shape(functools.partial(compiled.init, plan), *first_states[1:])
        self.recorder = recorder_.Recorder(
            points=tuple(group.points),
            models=planning.predictor_names(group),
            data=plan.schedule.data,
            num_rounds=settings.num_rounds,
            federations=group.described,
            stops=group.processes[0].on_nonfinite == "stop",
            stop_when=settings.stop_when,
        )
        self.config = planning.configuration(group, settings, plan.model, str(plan))
        self.done, self.earlier, self.ended = 0, (0.0, 0.0), False
        found = None
        if store is not None:
            self._identity = {"points": list(group.points)} | self.config
            self._identity |= {
                "dtype": str(jnp.zeros(()).dtype),
                "points_per_chunk": plan.points_per_chunk,
                "diagnostics": plan.diagnostics,
                "stop_when": str(settings.stop_when),
                "data, seeds and settings": checkpoint.fingerprint(first_states[1:]),
            }
            found = store.latest(self._identity, like)
        self.is_new = found is None
        if found is not None:
            self.recorder.restore(found.arrays)
            self.done, self.earlier = found.done, found.seconds
            self.ended = found.ended
        states = compiled.init(*first_states) if found is None else found.states
        if plan.execution.mode == "shard":
            pool, processes = clients.replicate((pool, processes), plan.execution)
        if plan.points.mode == "shard":
            pool = clients.replicate(pool, plan.points)
            processes = self._placed(processes)
        self._fixed = (processes, self._placed(rows), pool)
        self.states = self._placed(states)

    def _placed(self, tree: Any) -> Any:
        """Leaves `[G, N, ...]` with points or rows on the devices that map them."""
        plan, count = self._plan, self._first.num_clients
        if plan.points.mode == "shard":
            return clients.shard_rows(tree, self._num_points, plan.points)
        if plan.execution.mode != "shard":
            return tree
        return clients.shard_rows(tree, count, plan.execution, axis=1)

    def measure(self) -> None:
        """Evaluates what is due now, and everything for points that end here."""
        before = self.recorder.going()
        self._measure(None)
        stopped = before & ~self.recorder.going()
        if stopped.any() and not self.ended:
            is_last = self.recorder.all_ended()
            self._measure(np.ones_like(stopped) if is_last else stopped)

    def _measure(self, again: np.ndarray | None) -> None:
        """Evaluates all points; for those given, in place of the last evaluation."""
        processes, rows, pool = self._fixed
        self.ended = self.done >= self._num_rounds or self.recorder.all_ended()
        is_complete = self.ended or again is not None
        data = self._plan.schedule.due(self.done, is_complete)
        now = (processes, self.states, rows, pool)
        found = compiled.evaluate(self._plan, data, *now)
        # Clusters are looked at always; heat maps and curves are of the end.
        is_wanted = self.ended or self._first.cluster is not None
        mixed = compiled.snapshot(self._plan, *now) if is_wanted else {}
        found, mixed = clients.fetch((found, mixed))
        self.recorder.evaluated(self.done, data, *found, snapshot=mixed, again=again)

    def segment(self) -> None:
        """Trains until the next evaluation."""
        processes, rows, pool = self._fixed
        is_loop = self._plan.execution.mode == "loop"
        run = compiled.loop_segment if is_loop else compiled.segment
        states, info = run(
            self._plan,
            processes,
            self.states,
            rows,
            pool,
            # On the host: all processes have them.
            self.recorder.going(),
            np.asarray(self.done, np.int32),
            np.asarray(self._num_rounds, np.int32),
        )
        # Placed as at the start and after a checkpoint: one program for all segments.
        self.states = self._placed(states)
        ran = min(self._plan.schedule.segment, self._num_rounds - self.done)
        self.recorder.ran(self.done, ran, clients.fetch(info))
        self.done += ran

    def members(self, point: int) -> np.ndarray:
        """Rows `int32[K]` of the clients of a point that are evaluated now."""
        processes, rows, _ = self._fixed
        number = np.asarray(point, np.int32)
        found = compiled.members(self._plan, number, processes, self.states, rows)
        return clients.fetch(found)

    def trained(
        self, point: int, members: np.ndarray, names: tuple[str, ...]
    ) -> dict[str, Any]:
        """What was trained of some predictors `[K, *P]` of a point's clients."""
        processes, rows, pool = self._fixed
        numbers = (np.asarray(point, np.int32), np.asarray(members, np.int32))
        now = (processes, self.states, rows, pool)
        return clients.fetch(compiled.trained(self._plan, names, *numbers, *now))

    def save(self, seconds: tuple[float, float]) -> None:
        """Writes a checkpoint, where there is a place for it."""
        if self._store is not None:
            progress = checkpoint.Progress(
                done=self.done,
                states=self.states,
                arrays=self.recorder.arrays(),
                seconds=seconds,
                ended=self.ended,
            )
            self._store.save(self._identity, progress)

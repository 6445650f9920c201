"""The scan over rounds, in compiled segments, for a group of grid points."""

import contextlib
import dataclasses
import itertools
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_pfl import core
from fedjax_pfl.core import sharding
from fedjax_pfl.engine import cost, groups, options, programs
from fedjax_pfl.engine.recorder import Recorder
from fedjax_pfl.results import checkpoint, history

__all__ = [
    "Interrupted",
    "Prepared",
    "Run",
    "compile_clock",
    "prepare",
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


@dataclasses.dataclass(frozen=True)
class Prepared:
    """A group whose data are on the devices and whose programs are being compiled.

    Attributes:
      group: points of one structure.
      settings: how they are trained.
      programs: their compiled programs.
      store: where checkpoints are kept, or None.
      names: of the algorithm's predictors.
    """

    group: groups.Group
    settings: options.Settings
    programs: programs.Programs
    store: checkpoint.Store | None
    names: tuple[str, ...]


def prepare(
    group: groups.Group,
    settings: options.Settings,
    store: checkpoint.Store | None = None,
) -> Prepared:
    """Places a group's data on the devices and starts to compile its programs.

    Args:
      group: points of one structure.
      settings: how they are trained.
      store: where checkpoints are kept, or None. If it has a finished training, nothing
        is compiled.

    Returns:
      What `run_group` trains.
    """
    planned = groups.programs_of(group, settings)
    if store is None or not store.has_ended():
        planned.compile()
    return Prepared(
        group=group,
        settings=settings,
        programs=planned,
        store=store,
        names=groups.predictor_names(group),
    )


def run_group(
    prepared: Prepared,
    *,
    interrupt: Callable[[], str | None] = lambda: None,
    evaluated: Callable[[Recorder, int], None] = lambda recorder, number: None,
    around: Callable[[int], contextlib.AbstractContextManager[None]] = (
        lambda number: contextlib.nullcontext()
    ),
) -> tuple[history.History, "Run"]:
    """Trains the points of one group together.

    Args:
      prepared: the group. What its store has is continued.
      interrupt: asked between segments; a reason ends the training.
      evaluated: told of every evaluation by its number, first of those that the store
        has. An error in it goes on after a checkpoint.
      around: gives the context of a segment from its number since the start.

    Returns:
      The history, and the run at its end, with the last states.

    Raises:
      InputError: if the group does not fit into the memory.
      Interrupted: after a checkpoint, if there was a reason to end.
    """
    started, lowering = time.perf_counter(), prepared.programs.seconds
    run = Run(prepared)

    def seconds() -> tuple[float, float]:
        compiling = prepared.programs.seconds
        total = time.perf_counter() - started + lowering
        return run.earlier[0] + compiling, run.earlier[1] + total - compiling

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
        is_due = run.ended or (prepared.store is not None and prepared.store.due())
        with checkpoint.kept(lambda: run.save(seconds()), is_due=is_due):
            evaluated(run.recorder, len(run.recorder.rounds) - 1)
    return run.recorder.finish(run.config, *seconds()), run


class Run:
    """One group being trained: its state and its history."""

    def __init__(self, prepared: Prepared):
        """Makes the first states, or reads those of the newest checkpoint.

        Raises:
          InputError: if the group does not fit into the memory.
        """
        group, settings, store = prepared.group, prepared.settings, prepared.store
        self._programs, self._store = prepared.programs, store
        self._has_clusters = group.federations[0].cluster is not None
        self._num_rounds = settings.num_rounds
        plan = self._programs.plan
        self.recorder = Recorder(
            points=tuple(group.points),
            models=prepared.names,
            data=plan.schedule.data,
            num_rounds=settings.num_rounds,
            federations=group.described,
            stops=group.processes[0].on_nonfinite == "stop",
            stop_when=settings.stop_when,
        )
        self.config = groups.configuration(group, settings, plan.model, str(plan))
        self.done, self.earlier, self.ended = 0, (0.0, 0.0), False
        found = None
        if store is not None:
            start = self._programs.start
            self._identity = {"points": list(group.points)} | self.config
            self._identity |= {
                "dtype": str(jnp.zeros(()).dtype),
                "generator": core.GENERATOR,
                "points_per_chunk": plan.points_per_chunk,
                "diagnostics": plan.diagnostics,
                "stop_when": str(settings.stop_when),
                "data, seeds and settings": checkpoint.fingerprint(start),
            }
            found = store.latest(self._identity, self._programs.states)
        self.is_new = found is None
        if found is not None:
            self.recorder.restore(found.arrays)
            self.done, self.earlier = found.done, found.seconds
            self.ended = found.ended
        if not self.ended and settings.memory_limit != "none":
            cost.check(self._programs, settings)
        if found is None:
            self.states = self._programs.init()
        else:
            self.states = self._programs.placed(found.states)

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
        self.ended = self.done >= self._num_rounds or self.recorder.all_ended()
        is_complete = self.ended or again is not None
        data = self._programs.plan.schedule.due(self.done, is_complete)
        found = self._programs.evaluate(self.states, data)
        # Clusters are looked at always; heat maps and curves are of the end.
        is_wanted = self.ended or self._has_clusters
        mixed = self._programs.snapshot(self.states) if is_wanted else {}
        found, mixed = sharding.fetch((found, mixed))
        self.recorder.evaluated(self.done, data, *found, snapshot=mixed, again=again)

    def segment(self) -> None:
        """Trains until the next evaluation."""
        going = self.recorder.going()
        self.states, info = self._programs.segment(
            self.states, going, self.done, self._num_rounds
        )
        length = self._programs.plan.schedule.segment
        ran = min(length, self._num_rounds - self.done)
        self.recorder.ran(self.done, ran, sharding.fetch(info))
        self.done += ran

    def members(self, point: int) -> np.ndarray:
        """Rows `int32[K]` of the clients of a point that are evaluated now."""
        return sharding.fetch(self._programs.members(self.states, point))

    def trained(
        self, point: int, members: np.ndarray, names: tuple[str, ...]
    ) -> dict[str, Any]:
        """What was trained of some predictors `[K, *P]` of a point's clients."""
        found = self._programs.trained(self.states, point, members, names)
        return sharding.fetch(found)

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

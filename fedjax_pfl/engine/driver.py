"""The run loop: segments of rounds, evaluations, checkpoints, for any trainer."""

import contextlib
import itertools
import time
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_pfl import core
from fedjax_pfl.engine.groups import PlannedGroup
from fedjax_pfl.engine.recorder import Recorder
from fedjax_pfl.results import checkpoint, history

__all__ = ["Interrupted", "Run", "Trainer", "compile_clock"]


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


class Trainer(Protocol):
    """Keeper of a group's states, which moves them; one per kind of storage.

    Attributes:
      planned: the group.
      recorder: the history so far.
      execution: how the map over clients is run, in words.
      identity: what must be equal for a checkpoint to be continued, besides the
        configuration.
    """

    planned: PlannedGroup
    recorder: Recorder
    execution: str
    identity: dict[str, Any]

    @classmethod
    def check(cls, planned: PlannedGroup) -> None:
        """Refuses a group that this trainer cannot train, before anything runs."""
        ...

    @property
    def compile_seconds(self) -> float:
        """Seconds spent on compiling so far."""
        ...

    @property
    def like(self) -> Any:
        """Shapes of the states in a checkpoint."""
        ...

    def check_fits(self) -> None:
        """Refuses a training that will not fit into memory; compiles it if needed."""
        ...

    def begin(self) -> None:
        """Makes the first states."""
        ...

    def restore(self, progress: checkpoint.Progress) -> None:
        """Takes the states of a checkpoint; a ValueError says that it is damaged."""
        ...

    def saved(self) -> tuple[Any, dict[str, np.ndarray]]:
        """Returns states and further arrays for a checkpoint."""
        ...

    def advance(self, active: np.ndarray, done: int, count: int) -> core.RoundInfo:
        """Trains the active points for `count` rounds, and returns their reports."""
        ...

    def evaluate(self, data: tuple[str, ...], *, is_last: bool) -> tuple[Any, ...]:
        """Returns evaluated clients (None for all), metrics, diagnostics, snapshot."""
        ...

    def members(self, point: int) -> np.ndarray:
        """Returns rows `int[K]` of the clients of a point that are evaluated."""
        ...

    def trained(
        self, point: int, members: np.ndarray, names: tuple[str, ...]
    ) -> dict[str, Any]:
        """Returns what was trained of predictors `[K, *P]` of clients `int[K]`."""
        ...

    def close(self) -> None:
        """Gives back what lies outside of the process's memory."""
        ...


class Run:
    """One group being trained, from its first or its last saved round to its end."""

    def __init__(self, trainer: Trainer, store: checkpoint.Store | None = None):
        """Makes the first states, or reads those of the newest checkpoint.

        Raises:
          InputError: if the checkpoints are of another training or damaged, or if the
            group does not fit into memory.
        """
        self.trainer, self._store = trainer, store
        self._options = trainer.planned.options
        self._started = time.perf_counter() - trainer.compile_seconds
        self.config = trainer.planned.configuration(trainer.execution)
        self.done, self._earlier, self.ended = 0, (0.0, 0.0), False
        progress = None
        if store is not None:
            self._identity = {"points": list(trainer.planned.group.points)}
            self._identity |= self.config | {
                "dtype": str(jnp.zeros(()).dtype),
                "generator": core.GENERATOR,
                "stop_when": str(self._options.stop_when),
                **trainer.identity,
            }
            progress = store.latest(self._identity, trainer.like, trainer.restore)
        if progress is not None:
            trainer.recorder.restore(progress.arrays)
            self.done, self._earlier = progress.done, progress.seconds
            self.ended = progress.ended
        if not self.ended:
            trainer.check_fits()
        self._is_new = progress is None
        if self._is_new:
            trainer.begin()

    def train(
        self,
        *,
        interrupt: Callable[[], str | None] = lambda: None,
        evaluated: Callable[[Recorder, int], None] = lambda recorder, number: None,
        around: Callable[[int], contextlib.AbstractContextManager[None]] = (
            lambda number: contextlib.nullcontext()
        ),
    ) -> history.History:
        """Trains until the end.

        Args:
          interrupt: asked between segments; a reason ends the training.
          evaluated: told of every evaluation by its number, first of those that the
            store has. An error in it is raised after a checkpoint.
          around: gives the context of a segment from its number since the start.

        Returns:
          The history.

        Raises:
          Interrupted: after a checkpoint, if there was a reason to end.
        """
        recorder = self.trainer.recorder
        if self._is_new:
            self.measure()
        for number in range(len(recorder.rounds)):
            evaluated(recorder, number)
        segments = itertools.count()
        while not self.ended:
            reason = interrupt()
            if reason is not None:
                self.save()
                raise Interrupted(reason, self.done)
            with around(next(segments)):
                self.segment()
            self.measure()
            is_due = self.ended or (self._store is not None and self._store.due())
            with checkpoint.kept(self.save, is_due=is_due):
                evaluated(recorder, len(recorder.rounds) - 1)
        return recorder.finish(self.config, *self._seconds())

    def segment(self) -> None:
        """Trains until the next evaluation."""
        length = self.trainer.planned.plan.schedule.segment
        count = min(length, self._options.num_rounds - self.done)
        active = self.trainer.recorder.active()
        self.trainer.recorder.ran(
            self.done, count, self.trainer.advance(active, self.done, count)
        )
        self.done += count

    def measure(self) -> None:
        """Evaluates what is due now, and everything for points that end here."""
        before = self.trainer.recorder.active()
        self._measure(None)
        stopped = before & ~self.trainer.recorder.active()
        if stopped.any() and not self.ended:
            is_last = self.trainer.recorder.all_ended()
            self._measure(np.ones_like(stopped) if is_last else stopped)

    def _measure(self, again: np.ndarray | None) -> None:
        """Evaluates all points; for those given, in place of the last evaluation."""
        recorder = self.trainer.recorder
        self.ended = self.done >= self._options.num_rounds or recorder.all_ended()
        is_complete = self.ended or again is not None
        data = self.trainer.planned.plan.schedule.due(self.done, is_complete)
        members, metrics, diagnostics, snapshot = self.trainer.evaluate(
            data, is_last=self.ended
        )
        recorder.evaluated(
            self.done, data, members, metrics, diagnostics, snapshot, again
        )

    def _seconds(self) -> tuple[float, float]:
        """Seconds of compiling and of running so far, earlier processes included."""
        total = time.perf_counter() - self._started
        compiling = min(self.trainer.compile_seconds, total)
        return self._earlier[0] + compiling, self._earlier[1] + total - compiling

    def save(self) -> None:
        """Writes a checkpoint, where there is a place for it."""
        if self._store is None:
            return
        states, arrays = self.trainer.saved()
        progress = checkpoint.Progress(
            done=self.done,
            states=states,
            arrays=self.trainer.recorder.arrays() | arrays,
            seconds=self._seconds(),
            ended=self.ended,
        )
        self._store.save(self._identity, progress)

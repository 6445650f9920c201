"""The calls of a user: one training, or a grid of them in few compiled programs."""

import collections
import contextlib
import itertools
import time
from collections.abc import Callable, Sequence
from typing import Any, Unpack

import jax.numpy as jnp
import numpy as np

from fedjax_pfl import core, results
from fedjax_pfl.core import checks, processes
from fedjax_pfl.engine import (
    best_models,
    callbacks,
    grids,
    groups,
    held_models,
    hooks,
    profiling,
    programs,
    save_models,
    validate,
)
from fedjax_pfl.engine.options import Options, TrainingOptions, as_keywords, time_limit
from fedjax_pfl.engine.recorder import Recorder
from fedjax_pfl.engine.resident import Resident
from fedjax_pfl.engine.trainer import Interrupted, Trainer
from fedjax_pfl.results import checkpoint, directories, history, provenance
from fedjax_pfl.round.process import FederatedProcess

__all__ = [
    "Run",
    "check_groups",
    "clean_up",
    "grid",
    "run_groups",
    "simulate",
]

_group_numbers = itertools.count(1)
_COUNT_EVERY = 8
"""Groups between two counts of the maps of compiled programs, which are slow."""


@as_keywords("points_per_chunk")
def simulate(
    key: core.Key,
    process: FederatedProcess,
    model: core.Model,
    federation: core.Specification | core.Federation,
    num_rounds: int,
    **options: Unpack[TrainingOptions],
) -> results.Result:
    """Runs one training and evaluates every client on its own data.

    Args:
      key: `[]` from `jax.random.key(seed)`; all randomness of the training follows from
        it.
      process: algorithm, aggregator, participation, work, attack.
      model: for example `MLP(widths=(64,))`; shapes come from the federation.
      federation: data of N clients, or a specification of them.
      num_rounds: rounds R, at least 1.
      **options: `eval_every`, `evaluate_on`, `eval_clients`, `execution`,
        `diagnostics`, `stop_when`, `memory_limit`, `max_minutes`, `checkpoints`,
        `callbacks`, `models_to`, `models_of`, `progress`: fields of `engine.Options`.

    Returns:
      The result; a non-finite value ends the training and is in its status.

    Raises:
      InputError: if an argument does not fit, in one sentence.
      Interrupted: after `max_minutes`.
    """
    federation = validate.built(key, process, model, federation)
    parsed = Options(num_rounds=num_rounds, **options)
    time_is_up = time_limit(parsed.max_minutes)
    # Held models let the result hand out its models later, without `models_to`.
    planned = check_groups([groups.single(key, process, model, federation)], parsed)
    return run_groups(planned, parsed, interrupt=time_is_up, held=held_models.Held())


@as_keywords()
def grid(
    key: core.Key,
    process: FederatedProcess,
    model: core.Model,
    spec: core.Specification | core.Federation,
    axes: grids.Axes,
    num_rounds: int,
    **options: Unpack[TrainingOptions],
) -> results.Result:
    """Trains all points of a grid: numeric axes vmapped, static ones in groups.

    Args:
      key: `[]` key shared by all points; see `grids.groups_of`.
      process: base process.
      model: base model.
      spec: base federation: a specification, or a federation, which has no axes of its
        own and keeps its split for all seeds.
      axes: values by dotted name, such as `{"algorithm.lam": [0.1, 1.0]}`, in all
        combinations; or a list of points, each with its values.
      num_rounds: rounds R, at least 1.
      **options: as for `simulate`, and `points_per_chunk`. Finished groups in
        `checkpoints` are not trained again; one object of `callbacks` sees all points.

    Returns:
      One result with all points; diverged ones are in it, with their status.

    Raises:
      InputError: if an argument does not fit, in one sentence.
      Interrupted: after `max_minutes`.
    """
    validate.check(key, process, model, spec)
    validate.refuse_tracers(axes=axes)
    parsed = Options(num_rounds=num_rounds, **options)
    time_is_up = time_limit(parsed.max_minutes)  # building the data counts
    planned = check_groups(grids.groups_of(key, process, model, spec, axes), parsed)
    return run_groups(planned, parsed, interrupt=time_is_up, held=held_models.Held())


def run_groups(
    planned: Sequence[groups.PlannedGroup],
    options: Options,
    *,
    trainer: Callable[..., Trainer] = Resident,
    interrupt: Callable[[], str | None] = lambda: None,
    profile: profiling.Profile | None = None,
    is_shared: bool = False,
    held: held_models.Held | None = None,
) -> results.Result:
    """Trains groups of `check_groups` in a row, with progress on standard error."""
    checkpoints = options.checkpoints
    if options.models_to is not None:
        save_models.check(planned, options.models_to)
        held = None
    unplanned = [group.group for group in planned]
    groups.warn_of_idle_parts(unplanned)
    parts = [(group.processes[0], group.model) for group in unplanned]
    origin = provenance.collect(parts)
    around = {} if profile is None else {"around": profile.around}
    histories, continued = [], {}
    with contextlib.ExitStack() as stack:
        if checkpoints is not None:
            with processes.together():
                # A lease keeps other processes out of shared checkpoints, in place of
                # the lock.
                if processes.is_first() and not is_shared:
                    stack.enter_context(directories.locked(checkpoints.path))
                checkpoints.check(len(planned))
        models = stack.enter_context(save_models.writer(options.models_to))
        watch = stack.enter_context(callbacks.watching(unplanned, options))

        def prepare(number: int) -> tuple[Trainer, Any]:
            store = None
            if checkpoints is not None:
                store = checkpoints.store(number, planned[number].algorithm)
            group = planned[number]
            with hooks.explained(group.group):
                group_trainer = trainer(group, store)
                if store is None or not store.has_ended():
                    group_trainer.compile()
            return group_trainer, store

        # One group ahead only: each holds its data on the devices.
        queue = collections.deque([prepare(0)])
        stack.callback(lambda: [group_trainer.close() for group_trainer, _ in queue])
        for number in range(len(planned)):
            current, store = queue.popleft()
            if number + 1 < len(planned):  # compiles while this group trains
                queue.append(prepare(number + 1))
            with contextlib.closing(current), hooks.explained(unplanned[number]):
                run = Run(current, store)
                record = run.train(
                    interrupt=interrupt,
                    evaluated=watch.evaluated(number),
                    **around,
                )
                histories.append(record)
                continued.update(dict.fromkeys(run.continued))
                models.add(number, record, current, run.best)
                if held is not None:
                    held.add(number, record, current, run.best)
            del run, current  # before the next group's states are made
            clean_up()
        origin[provenance.CONTINUED] = list(continued)
        watch.result = results.Result(
            groups=tuple(histories),
            provenance=origin,
            held=None if held is None else held.models,
        )
        models.finish(watch.result)
        if held is not None:
            held.keep()
    return watch.result


def clean_up() -> None:
    """Frees memory after a group; periodically evicts compiled programs."""
    programs.give_memory_back()
    if next(_group_numbers) % _COUNT_EVERY == 0:
        programs.forget_if_needed()


def check_groups(
    unplanned: Sequence[groups.Group],
    options: Options,
    *,
    trainer: Callable[..., Trainer] = Resident,
) -> list[groups.PlannedGroup]:
    """Plans groups, and validates every part of them before anything is trained."""
    planned = []
    for group in unplanned:
        with hooks.explained(group):
            planned_group = groups.plan(group, options)
            hooks.check_cohort(planned_group.processes[0], planned_group.num_clients)
            planned.append(trainer.check(planned_group))  # pyright: ignore
    return planned


class Run:
    """One group being trained, from its first or its last saved round to its end."""

    def __init__(self, trainer: Trainer, store: checkpoint.Store | None = None):
        """Makes the first states, or reads the newest checkpoint."""
        self.trainer, self._store = trainer, store
        self.best: best_models.Best | None = None
        self._options = trainer.planned.options
        self._started = time.perf_counter() - trainer.compile_seconds
        self.config = trainer.planned.configuration(trainer.execution)
        self.done, self._earlier, self.ended = 0, (0.0, 0.0), False
        self.continued: tuple[str, ...] = ()
        progress = None
        if store is not None:
            group = trainer.planned.group
            self._identity = {"points": list(group.points)}
            self._identity |= self.config | {
                "dtype": str(jnp.zeros(()).dtype),
                "generator": core.GENERATOR,
                "stop_when": str(self._options.stop_when),
                "models_of": self._options.models_of,
                "code": provenance.code(group.processes[0], group.model),
                **trainer.identity,
            }
            # If one process refuses its checkpoint, all end: they would wait for it.
            with processes.together():
                progress = store.latest(self._identity, trainer.like, self._restore)
        if progress is not None:
            self.done, self._earlier = progress.done, progress.seconds
            self.ended, self.continued = progress.ended, progress.continued
        _check_same_round(self.done)
        if not self.ended:
            with processes.together():
                trainer.check_fits()
        self._is_new = progress is None
        if self._is_new:
            trainer.begin()
            self._keep_best()

    def _keep_best(self) -> None:
        """Starts to keep the best models if the options ask for them."""
        choice = self._options.models_of
        if choice != "last":
            self.best = best_models.Best(self.trainer, choice)

    def _restore(self, progress: checkpoint.Progress) -> None:
        """Restores the history, the states and the best models."""
        self.trainer.recorder.restore(progress.arrays, progress.done)
        self.trainer.restore(progress)
        self._keep_best()
        if self.best is not None:
            self.best.restore(progress.arrays)

    def train(
        self,
        *,
        interrupt: Callable[[], str | None] = lambda: None,
        evaluated: Callable[[Recorder, int], None] = lambda recorder, number: None,
        around: Callable[[int], contextlib.AbstractContextManager[None]] = (
            lambda number: contextlib.nullcontext()
        ),
    ) -> history.History:
        """Trains until the end, or until `interrupt` returns a reason."""
        recorder = self.trainer.recorder
        segment = self.trainer.planned.plan.schedule.segment
        if self._is_new:
            self.measure()
        # Callbacks see restored evaluations again, so that their logs are complete.
        for done in range(len(recorder.rounds)):
            evaluated(recorder, done)
        number = itertools.count()
        while not self.ended:
            reason = processes.first(interrupt())
            if reason is not None:
                self.save()
                raise Interrupted(reason, self.done)
            count = min(segment, self._options.num_rounds - self.done)
            active = recorder.active()
            with around(next(number)):
                report = self.trainer.advance(active, self.done, count)
                recorder.ran(self.done, count, report)
            self.done += count
            self.measure()
            is_due = self.ended or self._is_due()
            # An error of a callback is raised after a checkpoint with this evaluation.
            with checkpoint.kept(self.save, is_due=is_due):
                evaluated(recorder, len(recorder.rounds) - 1)
        return recorder.finish(self.config, *self._seconds())

    def measure(self) -> None:
        """Evaluates the data due now, and all data for points that end here."""
        was_active = self.trainer.recorder.active()
        self._measure(None)
        # Points that end now are measured on all data, as they would be alone.
        stopped = was_active & ~self.trainer.recorder.active()
        if stopped.any() and not self.ended:
            is_last = self.trainer.recorder.all_ended()
            self._measure(np.ones_like(stopped) if is_last else stopped)

    def _measure(self, again: np.ndarray | None) -> None:
        """Evaluates all points; replaces the last evaluation of points in `again`."""
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
        if self.best is not None and "validation" in data:
            self.best.see(recorder)

    def _seconds(self) -> tuple[float, float]:
        """Seconds of compiling and of running so far, earlier processes included."""
        total = time.perf_counter() - self._started
        compiling = min(self.trainer.compile_seconds, total)
        return self._earlier[0] + compiling, self._earlier[1] + total - compiling

    def _is_due(self) -> bool:
        """Returns whether it is time for a checkpoint, for any process."""
        if self._store is None:
            return False
        return processes.first("due" if self._store.due() else None) is not None

    def save(self) -> None:
        """Writes a checkpoint if there is a store; all processes call this."""
        if self._store is None:
            return
        states, arrays, files = self.trainer.saved()
        best = {} if self.best is None else self.best.saved()
        progress = checkpoint.Progress(
            done=self.done,
            states=states,
            arrays=self.trainer.recorder.arrays() | arrays | best,
            seconds=self._seconds(),
            ended=self.ended,
            continued=self.continued,
            own=files,
        )
        self._store.save(self._identity, progress)


def _check_same_round(done: int) -> None:
    """Refuses processes that have not read the same checkpoint."""
    rounds = list(map(int, processes.gathered(str(done))))
    if len(set(rounds)) > 1:
        raise checks.InputError(
            "Expected checkpoints in a folder that all processes share, but they go on"
            f" from rounds {', '.join(map(str, rounds))}."
        )

"""The scan over rounds, in compiled segments, for a group of grid points."""

import contextlib
import dataclasses
import functools
import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_pfl import (
    checkpoint,
    checks,
    clients,
    compiled,
    evaluate,
    given,
    history,
    limits,
    stacking,
    struct,
    types,
)
from fedjax_pfl import execution as execution_
from fedjax_pfl import recorder as recorder_
from fedjax_pfl import settings as settings_
from fedjax_pfl.data import statistics
from fedjax_pfl.process import FederatedProcess

__all__ = [
    "Group",
    "Interrupted",
    "Run",
    "check",
    "check_examples",
    "compile_clock",
    "configuration",
    "own_key",
    "planned",
    "run_group",
]


@dataclasses.dataclass(frozen=True)
class Group:
    """Grid points that share one compiled program.

    Attributes:
      points: swept field -> value, one dict per point.
      processes: one process per point, of one structure.
      model: the model they share.
      federations: one per point, of one number of clients.
      described: statistics of each point's federation.
      keys: one key per point.
      config: flat configuration of what the points share.
    """

    points: Sequence[dict[str, Any]]
    processes: Sequence[FederatedProcess]
    model: Any
    federations: Sequence[types.Federation]
    described: Sequence[statistics.PartitionStatistics]
    keys: Sequence[types.Key]
    config: dict[str, Any]


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


def own_key(key: types.Key) -> types.Key:
    """A copy of a key, so that donation leaves the caller's buffer alone."""
    given.check_key(key)
    data = jnp.array(jax.random.key_data(key), copy=True)
    return jax.random.wrap_key_data(data, impl="threefry2x32")


def check_examples(federations: Sequence[types.Federation]) -> None:
    """Refuses clients that have nothing to train on."""
    for federation in federations:
        if isinstance(federation.malicious, jax.ShapeDtypeStruct):
            continue
        empty = np.flatnonzero(np.asarray(federation.train.num_examples) == 0)
        if empty.size:
            raise checks.InputError(
                f"Expected every client to have training examples, but {empty.size} of "
                f"{federation.num_clients} have none, the first of them client "
                f"{empty[0]}."
            )


def run_group(
    group: Group,
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
) -> tuple[history.History, types.State]:
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
      The history and the last states, with a leading axis of points.

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
        return run.recorder.finish(run.config, *seconds()), run.states


def check(group: Group, settings: settings_.Settings) -> None:
    """Lets data and all parts of a process object before anything is trained.

    Args:
      group: points of one structure.
      settings: how they are to be trained.

    Raises:
      InputError: if something does not fit, in one sentence.
    """
    check_parts(group, settings)
    limits.check(*planned(group, settings), group.federations, settings.num_rounds)


def check_parts(group: Group, settings: settings_.Settings) -> None:
    """Checks everything but the memory; see `check`."""
    for federation in group.federations:
        settings.schedule.check(federation)
    check_examples(group.federations)
    first = group.federations[0]
    size = group.processes[0].participation.cohort_size(first.num_clients)
    for process in group.processes:
        process.check_cohort(size, first.num_clients)
    models = _predictor_names(group)
    if settings.stop_when is not None:
        settings.stop_when.model_of(models)


def planned(
    group: Group, settings: settings_.Settings
) -> tuple[compiled.Plan, FederatedProcess]:
    """Says how a group will be run.

    Args:
      group: points of one structure; shapes in place of its federations' arrays do.
      settings: how they are to be trained.

    Returns:
      Everything static, and the processes with stacked values.
    """
    first = group.federations[0]
    model = group.model.for_federation(first)
    execution, process = settings.execution, group.processes[0]
    if isinstance(execution, str):
        execution = execution_.choose(process, model, first, len(group.points))
    execution = execution_.form_chunks(execution, group.federations)
    points_per_chunk = settings.points_per_chunk
    if points_per_chunk is None:
        points_per_chunk = execution_.points_at_once(execution, process, model, first)
    devices = execution_.devices_of_points(execution, len(group.points))
    plan = compiled.Plan(
        model=model,
        execution=execution,
        schedule=settings.schedule,
        diagnostics=settings.diagnostics,
        points_per_chunk=min(points_per_chunk, -(-len(group.points) // devices)),
        point_devices=devices,
        stops=settings.stop_when is not None,
    )
    dtype = jnp.zeros(()).dtype
    processes = [struct.as_arrays(process, dtype) for process in group.processes]
    return plan, stacking.stack(processes)


def _predictor_names(group: Group) -> tuple[str, ...]:
    """Names of what the algorithm lets evaluate."""
    process, federation = group.processes[0], group.federations[0]
    model = group.model.for_federation(federation)

    def init(key, federation):
        return process.init(key, model, federation)

    state = jax.eval_shape(init, own_key(group.keys[0]), federation)
    return evaluate.predictor_names(process, state, model, federation)


def configuration(
    group: Group, settings: settings_.Settings, model: Any, execution: str
) -> dict[str, Any]:
    """Flat configuration of a group and of how it is run.

    Args:
      group: what is trained.
      settings: how.
      model: given the shapes of the data.
      execution: how the map over clients is run, in words.

    Returns:
      Values as JSON knows them, by dotted name.
    """
    return group.config | {
        "num_rounds": settings.num_rounds,
        "eval_every": settings.schedule.segment,
        "evaluate_on": dict(settings.schedule.every),
        "eval_clients": settings.schedule.clients,
        "execution": execution,
        "num_parameters": clients.size(jax.eval_shape(model.init, group.keys[0])),
    }


class Run:
    """One group being trained: its arguments on the device, its state, its history."""

    def __init__(
        self,
        group: Group,
        settings: settings_.Settings,
        store: checkpoint.Store | None,
    ):
        """Makes the first states, or reads those of the newest checkpoint."""
        first = group.federations[0]
        self._first, self._store = first, store
        self._num_points, self._num_rounds = len(group.points), settings.num_rounds
        self._plan, processes = planned(group, settings)
        plan = self._plan
        rows, pool = stacking.federation_rows(group.federations)
        keys = jnp.stack([own_key(key) for key in group.keys])
        first_states = (plan, processes, keys, rows, pool)
        like = jax.eval_shape(functools.partial(compiled.init, plan), *first_states[1:])
        self.recorder = recorder_.Recorder(
            points=tuple(group.points),
            models=_predictor_names(group),
            data=plan.schedule.data,
            num_rounds=settings.num_rounds,
            federations=group.described,
            stops=group.processes[0].on_nonfinite == "stop",
            stop_when=settings.stop_when,
        )
        self.config = configuration(group, settings, plan.model, str(plan))
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

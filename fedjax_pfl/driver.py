"""The scan over rounds, in compiled segments, for a group of grid points."""

import contextlib
import dataclasses
import functools
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from fedjax_pfl import (
    checks,
    clients,
    evaluate,
    history,
    schedule,
    stacking,
    struct,
    types,
)
from fedjax_pfl.data import statistics
from fedjax_pfl.process import FederatedProcess

__all__ = ["Group", "choose_execution", "run_group"]


@dataclasses.dataclass(frozen=True)
class _Plan:
    """Everything static of a compiled group."""

    model: Any
    execution: clients.Execution
    schedule: schedule.Schedule
    diagnostics: bool
    points_per_chunk: int


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


def choose_execution(
    model: Any, federation: types.Federation, cohort_size: int
) -> clients.Execution:
    """Picks how the map over clients is run on this machine.

    Several devices share the cohort. On a CPU a chunk of clients should stay in the L2
    cache (about 1 MB for parameters, gradient, anchor and a batch): chunks pay where a
    cohort holds many of them. Elsewhere everything is vmapped.

    Args:
      model: the model, already given the federation's shapes.
      federation: data.
      cohort_size: K.

    Returns:
      The execution.
    """
    if jax.device_count() > 1 and cohort_size >= jax.device_count():
        return clients.Execution(mode="shard")
    if jax.default_backend() != "cpu":
        return clients.Execution()
    params = jax.eval_shape(model.init, jax.random.key(0))
    floats = 4 * clients.size(params) + 32 * math.prod(federation.input_shape)
    fits = max(1, 2**18 // max(floats, 1))
    if cohort_size < 4 * fits or cohort_size < 32:
        return clients.Execution()
    return clients.Execution(mode="chunk", chunk_size=max(fits, 8))


def _map_points(
    fn: Callable[[Any, Any], Any], rows: Any, shared: Any, plan: _Plan
) -> Any:
    """Applies a function of one grid point to all; a single point is not vmapped."""
    if jax.tree.leaves(rows)[0].shape[0] == 1:
        single = fn(jax.tree.map(lambda leaf: leaf[0], rows), shared)
        return jax.tree.map(lambda leaf: leaf[None], single)
    return clients.map_chunks(fn, rows, shared, plan.points_per_chunk)


@functools.partial(jax.jit, static_argnames="plan")
def _init(plan: _Plan, processes: Any, keys: Any, rows: Any, pool: Any) -> types.State:
    """States of all points; compiled, so that no two leaves share a buffer."""

    def one(row, pool):
        process, key, fields = row
        return process.init(key, plan.model, stacking.join(fields, pool))

    return _map_points(one, (processes, keys, rows), pool, plan)


@functools.partial(jax.jit, static_argnames="plan", donate_argnames="states")
def _segment(
    plan: _Plan,
    processes: Any,
    states: Any,
    rows: Any,
    pool: Any,
    start: jax.Array,
    num_rounds: jax.Array,
) -> tuple[types.State, types.RoundInfo]:
    """Runs one segment of all points; rounds past `num_rounds` are masked."""

    def one(row, shared):
        process, state, fields = row
        pool, start, num_rounds = shared
        federation = stacking.join(fields, pool)

        def run(state):
            return process.round(state, plan.model, federation, plan.execution)

        report = jax.eval_shape(run, state)[1]

        def skip(state):
            return state, jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), report)

        def step(state, _):
            return lax.cond(state.round < num_rounds, run, skip, state)

        # The round number is the same for all points: as an unbatched value it keeps
        # the conditionals on it conditionals under vmap.
        state = dataclasses.replace(state, round=start)
        return lax.scan(step, state, None, length=plan.schedule.segment)

    return _map_points(one, (processes, states, rows), (pool, start, num_rounds), plan)


@functools.partial(jax.jit, static_argnames=("plan", "data"))
def _evaluate(
    plan: _Plan,
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
        metrics, diagnostics = evaluate.evaluate(
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
def _collaboration(plan: _Plan, processes: Any, states: Any, rows: Any, pool: Any):
    """Whom each client would learn from, where the method mixes messages."""

    def one(row, pool):
        process, state, fields = row
        return evaluate.collaboration(process, state, stacking.join(fields, pool))

    return _map_points(one, (processes, states, rows), pool, plan)


def _loop_segment(plan, processes, states, rows, pool, start, num_rounds):
    """The reference: Python loops over points, rounds and clients, nothing compiled."""
    outputs = []
    for point in range(jax.tree.leaves(rows)[0].shape[0]):
        process, state, fields = clients.take(
            (processes, states, rows), jnp.asarray(point)
        )
        federation, reports = stacking.join(fields, pool), []
        with jax.disable_jit():
            for _ in range(min(plan.schedule.segment, int(num_rounds - start))):
                state, info = process.round(
                    state, plan.model, federation, plan.execution
                )
                reports.append(info)
        empty = jax.tree.map(jnp.zeros_like, reports[-1])
        reports += [empty] * (plan.schedule.segment - len(reports))
        outputs.append(
            (state, jax.tree.map(lambda *leaves: jnp.stack(leaves), *reports))
        )
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *outputs)


@contextlib.contextmanager
def _compile_clock() -> Iterator[list[float]]:
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


def _own_key(key: types.Key) -> types.Key:
    """A copy of a key, so that donation leaves the caller's buffer alone."""
    if not jnp.issubdtype(jnp.asarray(key).dtype, jax.dtypes.prng_key):
        raise checks.InputError("Expected key to be made by jax.random.key(seed).")
    data = jnp.array(jax.random.key_data(key), copy=True)
    return jax.random.wrap_key_data(data, impl="threefry2x32")


def _check_examples(federations: Sequence[types.Federation]) -> None:
    """Refuses clients that have nothing to train on."""
    for federation in federations:
        empty = np.flatnonzero(np.asarray(federation.train.num_examples) == 0)
        if empty.size:
            raise checks.InputError(
                f"Expected every client to have training examples, but {empty.size} of "
                f"{federation.num_clients} have none, the first of them client "
                f"{empty[0]}."
            )


def run_group(
    group: Group,
    num_rounds: int,
    *,
    eval_every: int | None,
    execution: str | clients.Execution,
    evaluate_on: Sequence[str] | Mapping[str, int | None],
    diagnostics: bool,
    eval_clients: str | int = "all",
    points_per_chunk: int | None = None,
    advance: Callable[[int, str], None] = lambda rounds, text: None,
) -> tuple[history.History, types.State]:
    """Trains the points of one group together.

    Args:
      group: points of one structure.
      num_rounds: rounds R, at least 1.
      eval_every: see `schedule.Schedule.parse`.
      execution: how the map over clients is run, or `auto`.
      evaluate_on: see `schedule.Schedule.parse`.
      eval_clients: see `schedule.Schedule.parse`.
      diagnostics: whether to compute the algorithm's diagnostics at evaluations.
      points_per_chunk: points vmapped together; None picks.
      advance: called with rounds done since the last call and a short text.

    Returns:
      The history and the last states, with a leading axis of points.
    """
    planned = schedule.Schedule.parse(evaluate_on, eval_every, eval_clients, num_rounds)
    planned = planned.within(num_rounds)
    for federation in group.federations:
        planned.check(federation)
    started = time.perf_counter()
    with _compile_clock() as compile_clock:
        first = group.federations[0]
        model = group.model.for_federation(first)
        _check_examples(group.federations)
        size = group.processes[0].participation.cohort_size(first.num_clients)
        for process in group.processes:
            process.algorithm.check_cohort(size)
        if execution == "auto":
            execution = choose_execution(model, first, size)
        execution = clients.Execution.parse(execution)
        count = len(group.points)
        if points_per_chunk is None:
            points_per_chunk = 4 if jax.default_backend() == "cpu" else 64
        plan = _Plan(
            model=model,
            execution=execution,
            schedule=planned,
            diagnostics=diagnostics,
            points_per_chunk=min(points_per_chunk, count),
        )
        dtype = jnp.zeros(()).dtype
        processes = stacking.stack(
            [struct.as_arrays(p, dtype) for p in group.processes]
        )
        rows, pool = stacking.federation_rows(group.federations)
        keys = jnp.stack([_own_key(key) for key in group.keys])
        states = _init(plan, processes, keys, rows, pool)
        if execution.mode == "shard":
            place = functools.partial(
                clients.shard_rows, num_rows=first.num_clients, execution=execution
            )
            states, rows, pool, processes = map(place, (states, rows, pool, processes))
        one_state = jax.eval_shape(lambda s: jax.tree.map(lambda x: x[0], s), states)
        recorder = history.Recorder(
            points=tuple(group.points),
            models=evaluate.predictor_names(
                group.processes[0], one_state, model, first
            ),
            data=planned.data,
            num_rounds=num_rounds,
            federations=group.described,
            stops=group.processes[0].on_nonfinite == "stop",
        )
        segment = _loop_segment if execution.mode == "loop" else _segment

        def measure(done: int) -> None:
            is_last = done == num_rounds or recorder.all_diverged()
            data = planned.due(done, is_last)
            now = (processes, states, rows, pool)
            found = _evaluate(plan, data, *now)
            # A curve of its clusters needs the weights always, a heat map at the end.
            is_wanted = is_last or first.cluster is not None
            mixed = _collaboration(plan, *now) if is_wanted else {}
            recorder.evaluated(done, data, *found, collaboration=mixed)

        measure(0)
        done = 0
        while done < num_rounds and not recorder.all_diverged():
            states, info = segment(
                plan,
                processes,
                states,
                rows,
                pool,
                jnp.asarray(done, jnp.int32),
                jnp.asarray(num_rounds, jnp.int32),
            )
            ran = min(planned.segment, num_rounds - done)
            recorder.ran(done, ran, info)
            done += ran
            measure(done)
            advance(ran, recorder.headline())
        seconds = time.perf_counter() - started
        config = group.config | {
            "num_rounds": num_rounds,
            "eval_every": planned.segment,
            "evaluate_on": dict(planned.every),
            "eval_clients": planned.clients,
            "execution": str(execution),
            "num_parameters": clients.size(jax.eval_shape(model.init, group.keys[0])),
        }
        compiled = min(compile_clock[0], seconds)
    return recorder.finish(config, compiled, seconds - compiled), states

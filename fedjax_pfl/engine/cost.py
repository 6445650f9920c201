"""Memory and time of trainings: from their compiled programs, and from real rounds.

XLA reports the memory that a program needs in addition to its arguments.
"""

import dataclasses
import functools
import math
import pathlib
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from fedjax_pfl import core
from fedjax_pfl.core import checks, client_rows, sharding, struct
from fedjax_pfl.engine import evaluation
from fedjax_pfl.engine.groups import Plan

if TYPE_CHECKING:
    from fedjax_pfl.engine.resident import Resident

__all__ = [
    "Memory",
    "Pace",
    "available_bytes",
    "check",
    "check_arrays",
    "memory",
    "pace",
    "shown",
]

_SECONDS = 1.0
"""Seconds for which rounds are timed, about."""

_LONG = 3.0
"""Seconds above which a first call is hardly slower than a second one."""


@dataclasses.dataclass(frozen=True)
class Memory:
    """Bytes that a group of trainings needs: of all devices on a CPU, else of one."""

    points: int  # grid points G
    data: int  # examples, and rows of all points' federations
    state: int  # of all points
    server: int  # the part of `state` without a row per client
    round: int  # further bytes of a segment, or of first states
    evaluation: int  # further bytes of an evaluation
    history: int  # on the host
    compiler: int  # of the host, not given back after compiling

    @property
    def total(self) -> int:
        """Bytes of device and host together."""
        return self.device + self.history + self.compiler

    @property
    def device(self) -> int:
        """Bytes on the device at the worst moment."""
        return self.data + self.state + max(self.round, self.evaluation)


def memory(trainer: "Resident", *, work: bool = True) -> Memory:
    """Adds up the memory of a group; without `work`, of arrays only, not compiled."""
    states, copies = trainer.like, _copies(trainer.planned.plan)
    state = _device_bytes((states, trainer.extra_shapes)) * copies
    rounds = evaluations = 0
    if work:
        # `loop` compiles no rounds: the first state stands for them. Memory that
        # libraries of XLA allocate in a running program is not included.
        needed = {n: _work_bytes(p) for n, p in trainer.compiled().items()}
        first_state = needed.pop(("init",)) * copies - state
        rounds = max(needed.pop(("segment",), 0) * copies, first_state)
        evaluations = max(needed.values()) * copies
    return Memory(
        points=len(trainer.planned.group.points),
        data=_device_bytes(trainer.fixed) * copies,
        state=state,
        server=_device_bytes((states.server, states.memory.get("mean"))) * copies,
        round=rounds,
        evaluation=evaluations,
        history=_history_bytes(trainer),
        compiler=trainer.programs.compiler_bytes,
    )


def _copies(plan: Plan) -> int:
    """Counts the devices of a group that share one memory."""
    if jax.default_backend() != "cpu":
        return 1
    for execution in (plan.execution, plan.points):
        if execution.mode == "shard":
            return sharding.client_mesh(execution.num_devices).local_mesh.size
    return 1


def _device_bytes(tree: core.Tree) -> int:
    """Bytes of the distinct arrays of a tree, or of shapes, on one of their devices."""

    def size(leaf: jax.Array | jax.ShapeDtypeStruct) -> int:
        split = getattr(leaf, "sharding", None)
        shape = leaf.shape if split is None else split.shard_shape(leaf.shape)
        return math.prod(shape) * leaf.dtype.itemsize

    distinct = {id(leaf): leaf for leaf in jax.tree.leaves(tree)}
    return sum(map(size, distinct.values()))


def _work_bytes(program: jax.stages.Compiled) -> int:
    """Returns bytes of a program in addition to its arguments, on one device."""
    analysis = program.memory_analysis()
    if analysis is None:  # of backends that do not report it
        return 0
    outputs = analysis.output_size_in_bytes - analysis.alias_size_in_bytes
    return analysis.temp_size_in_bytes + outputs


def _history_bytes(trainer: "Resident") -> int:
    """Bytes of the history: float64 for all clients, and once more when stacked."""
    planned = trainer.planned
    segment = planned.plan.schedule.segment
    num_evaluations = 1 + -(-planned.options.num_rounds // segment)
    metrics, pairs = trainer.measured()
    models, data, _ = next(iter(metrics.values())).shape[1:]
    values = len(planned.group.points) * planned.num_clients
    values *= 8 * len(metrics) * models * data + data + 8
    clusters = client_rows.size(pairs.get("own_cluster")) * 8
    snapshot = client_rows.size([pairs.get(n) for n in ("weights", "series")]) * 8
    return 2 * num_evaluations * (values + clusters) + snapshot


@dataclasses.dataclass(frozen=True)
class Pace:
    """Measured seconds of a group of trainings."""

    compilation: float  # lowering, and waiting for the compiler
    start: float  # making the first states
    round: float  # of all points, a mean of measured rounds
    evaluation: float  # on all data of the schedule

    def total(self, num_rounds: int, num_evaluations: int) -> float:
        """Returns seconds of a training; all evaluations count as ones on all data."""
        work = num_rounds * self.round + num_evaluations * self.evaluation
        return self.compilation + self.start + work


def pace(trainer: "Resident") -> Pace:
    """Times a few real rounds, and an evaluation, of a group of grid points."""
    trainer.compiled()
    planned = trainer.planned
    num_rounds, schedule = planned.options.num_rounds, planned.plan.schedule
    active, done = np.ones(len(planned.group.points), bool), 0

    def timed(call: Callable[..., Any], *args: Any, **kwargs: Any) -> float:
        start_time = time.perf_counter()
        call(*args, **kwargs)
        jax.block_until_ready(trainer.states)
        return time.perf_counter() - start_time

    def run(count: int) -> float:
        nonlocal done
        count = min(count, schedule.segment)
        seconds = timed(trainer.advance, active, done, count)
        done += count
        return seconds / count

    start = timed(trainer.begin)
    # The first round and the first evaluation touch memory for the first time: they
    # count only if they take so long that this does not matter.
    round_seconds = run(1)
    seconds = [round_seconds] if round_seconds > _LONG else []
    spent = sum(seconds)
    while done < num_rounds and spent < _SECONDS:
        # Many rounds in a call, as in trainings: each call has a start of its own.
        count = min(int(_SECONDS / max(round_seconds, 1e-6)), num_rounds - done)
        count = max(1, min(count, schedule.segment))
        round_seconds = run(count)
        seconds += [round_seconds] * count
        spent += round_seconds * count
    evaluation = timed(trainer.evaluate, schedule.data, is_last=False)
    if evaluation <= _LONG:
        evaluation = timed(trainer.evaluate, schedule.data, is_last=False)
    return Pace(
        compilation=trainer.compile_seconds,
        start=start,
        round=float(np.mean(seconds)) if seconds else round_seconds,
        evaluation=evaluation,
    )


def _cgroup_bytes(
    root: pathlib.Path = pathlib.Path("/sys/fs/cgroup"),
    groups: pathlib.Path = pathlib.Path("/proc/self/cgroup"),
) -> int | None:
    """Reads the bytes that control groups leave to this process; None if unlimited."""
    try:
        text = groups.read_text("utf-8")
    except OSError:
        return None
    free: list[int] = []
    for line in text.splitlines():
        _, names, path = line.split(":", 2)
        # Version 2 of control groups has one line without names; version 1 has a line
        # per controller. Every ancestor may have a limit.
        if not names:
            base, files = root, ("memory.max", "memory.current", "inactive_file")
        elif "memory" in names.split(","):
            base = root / "memory"
            files = ("limit_in_bytes", "usage_in_bytes", "total_inactive_file")
            files = (f"memory.{files[0]}", f"memory.{files[1]}", files[2])
        else:
            continue
        group_path = pathlib.PurePosixPath(path.lstrip("/"))
        for folder in (base / part for part in (group_path, *group_path.parents)):
            try:
                limit = (folder / files[0]).read_text("utf-8").strip()
                used_bytes = int((folder / files[1]).read_text("utf-8"))
                stat = (folder / "memory.stat").read_text("utf-8").split()
            except OSError:
                continue
            if limit != "max":  # files that were read once can be dropped
                cached = dict(zip(stat[::2], stat[1::2], strict=True)).get(files[2], 0)
                free.append(max(int(limit) - used_bytes + int(cached), 0))
    return min(free, default=None)


def available_bytes(*, host: bool = False) -> int | None:
    """Returns the bytes that are free now; None if unknown."""
    if not host and jax.default_backend() != "cpu":
        stats = jax.local_devices()[0].memory_stats() or {}
        limit = stats.get("bytes_limit")
        return None if limit is None else limit - stats.get("bytes_in_use", 0)
    import psutil  # only when a training begins

    # A container may leave less than the machine has.
    group = _cgroup_bytes()
    machine = psutil.virtual_memory().available
    return machine if group is None else min(machine, group)


def check_arrays(trainer: "Resident") -> None:
    """Refuses a group with arrays that alone will not fit, without compiling."""
    needed = memory(trainer, work=False)
    # Federations that are in memory already need no more.
    federations = jax.tree.leaves(trainer.planned.group.federations)
    held = _device_bytes([leaf for leaf in federations if isinstance(leaf, jax.Array)])
    _refuse(trainer, needed, held=min(held, needed.data))


def check(trainer: "Resident", *, is_held: bool = True) -> Memory:
    """Refuses a group of grid points that will not fit into memory."""
    needed = memory(trainer)
    _refuse(trainer, needed, held=needed.data if is_held else 0)
    return needed


def _refuse(trainer: "Resident", needed: Memory, held: int) -> None:
    """Raises an error if a group needs more memory than there is."""
    limit = trainer.planned.options.parsed_memory
    if limit == "none":
        return
    on_host = jax.default_backend() == "cpu"

    def missing(needed: Memory, held: int) -> int:
        return needed.device - held + (needed.history if on_host else 0)

    # A limit counts everything; free memory, only what is not held yet.
    if isinstance(limit, int):
        free, held, source = limit, 0, "the limit is {}"
    else:
        free, source = available_bytes(), "{} are free"
    total = missing(needed, held)
    if free is not None and total > free:
        new = dataclasses.replace(needed, data=needed.data - held)
        parts = ["data", "state"]
        # If data and states alone exceed the memory, no setting of a round helps.
        if new.data + new.state <= free:
            parts += ["round", "evaluation"] + ["history"] * on_host
        largest = max(parts, key=lambda name: getattr(new, name))
        advice = _advice(needed, largest)
        if needed.round + needed.evaluation:  # the programs are known
            named, suffices = _helping(
                _changes(largest, trainer),
                lambda candidate: missing(memory(candidate), held),
                total,
                free,
            )
            if suffices:
                advice = f"use {named}"
            elif named:
                advice = f"use {named}, and {advice}"
        raise _refusal(new, largest, total, source.format(shown(free)), advice)
    spare = available_bytes(host=True)
    if not on_host and limit == "free" and spare is not None and needed.history > spare:
        advice, supply = _advice(needed, "history"), f"{shown(spare)} are free"
        raise _refusal(needed, "history", needed.history, supply, advice)


def _refusal(
    needed: Memory, largest: str, total: int, supply: str, advice: str
) -> checks.InputError:
    """Returns the error, with its one sentence."""
    of = f" of {needed.points} grid points" if needed.points > 1 else ""
    part = {"round": "work of a round"}.get(largest, largest) + of
    return checks.InputError(
        f"Training needs about {shown(total)} of memory ({part}:"
        f" {shown(getattr(needed, largest))}), but {supply}: {advice}."
    )


def shown(size: int) -> str:
    """Formats a number of bytes for people, for example `1.5 GB`."""
    if size >= 1e12:
        return f"{size / 1e9:,.0f} GB"
    for unit, name in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if size >= unit:
            return f"{size / unit:.3g} {name}"
    return f"{size} B"


def _advice(needed: Memory, largest: str) -> str:
    """Returns advice that lowers a part, without numbers."""
    fewer = "fewer clients (federation.num_clients)"
    advice = {
        "data": f"use {fewer}",
        "state": f"use {fewer} or a smaller model",
        "round": f"use {fewer}, a smaller batch_size or a smaller model",
        "evaluation": "evaluate on fewer data (evaluate_on) or use a smaller model",
        "history": f"evaluate less often (eval_every) or use {fewer}",
    }[largest]
    if largest == "state" and needed.server > needed.state / 2:
        advice = "use a smaller model"
    points = "sweep fewer points at once, or " if needed.points > 1 else ""
    return points + advice


_Change = tuple[str, int, Callable[[int], "Resident"]]


def _changes(largest: str, trainer: "Resident") -> Iterator[_Change]:
    """Yields settings that may lower a part: name with a gap, value, and change."""
    planned, plan = trainer.planned, trainer.planned.plan

    def with_plan(**fields: Any) -> "Resident":
        return trainer.changed(plan=dataclasses.replace(plan, **fields))

    def with_field(name: str, value: int) -> "Resident":
        return trainer.changed(
            processes=[struct.replace_field(p, name, value) for p in planned.processes]
        )

    def with_sample(clients: int) -> "Resident":
        schedule = dataclasses.replace(plan.schedule, clients=clients)
        return with_plan(schedule=schedule)

    def with_chunk(size: int) -> "Resident":
        return with_plan(execution=sharding.Execution("chunk", size))

    # Settings without effect on the results come first, the method's fields last.
    if largest in ("round", "evaluation"):
        points = plan.points_per_chunk
        yield "points_per_chunk={}", points, lambda k: with_plan(points_per_chunk=k)
    if largest == "evaluation":
        count = plan.schedule.clients
        count = planned.num_clients if isinstance(count, str) else count
        yield "eval_clients={}", min(count, evaluation.CHUNK), with_sample
    if largest != "round":
        return
    process = planned.processes[0]
    size = process.participation.cohort_size(planned.num_clients)
    at_once = {"vmap": size, "chunk": plan.execution.chunk_size}
    yield "execution='chunk={}'", at_once.get(plan.execution.mode, 1), with_chunk
    for name, value in struct.named_fields(process):
        if name.endswith((".batch_size", "participation.size")):
            yield f"{name}={{}}", value, functools.partial(with_field, name)


def _helping(
    changes: Iterator[_Change], still_needed: Any, needed: int, free: int
) -> tuple[str, bool]:
    """Finds a change with which a training fits, else all changes that help."""
    texts = []
    for name, value, change in changes:
        if value <= 1:
            continue
        # Compiled again, with the smallest value of the setting.
        total = still_needed(change(1))
        if total <= free:  # memory grows linearly with these settings
            size = 1 + int((value - 1) * (free - total) / (needed - total))
            return name.format(size), True
        if total < 0.8 * needed:
            texts.append(name.format(1))
    return " and ".join(texts), False

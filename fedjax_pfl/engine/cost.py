"""Memory and time of trainings: from their compiled programs, and from real rounds.

XLA says how much memory a compiled program needs besides its arguments, which are
arrays of known shapes. Time is measured on a few rounds.
"""

import dataclasses
import math
import pathlib
import time
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from fedjax_pfl.core import checks, client_rows, sharding, struct
from fedjax_pfl.engine import evaluation as evaluations
from fedjax_pfl.engine import programs
from fedjax_pfl.engine.groups import PlannedGroup
from fedjax_pfl.engine.options import Options

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
"""Rounds are timed for about as long."""


@dataclasses.dataclass(frozen=True)
class Memory:
    """Bytes that a group of trainings needs, by part.

    Of what is on devices: on a CPU those of all devices, which share its memory; else
    those of one device.

    Attributes:
      points: grid points G.
      data: examples and the rows of all points' federations.
      state: states of all points.
      server: what of `state` has no row per client.
      round: what a segment of rounds needs besides, or the first state.
      evaluation: what an evaluation needs besides.
      history: what the host keeps.
      compiler: what compiling has left in the host's memory, as it was measured.
    """

    points: int
    data: int
    state: int
    server: int
    round: int
    evaluation: int
    history: int
    compiler: int

    @property
    def total(self) -> int:
        """Bytes of device and host together."""
        return self.device + self.history + self.compiler

    @property
    def device(self) -> int:
        """Bytes on the device at the worst moment."""
        return self.data + self.state + max(self.round, self.evaluation)


def memory(group: programs.Programs, num_rounds: int, *, work: bool = True) -> Memory:
    """Adds up the memory of a group of grid points.

    Args:
      group: its programs. Waits for the compiler.
      num_rounds: rounds R.
      work: whether to ask the compiled programs; False counts arrays only, and compiles
        nothing.

    Returns:
      Bytes by part. Of `loop`, which compiles no rounds, `round` is that of the first
      state. Not included is what XLA's libraries allocate while a program runs.
    """
    states, copies = group.states, _copies(group)
    processes, rows, pool = group.fixed
    data = _device_bytes((processes, rows, pool)) * copies
    state = _device_bytes(states) * copies
    round_ = evaluation = 0
    if work:
        found = {name: _work_bytes(program) for name, program in group.wait().items()}
        # The first states are made by one device, and then placed.
        first = found.pop(("init",)) - (0 if copies > 1 else _device_bytes(states))
        round_ = max(found.pop(("segment",), 0) * copies, first)
        evaluation = max(found.values()) * copies
    return Memory(
        points=group.num_points,
        data=data,
        state=state,
        server=_device_bytes((states.server, states.aggregate)) * copies,
        round=round_,
        evaluation=evaluation,
        history=_history_bytes(group, num_rounds),
        compiler=group.compiler_bytes,
    )


def _copies(group: programs.Programs) -> int:
    """Devices of the group that share one memory."""
    if jax.default_backend() != "cpu":
        return 1
    for execution in (group.plan.execution, group.plan.points):
        if execution.mode == "shard":
            return sharding.client_mesh(execution.num_devices).local_mesh.size
    return 1


def _device_bytes(tree: Any) -> int:
    """Bytes of the distinct arrays of a tree, or of shapes, on one of their devices."""

    def size(leaf: Any) -> int:
        split = getattr(leaf, "sharding", None)
        shape = leaf.shape if split is None else split.shard_shape(leaf.shape)
        return math.prod(shape) * leaf.dtype.itemsize

    distinct = {id(leaf): leaf for leaf in jax.tree.leaves(tree)}
    return sum(map(size, distinct.values()))


def _work_bytes(program: jax.stages.Compiled) -> int:
    """Bytes that a program needs besides its arguments, on one device."""
    found = program.memory_analysis()
    if found is None:  # where a backend does not say
        return 0
    made = found.output_size_in_bytes - found.alias_size_in_bytes
    return found.temp_size_in_bytes + made


def _history_bytes(group: programs.Programs, num_rounds: int) -> int:
    """Bytes of the history: float64 for all clients, and once more when stacked."""
    plan = group.plan
    num_evaluations = 1 + -(-num_rounds // plan.schedule.segment)
    metrics, mixed = group.measured()
    models, data, _ = next(iter(metrics.values())).shape[1:]
    values = group.num_points * group.num_clients
    values *= 8 * len(metrics) * models * data + data + 8
    own = client_rows.size(mixed.get("own_cluster")) * 8
    last = client_rows.size([mixed.get(name) for name in ("weights", "series")]) * 8
    return 2 * num_evaluations * (values + own) + last


@dataclasses.dataclass(frozen=True)
class Pace:
    """Seconds that a group of trainings takes, measured.

    Attributes:
      compilation: lowering, and waiting for the compiler.
      start: making the first states.
      round: one round of all points, at the mean of those that were run.
      evaluation: one evaluation on everything that is ever evaluated.
    """

    compilation: float
    start: float
    round: float
    evaluation: float

    def total(self, num_rounds: int, num_evaluations: int) -> float:
        """Seconds of a training; evaluations count as if all were on everything."""
        work = num_rounds * self.round + num_evaluations * self.evaluation
        return self.compilation + self.start + work


def pace(group: programs.Programs, num_rounds: int) -> Pace:
    """Times a few real rounds, and an evaluation, of a group of grid points.

    Args:
      group: its programs.
      num_rounds: rounds R, of which at most so many are run.

    Returns:
      Seconds. The first round and the first evaluation, which touch memory for the
      first time, are run before the clock starts.
    """
    group.wait()
    states, start = _timed(group.init)
    active = np.ones(group.num_points, bool)
    done, length = 0, group.plan.schedule.segment

    def run(count: int) -> float:
        nonlocal states, done
        count = min(count, length)
        (states, _), seconds = _timed(
            lambda: group.segment(states, active, done, done + count)
        )
        done += count
        return seconds / count

    each = run(1)
    spent, seconds = 0.0, []
    while done < num_rounds and spent < _SECONDS:
        count = max(1, min(int(_SECONDS / max(each, 1e-6)), num_rounds - done, length))
        each = run(count)
        seconds += [each] * count
        spent += each * count
    data = group.plan.schedule.data
    evaluation = [_timed(lambda: group.evaluate(states, data))[1] for _ in range(2)]
    return Pace(
        compilation=group.seconds,
        start=start,
        round=float(np.mean(seconds)) if seconds else each,
        evaluation=evaluation[-1],
    )


def _timed(call: Any) -> tuple[Any, float]:
    """Returns a call's result, when it is there, and the seconds that it took."""
    started = time.perf_counter()
    found = jax.block_until_ready(call())
    return found, time.perf_counter() - started


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
        if not names:
            base, files = root, ("memory.max", "memory.current", "inactive_file")
        elif "memory" in names.split(","):
            base = root / "memory"
            files = ("limit_in_bytes", "usage_in_bytes", "total_inactive_file")
            files = (f"memory.{files[0]}", f"memory.{files[1]}", files[2])
        else:
            continue
        own = pathlib.PurePosixPath(path.lstrip("/"))
        for folder in (base / part for part in (own, *own.parents)):
            try:
                limit = (folder / files[0]).read_text("utf-8").strip()
                used = int((folder / files[1]).read_text("utf-8"))
                stat = (folder / "memory.stat").read_text("utf-8").split()
            except OSError:
                continue
            if limit != "max":  # files that were read once can be dropped
                cached = dict(zip(stat[::2], stat[1::2], strict=True)).get(files[2], 0)
                free.append(max(int(limit) - used + int(cached), 0))
    return min(free, default=None)


def available_bytes(*, host: bool = False) -> int | None:
    """Memory that is free now; None if that is not known.

    Args:
      host: whether to ask for the host's instead of one device's.

    Returns:
      Bytes. On a CPU, and for the host, the smaller of what the machine has available
      and what the process's control group leaves.
    """
    if not host and jax.default_backend() != "cpu":
        stats = jax.local_devices()[0].memory_stats() or {}
        limit = stats.get("bytes_limit")
        return None if limit is None else limit - stats.get("bytes_in_use", 0)
    import psutil  # only where a training begins

    group = _cgroup_bytes()
    machine = psutil.virtual_memory().available
    return machine if group is None else min(machine, group)


def check_arrays(group: programs.Programs, planned: PlannedGroup) -> None:
    """Refuses a group whose arrays alone will not fit; compiles nothing.

    Args:
      group: its programs; those of shapes do.
      planned: the group; what of its federations is in memory needs no more.

    Raises:
      InputError: if they do not fit; the sentence says which option to change.
    """
    options = planned.options
    needed = memory(group, options.num_rounds, work=False)
    leaves = {id(leaf): leaf for leaf in jax.tree.leaves(planned.group.federations)}
    held = _device_bytes(
        [leaf for leaf in leaves.values() if isinstance(leaf, jax.Array)]
    )
    _refuse(group, needed, options, held=min(held, needed.data))


def check(
    group: programs.Programs, options: Options, *, is_held: bool = True
) -> Memory:
    """Refuses a group of grid points that will not fit into memory.

    Args:
      group: its programs. Waits for the compiler.
      options: of its training.
      is_held: whether its data are in the memory already.

    Returns:
      The memory by part.

    Raises:
      InputError: if it does not fit; the sentence says which option to change.
    """
    needed = memory(group, options.num_rounds)
    _refuse(group, needed, options, held=needed.data if is_held else 0)
    return needed


def _refuse(
    group: programs.Programs, needed: Memory, options: Options, held: int
) -> None:
    """Raises an error where what is needed is more than what there is."""
    limit = options.parsed_memory
    if limit == "none":
        return
    on_host = jax.default_backend() == "cpu"

    def missing(needed: Memory, held: int) -> int:
        return needed.device - held + (needed.history if on_host else 0)

    if isinstance(limit, int):
        free, held, source = limit, 0, "the limit is {}"
    else:
        free, source = available_bytes(), "{} are free"
    total = missing(needed, held)
    if free is not None and total > free:
        new = dataclasses.replace(needed, data=needed.data - held)
        parts = ["data", "state"]
        if new.data + new.state <= free:
            parts += ["round", "evaluation"] + ["history"] * on_host
        largest = max(parts, key=lambda name: getattr(new, name))
        advice = _advice(needed, largest)
        if needed.round + needed.evaluation:  # the programs are known
            changes = _changes(largest, group)
            named, suffices = _helping(
                changes,
                lambda other: missing(memory(other, options.num_rounds), held),
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
        advice, there = _advice(needed, "history"), f"{shown(spare)} are free"
        raise _refusal(needed, "history", needed.history, there, advice)


def _refusal(
    found: Memory, largest: str, needed: int, there: str, advice: str
) -> checks.InputError:
    """Returns the error, with its one sentence."""
    of = f" of {found.points} grid points" if found.points > 1 else ""
    what = {"round": "work of a round"}.get(largest, largest) + of
    return checks.InputError(
        f"Training needs about {shown(needed)} of memory ({what}:"
        f" {shown(getattr(found, largest))}), but {there}: {advice}."
    )


def shown(size: int) -> str:
    """Formats a number of bytes for people, for example `1.5 GB`."""
    if size >= 1e12:
        return f"{size / 1e9:,.0f} GB"
    for unit, name in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if size >= unit:
            return f"{size / unit:.3g} {name}"
    return f"{size} B"


def _advice(found: Memory, largest: str) -> str:
    """Returns advice that lowers a part, without numbers."""
    fewer = "fewer clients (federation.num_clients)"
    advice = {
        "data": f"use {fewer}",
        "state": f"use {fewer} or a smaller model",
        "round": f"use {fewer}, a smaller batch_size or a smaller model",
        "evaluation": "evaluate on fewer data (evaluate_on) or use a smaller model",
        "history": f"evaluate less often (eval_every) or use {fewer}",
    }[largest]
    if largest == "state" and found.server > found.state / 2:
        advice = "use a smaller model"
    points = "sweep fewer points at once, or " if found.points > 1 else ""
    return points + advice


_Change = tuple[str, int, Any]


def _changes(largest: str, group: programs.Programs) -> Iterator[_Change]:
    """Settings that may lower a part: name with a gap, value now, how to change it."""
    plan, processes = group.plan, group.start[0]

    def planned(**fields: Any) -> programs.Programs:
        return group.like(dataclasses.replace(plan, **fields), processes)

    if largest in ("round", "evaluation"):
        points = plan.points_per_chunk
        yield "points_per_chunk={}", points, lambda k: planned(points_per_chunk=k)
    if largest == "evaluation":
        some = plan.schedule.clients
        some = group.num_clients if isinstance(some, str) else some

        def sample(number: int) -> programs.Programs:
            schedule = dataclasses.replace(plan.schedule, clients=number)
            return planned(schedule=schedule)

        yield "eval_clients={}", min(some, evaluations.CHUNK), sample
    if largest != "round":
        return
    size = processes.participation.cohort_size(group.num_clients)
    at_once = {"vmap": size, "chunk": plan.execution.chunk_size}

    def chunked(number: int) -> programs.Programs:
        return planned(execution=sharding.Execution("chunk", number))

    yield "execution='chunk={}'", at_once.get(plan.execution.mode, 1), chunked
    for name, value in struct.named_fields(processes):
        if name.endswith((".batch_size", "participation.size")):
            yield (
                f"{name}={{}}",
                value,
                lambda k, name=name: group.like(
                    plan, struct.replace_field(processes, name, k)
                ),
            )


def _helping(
    changes: Iterator[_Change], still_needed: Any, needed: int, free: int
) -> tuple[str, bool]:
    """The first change with which a training fits, or all that help; whether it fits.

    That they help is found by compiling again, with the smallest value of each.
    """
    helping = []
    for name, value, change in changes:
        if value <= 1:
            continue
        least = still_needed(change(1))
        if least <= free:  # memory grows linearly with these settings
            most = 1 + int((value - 1) * (free - least) / (needed - least))
            return name.format(most), True
        if least < 0.8 * needed:
            helping.append(name.format(1))
    return " and ".join(helping), False

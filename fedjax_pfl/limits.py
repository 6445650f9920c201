"""Memory that a group of trainings will need, estimated before anything is compiled.

The programs of the group are traced, which costs nothing extra: JAX keeps the traces
for the compilation. What exists at once in them is counted: activations, gradients,
messages, copies that an aggregator makes, whatever the algorithm. On a CPU the result
has been within a factor of 2 of the resident memory.
"""

import dataclasses
import pathlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import psutil

from fedjax_pfl import checks, clients, compiled, liveness, programs, struct, types
from fedjax_pfl import evaluate as evaluations

__all__ = ["Estimate", "available_bytes", "check", "estimate"]

COMPILER = 50 * 10**6
EQUATION = 175 * 10**3
"""Host memory of the compiler, and of each equation that it compiles; measured."""


@dataclasses.dataclass(frozen=True)
class Estimate:
    """Bytes that a group of trainings needs, by part.

    Attributes:
      points: grid points G.
      data: examples, and the stacked rows (and pools, where they differ) of all points.
      held: what of `data` is on the device already.
      state: states of all points.
      server: what of `state` has no row per client.
      round: a segment of rounds, or the making of the first state, beyond `state`.
      evaluation: an evaluation, beyond `state`.
      history: what the host keeps.
      compiler: what compilation leaves on the host.
    """

    points: int
    data: int
    held: int
    state: int
    server: int
    round: int
    evaluation: int
    history: int
    compiler: int

    @property
    def device(self) -> int:
        """Bytes to be allocated on the device at the worst moment."""
        work = max(self.round, self.evaluation)
        return self.part("data") + self.state + work

    def part(self, name: str) -> int:
        """Bytes to be allocated for a part."""
        return self.data - self.held if name == "data" else getattr(self, name)

    @property
    def host(self) -> int:
        """Bytes to be allocated by the host for itself."""
        return self.history + self.compiler


def estimate(
    plan: compiled.Plan,
    processes: Any,
    federations: Sequence[types.Federation],
    num_rounds: int,
) -> Estimate:
    """Estimates the memory of a group of grid points; compiles and computes nothing.

    Args:
      plan: everything static.
      processes: the points' processes, stacked.
      federations: one per point; shapes in place of arrays are not yet held.
      num_rounds: rounds R.

    Returns:
      Bytes by part. On a CPU, with several devices in one memory, those of all devices;
      else those of one device.
    """
    points, on_host = len(federations), jax.default_backend() == "cpu"
    shards, mode = 1, plan.execution.mode
    if mode == "shard" and on_host:
        shards = clients.client_mesh(plan.execution.num_devices).size
    found = programs.trace(plan, processes, federations)
    measured = found.evaluate(plan.schedule.data)
    state = liveness.tree_bytes(found.states)
    pools = liveness.tree_bytes(found.pool) if plan.point_devices > 1 else 0
    if on_host:
        pools *= plan.point_devices - 1
    else:
        state //= plan.point_devices
    given = {id(leaf): leaf for leaf in jax.tree.leaves(federations)}
    return Estimate(
        points=points,
        data=liveness.tree_bytes(given)
        + shards * liveness.tree_bytes(found.rows)
        + pools,
        held=liveness.tree_bytes(
            [leaf for leaf in given.values() if isinstance(leaf, jax.Array)]
        ),
        state=shards * state,
        server=shards
        * liveness.tree_bytes((found.states.server, found.states.aggregate)),
        round=max(_work_bytes(found.segment), _work_bytes(found.init) - state),
        evaluation=max(_work_bytes(measured), _work_bytes(found.mixed)),
        history=_history_bytes(
            plan, num_rounds, federations, measured.out_info[1], found.mixed.out_info
        ),
        compiler=(COMPILER + EQUATION * found.num_equations()) if on_host else 0,
    )


def _work_bytes(program: jax.stages.Traced) -> int:
    """Bytes that a program needs beyond its arguments."""
    arguments = jax.tree.leaves(program.args_info)
    donated = [n for n, leaf in enumerate(arguments) if leaf.donated]
    inputs = program.jaxpr.jaxpr.invars
    reused = sum(liveness.tree_bytes(inputs[n].aval) for n in donated)
    return max(liveness.peak_bytes(program.jaxpr.jaxpr, donated) - reused, 0)


def _history_bytes(
    plan: compiled.Plan,
    num_rounds: int,
    federations: Sequence[types.Federation],
    metrics: dict[str, Any],
    mixed: dict[str, Any],
) -> int:
    """Bytes of the history: float64 for all clients, and once more when stacked."""
    points, num_clients = len(federations), federations[0].num_clients
    evaluations = 1 + -(-num_rounds // plan.schedule.segment)
    models, data, _ = next(iter(metrics.values())).shape[1:]
    values = points * num_clients * (8 * len(metrics) * models * data + data + 8)
    own = liveness.tree_bytes(mixed.get("own_cluster"))
    last = liveness.tree_bytes([mixed.get(name) for name in ("weights", "series")])
    return 2 * evaluations * (values + own) + last


def _cgroup_bytes(
    root: pathlib.Path = pathlib.Path("/sys/fs/cgroup"),
    groups: pathlib.Path = pathlib.Path("/proc/self/cgroup"),
) -> int | None:
    """What control groups, version 2 or 1, leave to this process; None if unlimited."""
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
    group = _cgroup_bytes()
    machine = psutil.virtual_memory().available
    return machine if group is None else min(machine, group)


def check(
    plan: compiled.Plan,
    processes: Any,
    federations: Sequence[types.Federation],
    num_rounds: int,
) -> Estimate:
    """Refuses a group of grid points that will not fit into memory.

    Args:
      plan: everything static.
      processes: the points' processes, stacked.
      federations: one per point.
      num_rounds: rounds R.

    Returns:
      The estimate.

    Raises:
      InputError: if it does not fit; the sentence says which setting to change.
    """
    found = estimate(plan, processes, federations, num_rounds)
    on_host = jax.default_backend() == "cpu"
    device = found.device + (found.host if on_host else 0)
    free = available_bytes()
    if free is not None and device > free:
        parts = ["data", "state"]
        if found.part("data") + found.state <= free:
            parts += ["round", "evaluation"] + ["history"] * on_host
        largest = max(parts, key=found.part)

        def still_needed(plan: compiled.Plan, processes: Any) -> int:
            other = estimate(plan, processes, federations, num_rounds)
            return other.device + (other.host if on_host else 0)

        changes = _changes(largest, plan, processes, federations[0].num_clients)
        named, suffices = _helping(changes, still_needed, device, free)
        advice = _advice(found, largest)
        if suffices:
            advice = f"use {named}"
        elif named:
            advice = f"use {named}, and {advice}"
        raise _refusal(found, largest, device, free, advice)
    spare = available_bytes(host=True)
    if not on_host and spare is not None and found.host > spare:
        advice = _advice(found, "history")
        raise _refusal(found, "history", found.host, spare, advice)
    return found


def _refusal(
    found: Estimate, largest: str, needed: int, free: int, advice: str
) -> checks.InputError:
    """The error, with its one sentence."""
    of = f" of {found.points} grid points" if found.points > 1 else ""
    what = {"round": "work of a round"}.get(largest, largest) + of
    return checks.InputError(
        f"Training needs about {_shown(needed)} of memory ({what}:"
        f" {_shown(found.part(largest))}), but {_shown(free)} are free: {advice}."
    )


def _shown(size: int) -> str:
    """A number of bytes to read."""
    return f"{size / 1e9:,.3g} GB" if size < 1e12 else f"{size / 1e9:,.0f} GB"


def _advice(found: Estimate, largest: str) -> str:
    """What lowers a part, without numbers."""
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


_Change = Callable[[int], tuple[compiled.Plan, Any]]


def _changes(
    largest: str, plan: compiled.Plan, processes: Any, num_clients: int
) -> Iterator[tuple[str, int, _Change]]:
    """Settings that may lower a part: name with a gap, value now, how to change it."""

    def planned(**fields: Any) -> tuple[compiled.Plan, Any]:
        return dataclasses.replace(plan, **fields), processes

    if largest in ("round", "evaluation"):
        points = plan.points_per_chunk
        yield "points_per_chunk={}", points, lambda k: planned(points_per_chunk=k)
    if largest == "evaluation":
        some = plan.schedule.clients
        some = num_clients if isinstance(some, str) else some

        def sample(number: int) -> tuple[compiled.Plan, Any]:
            schedule = dataclasses.replace(plan.schedule, clients=number)
            return planned(schedule=schedule)

        yield "eval_clients={}", min(some, evaluations.CHUNK), sample
    if largest != "round":
        return
    size = processes.participation.cohort_size(num_clients)
    at_once = {"vmap": size, "chunk": plan.execution.chunk_size}

    def chunked(number: int) -> tuple[compiled.Plan, Any]:
        return planned(execution=clients.Execution("chunk", number))

    yield "execution='chunk={}'", at_once.get(plan.execution.mode, 1), chunked
    for name, value in struct.named_fields(processes):
        if name.endswith((".batch_size", "participation.size")):
            yield (
                f"{name}={{}}",
                value,
                lambda k, name=name: (plan, struct.replace_field(processes, name, k)),
            )


def _helping(
    changes: Iterator[tuple[str, int, _Change]],
    still_needed: Callable[[compiled.Plan, Any], int],
    needed: int,
    free: int,
) -> tuple[str, bool]:
    """The first change with which a training fits, or all that help; whether it fits.

    That they help is found by estimating again, with the smallest value of each.
    """
    helping = []
    for name, value, change in changes:
        if value <= 1:
            continue
        least = still_needed(*change(1))
        if least <= free:  # memory grows linearly with these settings
            most = 1 + int((value - 1) * (free - least) / (needed - least))
            return name.format(most), True
        if least < 0.8 * needed:
            helping.append(name.format(1))
    return " and ".join(helping), False

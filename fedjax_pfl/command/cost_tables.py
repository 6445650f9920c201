"""Tables of the memory and time of trainings, on this machine or on other hosts."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence

import jax
import numpy as np
from rich.console import Console

from fedjax_pfl import core
from fedjax_pfl.command import arguments, printing
from fedjax_pfl.core import checks, struct
from fedjax_pfl.engine import cost, save_models, traffic
from fedjax_pfl.engine.derivatives import descent, fields, reverse
from fedjax_pfl.engine.groups import Group, Plan, PlannedGroup
from fedjax_pfl.engine.groups import plan as plan_group
from fedjax_pfl.engine.options import Options
from fedjax_pfl.engine.resident import Resident

__all__ = ["enlarged", "largest_of_chunk", "show"]

_MOST_EXAMPLES = 2**31 - 1
_PARTS = ("data", "state", "round", "evaluation", "history", "compiler")
_MOST_DRAWN = 1000  # chunks of a cohort in an estimate
_DRAWS = 20  # cohorts in an estimate of sizes


def show(
    console: Console,
    options: arguments.Options,
    groups: Sequence[Group],
    training: Options,
    trainer: Callable[..., Resident],
) -> None:
    """Prints memory and time of every group, then whether all groups fit."""
    if options.hosts is not None:
        # By formulas only: this machine cannot time the devices of others.
        _show_hosts(console, options, groups, training)
        return
    learned = {"client": options.learn_per_client, "layer": options.learn_per_layer}
    names = [name for name in learned.values() if name is not None]
    if names:
        # Refuses names that no method has, before anything is compiled.
        fields.of_some([group.processes[0] for group in groups], names)
    free, device = cost.available_bytes(), jax.devices()[0].device_kind
    memory = "unknown" if free is None else cost.shown(free)
    console.print(
        f"This machine: {jax.device_count()} x {device}, {memory} of memory free."
    )
    larger = [_larger(group, options.as_if_clients) for group in groups]
    total = 0.0
    for number, (group, actual) in enumerate(zip(larger, groups, strict=True), start=1):
        title = f"{number}/{len(groups)} {_name(group)}"
        extra = _going_back(group, training, learned)
        total += _print_group(console, title, group, actual, training, trainer, extra)
    console.print(f"All together about {_seconds(total)}.")
    if options.save_models is not None:
        size = sum(save_models.size(plan_group(group, training)) for group in larger)
        console.print(f"Trained models: {cost.shown(size)}.")
    # Groups that do not fit have raised an error by now.
    match training.parsed_memory:
        case "none":
            console.print("Whether this fits into the memory was not checked.")
        case "free":
            console.print("This fits into the free memory.")
        case limit:
            console.print(f"This fits into {cost.shown(int(limit))}.")


def _name(group: Group) -> str:
    """Returns the name of the algorithm of a group."""
    return type(group.processes[0].algorithm).__name__


def _larger(group: Group, num_clients: int | None) -> Group:
    """Returns the shapes of a group with a number of clients, unless it is None."""
    if num_clients is None:
        return group
    larger = [enlarged(federation, num_clients) for federation in group.federations]
    return dataclasses.replace(group, federations=larger)


def enlarged(federation: core.Federation, num_clients: int) -> core.Federation:
    """Returns the shapes of a federation with more clients of the same size."""
    # By identity: leaves shared between parts must stay one array in the plan.
    pools = {
        id(leaf)
        for part in (federation.train, federation.validation, federation.test)
        for leaf in (part.x, part.y)
    }

    def grown(leaf: jax.Array) -> jax.ShapeDtypeStruct:
        shape = leaf.shape
        if id(leaf) in pools:
            size = -(-shape[0] * num_clients // federation.num_clients)
            if size > _MOST_EXAMPLES:
                raise checks.InputError(
                    f"{num_clients} clients like these would have {size} examples, more"
                    f" than the {_MOST_EXAMPLES} that can be numbered."
                )
            shape = (size, *shape[1:])
        elif shape[:1] == (federation.num_clients,):
            shape = (num_clients, *shape[1:])
        return jax.ShapeDtypeStruct(shape, leaf.dtype)

    shapes = {id(leaf): grown(leaf) for leaf in jax.tree.leaves(federation)}
    return jax.tree.map(lambda leaf: shapes[id(leaf)], federation)


def _print_group(
    console: Console,
    title: str,
    group: Group,
    actual: Group,
    training: Options,
    trainer: Callable[..., Resident],
    extra: Sequence[tuple[str, str]],
) -> float:
    """Prints one group's table, followed by extra rows, and returns its seconds."""
    planned = plan_group(group, training)
    state = trainer(planned, are_shapes=True)
    rows: list[tuple[str, ...]] = [*_sizes(planned, group, actual), ()]
    try:
        # Arrays first: if they alone do not fit, nothing has to be compiled.
        try:
            cost.check_arrays(state)
        except checks.InputError:
            rows += _memory(cost.memory(state, work=False))
            raise
        if group is actual:  # with data, so that rounds can be timed
            state = trainer(planned)
        rows += _memory(cost.memory(state))
        cost.check(state, is_held=group is actual)
        pace, measured = _pace(state, group, actual, training, trainer)
        num_evaluations = 1 + -(-training.num_rounds // planned.plan.schedule.segment)
        total = pace.total(training.num_rounds, num_evaluations)
        rows += [
            (),
            ("time of compilation", _seconds(pace.compilation)),
            ("time of a round", _seconds(pace.round)),
            ("time of an evaluation", _seconds(pace.evaluation)),
            ("time of all", _seconds(total)),
            ("measured on", measured),
            *extra,
        ]
    finally:  # also print the rows so far of a group that does not fit
        printing.table(console, ("", ""), rows, title=title)
    return total


def _going_back(
    group: Group, training: Options, learned: Mapping[str, str | None]
) -> list[tuple[str, str]]:
    """Returns the memory of reverse mode for fields of clients and of layers."""
    rows = []
    for of, field in learned.items():
        if field is None or not fields.names_of(group.processes[0], [field]):
            continue
        name = f"{fields.PER_CLIENT}{field}"
        valued = descent.begun(group, [field], per=of)
        planned = plan_group(valued, training)
        fields.check(planned.group.processes[0], [name])
        memory = str(reverse.kept(planned, (name,)))
        rows.append((f"memory: going back for {of}s", memory))
    return rows


def _memory(needed: cost.Memory) -> list[tuple[str, str]]:
    """Returns a row for every known part, and one for the total."""
    parts = {part: getattr(needed, part) for part in _PARTS}
    rows = [
        (f"memory: {part}", cost.shown(size)) for part, size in parts.items() if size
    ]
    return [*rows, ("memory: at most", cost.shown(needed.total))]


def _pace(
    resident: Resident,
    group: Group,
    actual: Group,
    training: Options,
    trainer: Callable[..., Resident],
) -> tuple[cost.Pace, str]:
    """Estimates the seconds of a group, and describes the measured sample."""
    # A few rounds of as many points as are computed together, with the actual clients:
    # work grows in proportion to points, and to clients of a round.
    plan, count = resident.planned.plan, actual.federations[0].num_clients
    at_once = plan.points_per_chunk * plan.point_devices
    sample = actual if at_once >= len(actual.points) else actual.parts(at_once)[0]
    if sample is group:
        return cost.pace(resident), "these trainings"
    of_points = len(actual.points) / len(sample.points)
    cohort = _cohort(group)
    try:
        sampled = _cohort(actual)
    except checks.InputError:  # fewer clients than a cohort
        sampled = count
        processes = [
            struct.replace_field(process, "participation.size", count)
            for process in sample.processes
        ]
        sample = dataclasses.replace(sample, processes=processes)
    of_members = cohort / sampled
    of_clients = group.federations[0].num_clients / count
    # Evaluations take all clients, the participants, or a fixed number.
    some = plan.schedule.clients
    of_evaluated = of_members if some == "participants" else of_clients
    if isinstance(some, int):
        of_evaluated = some / min(some, count)
        training = dataclasses.replace(training, eval_clients=min(some, count))
    training = dataclasses.replace(training, execution=plan.execution)
    pace = cost.pace(trainer(plan_group(sample, training)))
    text = f"{len(sample.points)} of {len(actual.points)} grid points"
    if group is not actual:
        pace = dataclasses.replace(pace, compilation=resident.compile_seconds)
        text = f"{text}, {count:,} clients"
    scaled = dataclasses.replace(
        pace,
        start=pace.start * of_points * of_clients,
        round=pace.round * of_points * of_members,
        evaluation=pace.evaluation * of_points * of_evaluated,
    )
    return scaled, text


def _cohort(group: Group) -> int:
    """Counts the clients of a round."""
    count = group.federations[0].num_clients
    return group.processes[0].participation.cohort_size(count)


def largest_of_chunk(
    num_examples: np.ndarray,
    cohort: int,
    num_clients: int,
    chunk: int,
    *,
    by_size: bool = False,
) -> float:
    """Averages the largest of `int[n]` examples over chunks of random cohorts."""
    rng = np.random.default_rng(0)
    # Chunks of a cohort are alike, so a part of a very large one is enough.
    cohort = min(cohort, _MOST_DRAWN * chunk)
    draws = [num_examples]
    # Else cohorts are all clients, in order.
    if not cohort == num_clients == len(num_examples):
        is_scarce = cohort > len(num_examples)
        draws = [rng.choice(num_examples, cohort, is_scarce) for _ in range(_DRAWS)]
    if by_size:
        draws = [np.sort(drawn)[::-1] for drawn in draws]
    starts = range(0, cohort, chunk)
    return float(np.mean([d[i : i + chunk].max() for d in draws for i in starts]))


def _chunk_size(plan: Plan, cohort: int) -> int:
    """Counts the clients of a round that are mapped together."""
    execution = plan.execution
    if execution.mode == "loop":
        return 1
    if execution.mode == "shard":
        cohort = -(-cohort // (execution.num_devices or jax.device_count()))
    # As many chunks as this size needs, of nearly equal sizes.
    size = execution.chunk_size or cohort
    return -(-cohort // -(-cohort // min(size, cohort)))


def _sizes(planned: PlannedGroup, group: Group, actual: Group) -> list[tuple[str, str]]:
    """Describes the group in rows of a table."""
    plan, count, cohort = planned.plan, planned.num_clients, _cohort(group)
    examples = np.asarray(actual.federations[0].train.num_examples)
    low, middle, high = examples.min(), np.median(examples), examples.max()
    chunk = _chunk_size(plan, cohort)
    by_size = plan.execution.by_size
    padded = largest_of_chunk(examples, cohort, count, chunk, by_size=by_size)
    # Compared over the same draws of cohorts: the mean over all clients may differ.
    wasted = padded / largest_of_chunk(examples, cohort, count, 1) - 1
    at_once = "one client" if chunk == 1 else f"{chunk} clients"
    return [
        ("grid points", f"{len(group.points)}, {plan.points_per_chunk} at a time"),
        *_shape(planned, cohort),
        ("examples per client", f"{low} to {high}, median {middle:g}"),
        ("execution", str(plan)),
        ("work wasted on padding", f"{wasted:.0%}, {at_once} at a time"),
    ]


def _shape(planned: PlannedGroup, cohort: int) -> list[tuple[str, str]]:
    """Returns rows with the numbers of clients and of parameters."""
    return [
        ("clients N, cohort K", f"{planned.num_clients:,}, {cohort:,}"),
        ("parameters D", f"{planned.num_parameters:,}"),
    ]


def _show_hosts(
    console: Console,
    options: arguments.Options,
    groups: Sequence[Group],
    training: Options,
) -> None:
    """Prints memory, bytes and time of the first grid point of every group."""
    hosts = traffic.Cluster(
        hosts=options.hosts or 1,
        devices=options.devices or 1,
        flops=options.device_tflops * 1e12,
        link=options.link_gb * 1e9,
        network=options.network_gb * 1e9,
        latency=options.latency_us * 1e-6,
    )
    for number, group in enumerate(groups, start=1):
        name = _name(group)
        part = _larger(group.parts(1)[0], options.as_if_clients)
        planned = plan_group(part, training)
        costs = traffic.estimate(planned, hosts)
        sizes = {
            "device: rows of its clients": costs.rows,
            "device: examples": costs.examples,
            "device: shared by all devices": costs.shared,
            "device: work of a round": costs.work,
            "device: at most": costs.of_device,
            "devices of a host": costs.of_host,
        }
        sent = [(f"{e.kind}: {e.purpose}", e.sent(hosts)) for e in costs.exchanges]
        sent += [("a device sends", costs.sent)]
        sent += [("a host sends over the network", costs.left)]
        all_rounds = f"time: {training.num_rounds:,} rounds without evaluations"
        times = {
            "time: work": costs.compute,
            "time: exchanges": costs.communication,
            "time: a round": costs.seconds,
            all_rounds: training.num_rounds * costs.seconds,
        }
        rows = [
            ("hosts, devices of each", f"{hosts.hosts:,}, {hosts.devices:,}"),
            *_shape(planned, _cohort(part)),
            (),
            *((of, cost.shown(size)) for of, size in sizes.items()),
            (),
            *((of, cost.shown(round(size))) for of, size in sent),
            (),
            *((of, _seconds(value)) for of, value in times.items()),
        ]
        title = f"{number}/{len(groups)} {name}"
        printing.table(console, ("", ""), rows, title=title)
        # After the table, which shows by how much it does not fit. The limit is per
        # device.
        limit = training.parsed_memory
        if isinstance(limit, int) and costs.of_device > limit:
            raise checks.InputError(
                f"{name} needs {cost.shown(costs.of_device)} of memory per device, more"
                f" than {cost.shown(limit)}: use more devices, fewer clients, a smaller"
                " model or a smaller cohort."
            )


def _seconds(value: float) -> str:
    """Formats a time."""
    if value < 1:
        return f"{value * 1e3:.3g} ms"
    return f"{value:.3g} s" if value < 600 else f"{value / 60:,.0f} min"

"""Tables of what trainings will take on this machine."""

import dataclasses
from collections.abc import Sequence

import jax
import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table

from fedjax_pfl import (
    checks,
    clients,
    compiled,
    costs,
    limits,
    machine,
    planning,
    trained,
    types,
)
from fedjax_pfl import settings as settings_

__all__ = ["enlarged", "show"]

_MOST_EXAMPLES = 2**31 - 1
_PARTS = ("data", "state", "round", "evaluation", "history", "compiler")


def show(
    console: Console,
    groups: Sequence[planning.Group],
    settings: settings_.Settings,
    num_clients: int | None,
    saves_models: bool,
) -> None:
    """Prints memory and time of every group, then whether all fits.

    Args:
      console: where to.
      groups: what would be trained.
      settings: how.
      num_clients: how many clients there are to be in place of the federations' own.
      saves_models: whether the trained models are to be written.

    Raises:
      InputError: if something does not fit, in one sentence.
    """
    rates, total = machine.Machine(), 0.0
    _print_machine(console, rates)
    larger = []
    for number, known in enumerate(groups):
        group = known
        if num_clients is not None:
            federations = [enlarged(f, num_clients) for f in known.federations]
            group = dataclasses.replace(known, federations=federations)
        larger.append(group)
        planning.check_parts(group, settings)
        name = type(group.processes[0].algorithm).__name__
        title = f"{number + 1}/{len(groups)} {name}"
        total += _print_group(console, title, group, known, settings, rates)
    _print(console, f"All together about {_seconds(total)}, compilation apart.")
    if saves_models:
        _print(console, f"Trained models: {_bytes(trained.size(larger, settings))}.")
    for group in larger:
        plan, processes = planning.planned(group, settings)
        limits.check(plan, processes, group.federations, settings.num_rounds)
    _print(console, "This fits into the memory that is free.")


def enlarged(federation: types.Federation, num_clients: int) -> types.Federation:
    """Shapes of a federation with as many examples per client but more clients.

    Args:
      federation: data of N clients.
      num_clients: how many there are to be.

    Returns:
      Shapes in place of arrays. The pool of examples grows with the clients.

    Raises:
      InputError: if there would be too many examples.
    """
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

    known = {id(leaf): grown(leaf) for leaf in jax.tree.leaves(federation)}
    return jax.tree.map(lambda leaf: known[id(leaf)], federation)


def _print_machine(console: Console, rates: machine.Machine) -> None:
    """What the machine has."""
    free = limits.available_bytes()
    known = "unknown" if free is None else _bytes(free)
    _print(
        console,
        f"This machine: {jax.device_count()} x {jax.devices()[0].device_kind},"
        f" {machine.cores()} cores, {known} of memory free; products of matrices at"
        f" {rates.flops / 1e9:.0f} GFLOP/s (small ones {rates.small_flops / 1e9:.0f}),"
        f" {rates.bandwidth / 1e9:.0f} GB/s read and written, {rates.step * 1e6:.2g} us"
        " per step of a loop.",
    )


def _print_group(
    console: Console,
    title: str,
    group: planning.Group,
    known: planning.Group,
    settings: settings_.Settings,
    rates: machine.Machine,
) -> float:
    """Prints one group's table; its seconds."""
    plan, processes = planning.planned(group, settings)
    needed = limits.estimate(plan, processes, group.federations, settings.num_rounds)
    cost = costs.estimate(
        plan,
        processes,
        group.federations,
        settings.num_rounds,
        rates,
        like=known.federations,
    )
    table = Table(title=title, box=box.SIMPLE_HEAD, show_header=False, pad_edge=False)
    for row in _sizes(plan, processes, group, known):
        table.add_row(*row)
    table.add_section()
    for part in _PARTS:
        table.add_row(f"memory: {part}", _bytes(needed.part(part)))
    table.add_row("memory: at most", _bytes(needed.device + needed.host))
    table.add_section()
    limit = " at most (loops until a tolerance)" if cost.is_bound else ""
    table.add_row("time of a round", _seconds(cost.round) + limit)
    table.add_row("time of an evaluation", _seconds(cost.evaluation))
    table.add_row("time of all rounds and evaluations", _seconds(cost.total) + limit)
    rate = cost.flops / max(cost.round, 1e-12) / 1e9
    table.add_row(
        "products", f"{cost.flops / 1e9:.3g} GFLOP a round, {rate:.3g} GFLOP/s"
    )
    shares = [f"{kind} {share:.0%}" for kind, share in cost.kinds.items()]
    table.add_row("a round is", ", ".join(shares[:4]))
    console.print(table)
    return cost.total


def _sizes(
    plan: compiled.Plan, processes, group: planning.Group, known: planning.Group
) -> list[tuple[str, str]]:
    """What the group is like, as rows of a table."""
    count = group.federations[0].num_clients
    cohort = processes.participation.cohort_size(count)
    parameters = clients.size(jax.eval_shape(plan.model.init, jax.random.key(0)))
    examples = np.asarray(known.federations[0].train.num_examples)
    low, middle, high = examples.min(), np.median(examples), examples.max()
    chunk = costs.chunk_size(plan, cohort)
    by_size = plan.execution.by_size
    padded = costs.largest_of_chunk(examples, cohort, count, chunk, by_size=by_size)
    # Of cohorts that are drawn alike: the mean of all is another one's.
    wasted = padded / costs.largest_of_chunk(examples, cohort, count, 1) - 1
    at_once = "one client" if chunk == 1 else f"{chunk} clients"
    return [
        ("grid points", f"{len(group.points)}, {plan.points_per_chunk} at a time"),
        ("clients N, cohort K", f"{count:,}, {cohort:,}"),
        ("parameters D", f"{parameters:,}"),
        ("examples per client", f"{low} to {high}, median {middle:g}"),
        ("execution", str(plan)),
        ("work wasted on padding", f"{wasted:.0%}, {at_once} at a time"),
    ]


def _print(console: Console, text: str) -> None:
    """Prints a paragraph as it is."""
    console.print(text, highlight=False, soft_wrap=True)


def _bytes(size: float) -> str:
    """A number of bytes to read."""
    for unit, name in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if size >= unit:
            return f"{size / unit:,.3g} {name}"
    return f"{size:.0f} B"


def _seconds(value: float) -> str:
    """A time to read."""
    if value < 1:
        return f"{value * 1e3:.3g} ms"
    return f"{value:.3g} s" if value < 600 else f"{value / 60:,.0f} min"

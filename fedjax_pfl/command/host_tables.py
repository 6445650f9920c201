"""Tables of trainings on other hosts, for `plan --hosts`."""

import dataclasses
from collections.abc import Sequence

from rich.console import Console

from fedjax_pfl.command import arguments, cost_tables, printing
from fedjax_pfl.core import checks
from fedjax_pfl.engine import cost, traffic
from fedjax_pfl.engine.groups import Group
from fedjax_pfl.engine.groups import plan as plan_group
from fedjax_pfl.engine.options import Options

__all__ = ["cluster", "show"]


def cluster(options: arguments.Options) -> traffic.Cluster:
    """Returns the hosts described by the options."""
    return traffic.Cluster(
        hosts=options.hosts or 1,
        devices=options.devices or 1,
        flops=options.device_tflops * 1e12,
        link=options.link_gb * 1e9,
        network=options.network_gb * 1e9,
        latency=options.latency_us * 1e-6,
    )


def show(
    console: Console,
    groups: Sequence[Group],
    options: Options,
    num_clients: int | None,  # to plan for; None for the actual number
    hosts: traffic.Cluster,
) -> None:
    """Prints memory, bytes and time of the first grid point of every group."""
    for number, group in enumerate(groups, start=1):
        name = type(group.processes[0].algorithm).__name__
        title = f"{number}/{len(groups)} {name}"
        part = group.parts(1)[0]
        if num_clients is not None:
            larger = [cost_tables.enlarged(f, num_clients) for f in part.federations]
            part = dataclasses.replace(part, federations=larger)
        planned = plan_group(part, options)
        costs = traffic.estimate(planned, hosts)
        cohort = planned.processes[0].participation.cohort_size(planned.num_clients)
        rows = [
            ("hosts, devices of each", f"{hosts.hosts:,}, {hosts.devices:,}"),
            ("clients N, cohort K", f"{planned.num_clients:,}, {cohort:,}"),
            ("parameters D", f"{planned.num_parameters:,}"),
            (),
            *_memory(costs),
            (),
            *_traffic(costs),
            (),
            *_times(costs, options.num_rounds),
        ]
        printing.table(console, ("", ""), rows, title=title)
        # After the table, which shows by how much it does not fit. The limit is per
        # device.
        limit = options.parsed_memory
        if isinstance(limit, int) and costs.of_device > limit:
            raise checks.InputError(
                f"{name} needs {cost.shown(costs.of_device)} of memory per device, more"
                f" than {cost.shown(limit)}: use more devices, fewer clients, a smaller"
                " model or a smaller cohort."
            )


def _memory(estimate: traffic.Estimate) -> list[tuple[str, str]]:
    """Returns rows about memory."""
    parts = {
        "rows of its clients": estimate.rows,
        "examples": estimate.examples,
        "shared by all devices": estimate.shared,
        "work of a round": estimate.work,
        "at most": estimate.of_device,
    }
    rows = [(f"device: {part}", cost.shown(size)) for part, size in parts.items()]
    return [*rows, ("devices of a host", cost.shown(estimate.of_host))]


def _traffic(estimate: traffic.Estimate) -> list[tuple[str, str]]:
    """Returns rows about bytes of a round."""
    rows = [
        (f"{item.kind}: {item.purpose}", cost.shown(round(item.sent(estimate.cluster))))
        for item in estimate.exchanges
    ]
    return [
        *rows,
        ("a device sends", cost.shown(round(estimate.sent))),
        ("a host sends over the network", cost.shown(round(estimate.left))),
    ]


def _times(estimate: traffic.Estimate, num_rounds: int) -> list[tuple[str, str]]:
    """Returns rows about time."""
    times = {
        "work": estimate.compute,
        "exchanges": estimate.communication,
        "a round": estimate.seconds,
        f"{num_rounds:,} rounds without evaluations": num_rounds * estimate.seconds,
    }
    return [(f"time: {of}", cost_tables.seconds(value)) for of, value in times.items()]

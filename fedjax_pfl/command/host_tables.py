"""Tables of trainings on hosts that are not here, for `plan --hosts`."""

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
    """Returns the hosts that options describe."""
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
    num_clients: int | None,
    hosts: traffic.Cluster,
) -> None:
    """Prints memory, bytes and time of the first grid point of every group.

    Args:
      console: where to.
      groups: what would be trained.
      options: of the trainings; a `memory_limit` is one of each device.
      num_clients: how many clients there are to be in place of the federations' own.
      hosts: whose devices share the clients.
    """
    for number, group in enumerate(groups, start=1):
        name = type(group.processes[0].algorithm).__name__
        title = f"{number}/{len(groups)} {name}"
        first = group.parts(1)[0]
        if num_clients is not None:
            larger = [cost_tables.enlarged(f, num_clients) for f in first.federations]
            first = dataclasses.replace(first, federations=larger)
        planned = plan_group(first, options)
        found = traffic.estimate(planned, hosts)
        cohort = planned.processes[0].participation.cohort_size(planned.num_clients)
        rows = [
            ("hosts, devices of each", f"{hosts.hosts:,}, {hosts.devices:,}"),
            ("clients N, cohort K", f"{planned.num_clients:,}, {cohort:,}"),
            ("parameters D", f"{planned.num_parameters:,}"),
            (),
            *_memory(found),
            (),
            *_traffic(found),
            (),
            *_times(found, options.num_rounds),
        ]
        printing.table(console, ("", ""), rows, title=title)
        limit = options.parsed_memory
        if isinstance(limit, int) and found.of_device > limit:
            raise checks.InputError(
                f"{name} needs {cost.shown(found.of_device)} of memory per device, more"
                f" than {cost.shown(limit)}: use more devices, fewer clients, a smaller"
                " model or a smaller cohort."
            )


def _memory(found: traffic.Estimate) -> list[tuple[str, str]]:
    """Returns rows about memory."""
    parts = {
        "rows of its clients": found.rows,
        "examples": found.examples,
        "what all devices have": found.shared,
        "work of a round": found.work,
        "at most": found.of_device,
    }
    rows = [(f"device: {part}", cost.shown(size)) for part, size in parts.items()]
    return [*rows, ("devices of a host", cost.shown(found.of_host))]


def _traffic(found: traffic.Estimate) -> list[tuple[str, str]]:
    """Returns rows about bytes of a round."""
    rows = [
        (f"{each.kind}: {each.purpose}", cost.shown(round(each.sent(found.cluster))))
        for each in found.exchanges
    ]
    return [
        *rows,
        ("a device sends", cost.shown(round(found.sent))),
        ("a host sends over the network", cost.shown(round(found.left))),
    ]


def _times(found: traffic.Estimate, num_rounds: int) -> list[tuple[str, str]]:
    """Returns rows about time."""
    times = {
        "work": found.compute,
        "exchanges": found.communication,
        "a round": found.seconds,
        f"{num_rounds:,} rounds without evaluations": num_rounds * found.seconds,
    }
    return [(f"time: {of}", cost_tables.seconds(value)) for of, value in times.items()]

"""Rounds over devices and processes: `python -m experiments.bench.hosts`.

As many clients for every device, simulated in one process, or in several over the
loopback interface, compared with the formulae of `engine.traffic`.
"""

import json
import os
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from experiments import commands
from experiments.bench import machine, report
from experiments.bench.loopback import speed
from fedjax_pfl.command import printing
from fedjax_pfl.results import plain_files

__all__ = [
    "FORMS",
    "TARGETS",
    "TITLES",
    "WORKLOADS",
    "app",
    "cells",
    "expected_seconds",
    "ratio",
    "verdicts",
]

FORMS = ((1, 1), (1, 2), (1, 4), (1, 8), (2, 1), (4, 1))
"""Processes, and devices of each."""
WORKLOADS = ("W1", "W2", "W6")
"""Everybody in every round, few clients or many; a cohort, whose examples travel."""
TARGETS = {"W1": 1.15, "W2": 1.1}
"""What a round of two processes may take, of one of a process of two devices."""
TITLES = ("", "processes x devices", "ms a round", "by formula")
TITLES += ("bytes received", "by formula")
"""Headings of the table."""
_CLIENTS = {"W1": ((5600,) * 5, 100), "W2": ((48,) * 500, 10)}
"""Sizes of the clients of a device, and of a batch: half of the bench's workloads."""
_COHORT = ((60,) * 500, 50)
"""Sizes of the clients of a device, and a device's part of the cohort."""
_SECONDS = 600


def _workload(name: str, count: int) -> Any:
    """Returns a workload of so many devices."""
    from experiments.bench import workloads

    if name == "W6":
        sizes, cohort = _COHORT
        return workloads.cohorts(sizes * count, cohort * count)
    sizes, batch_size = _CLIENTS[name]
    return workloads.softmax(name, name, sizes * count, batch_size, peers=())


def _work(
    name: str, form: tuple[int, int], process: int, port: int, rounds: int
) -> dict[str, Any]:
    """Times rounds in this process, one of a team, and counts its received bytes."""
    import jax

    processes, devices = form
    # Cores of its own, as hosts have; on those of all, threads hinder each other.
    machine.restrict(process, processes)
    if processes > 1:
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
        jax.distributed.initialize(
            f"127.0.0.1:{port}", processes, process, initialization_timeout=_SECONDS
        )
    from experiments.bench import contenders, loopback
    from fedjax_pfl.engine import traffic

    workload = _workload(name, processes * devices)
    contender = contenders.Ours(workload.group(), rounds, "shard")
    contender.run()  # compiles, and touches memory for the first time
    seconds = []
    for _ in range(3):
        started = time.perf_counter()
        contender.run()
        seconds.append((time.perf_counter() - started) / rounds)
    start_bytes = loopback.received()
    contender.run(is_reported=False)
    formula = traffic.estimate(contender.planned, traffic.Cluster(processes, devices))
    return {
        "seconds": seconds,
        "clients": contender.planned.num_clients,
        "received": (loopback.received() - start_bytes) / rounds,
        "expected": formula.left,
        "exchanges": len(formula.exchanges),
    }


def _team(name: str, form: tuple[int, int], rounds: int) -> dict[str, Any]:
    """Times rounds of one form in new processes; returns the output of the first."""
    processes, devices = form
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        port = server.getsockname()[1]
    flag = f"--xla_force_host_platform_device_count={devices}"
    code = (
        "import json, sys; from experiments.bench import hosts;"
        "print(json.dumps(hosts._work(*json.loads(sys.argv[1]))))"
    )
    commands = [
        subprocess.Popen(
            [sys.executable, "-c", code, json.dumps([name, form, k, port, rounds])],
            env=os.environ | {"XLA_FLAGS": flag, "JAX_PLATFORMS": "cpu"},
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        for k in range(processes)
    ]
    try:
        texts = [command.communicate(timeout=_SECONDS)[0] for command in commands]
    finally:
        for command in commands:
            command.kill()
    numbers = json.loads(texts[0].splitlines()[-1])
    return {"workload": name, "processes": processes, "devices": devices, **numbers}


def measured(
    names: tuple[str, ...], forms: tuple[tuple[int, int], ...], rounds: int, repeat: int
) -> Iterator[dict[str, Any]]:
    """Yields what teams have measured, all forms of a workload in turn."""
    for name in names:
        for _ in range(repeat):
            yield from (_team(name, form, rounds) for form in forms)


def _typical(rows: list[dict[str, Any]], form: tuple[int, int]) -> float:
    """Returns the median over repetitions of the fastest call of a form."""
    # The fastest call of a repetition: the loopback interface and the cores are shared
    # with others.
    fastest = [
        min(row["seconds"])
        for row in rows
        if (row["processes"], row["devices"]) == form
    ]
    return statistics.median(fastest)


def expected_seconds(
    rows: list[dict[str, Any]],
    row: dict[str, Any],
    loopback: dict[str, float],
    cores: int,
) -> float:
    """Returns the formulae's seconds of a round of several processes."""
    count = row["processes"] * row["devices"]
    # Work of one device, shared cores, then bytes and latency of every exchange.
    work = _typical(rows, (1, 1)) * max(1.0, count / cores)
    latency = row["exchanges"] * 2 * (count - 1) * loopback["latency"]
    return work + row["expected"] / loopback["bytes_per_second"] + latency


def ratio(rows: list[dict[str, Any]]) -> float:
    """Returns a round of two processes of a device over one of two devices."""
    return _typical(rows, (2, 1)) / _typical(rows, (1, 2))


@commands.application("Prints seconds and bytes per round by processes and devices.")
def app(
    rounds: Annotated[int, typer.Option(min=1)] = 20,
    repeat: Annotated[int, typer.Option(min=1)] = 3,
    only: Annotated[str, typer.Option(help="W1, W2, W6 or several.")] = "W1,W2,W6",
    forms: Annotated[str, typer.Option(help="PROCESSESxDEVICES,...")] = "",
    out: Annotated[Path | None, typer.Option(help="JSON file.")] = None,
) -> None:
    """Prints the table, and writes the file."""
    names = tuple(only.split(","))
    team_forms = FORMS
    if forms:
        pairs = (form.split("x") for form in forms.split(","))
        team_forms = tuple((int(p), int(d)) for p, d in pairs)
    bandwidth, latency = speed()
    record: dict[str, Any] = {
        "machine": machine.describe(os.cpu_count() or 1, 1, huge_pages=False),
        "rounds": rounds,
        "loopback": {"bytes_per_second": bandwidth, "latency": latency},
    }
    record["rows"] = list(measured(names, team_forms, rounds, repeat))
    printing.table(printing.console(), TITLES, list(cells(record)), numbers=TITLES[2:])
    for line in verdicts(record):
        print(line)
    if out is not None:
        plain_files.write_text(out, json.dumps(record, indent=1) + "\n")


def _by_workload(record: Mapping[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """Returns the rows of every workload."""
    by_workload: dict[str, list[dict[str, Any]]] = {}
    for row in record["rows"]:
        by_workload.setdefault(row["workload"], []).append(row)
    return by_workload


def _by_form(rows: list[dict[str, Any]]) -> dict[tuple[int, int], dict[str, Any]]:
    """Returns the first row of every form."""
    by_form: dict[tuple[int, int], dict[str, Any]] = {}
    for row in rows:
        by_form.setdefault((row["processes"], row["devices"]), row)
    return by_form


def cells(record: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    """Yields a row of the table per workload and form."""
    for name, rows in _by_workload(record).items():
        forms = _by_form(rows)
        for form, row in forms.items():
            expected, received, formula = "", "", ""
            if form[0] > 1:
                received, formula = f"{row['received']:,.0f}", f"{row['expected']:,.0f}"
            if form[0] > 1 and (1, 1) in forms:
                machine_of = (record["loopback"], record["machine"]["cpus"])
                seconds = expected_seconds(rows, row, *machine_of)
                expected = report.milliseconds(seconds)
            duration = report.milliseconds(_typical(rows, form))
            yield name, "{} x {}".format(*form), duration, expected, received, formula


def verdicts(record: Mapping[str, Any]) -> Iterator[str]:
    """Yields the times of two processes, compared with one of two devices."""
    for name, rows in _by_workload(record).items():
        if {(2, 1), (1, 2)} <= _by_form(rows).keys():
            value, bound = ratio(rows), TARGETS.get(name)
            line = f"{name}: two processes take {value:.2f} of the time of one process"
            line += " of two devices"
            if bound is not None:
                word = "met" if value <= bound else "missed"
                line += f", at most {bound:g} wanted: {word}"
            yield f"{line}."


if __name__ == "__main__":
    app()

"""Rounds over devices and processes: `python -m experiments.bench.hosts`.

As many clients per device everywhere, on simulated devices of one process and on
processes that JAX's runtime connects over the loopback interface. On a machine with C
cores C devices do as much work as they can at once; more of them share the cores.
"""

import json
import os
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

__all__ = ["FORMS", "app", "ratio"]

FORMS = ((1, 1), (1, 2), (1, 4), (1, 8), (2, 1), (4, 1))
"""Processes, and devices of each."""
_CLIENTS = {"W1": ((5600,) * 5, 100), "W2": ((48,) * 500, 10)}
"""Sizes of the clients of a device, and of a batch: half of the bench's workloads."""
_SECONDS = 600

app = typer.Typer(add_completion=False, rich_markup_mode=None)


def _work(
    name: str, form: tuple[int, int], process: int, port: int, rounds: int
) -> dict[str, Any]:
    """Times rounds in this process, one of a team.

    Returns:
      Seconds per round of every call, and the number of clients.
    """
    import jax

    processes, devices = form
    if processes > 1:
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
        jax.distributed.initialize(
            f"127.0.0.1:{port}", processes, process, initialization_timeout=_SECONDS
        )
    from experiments.bench import contenders, workloads

    sizes, batch_size = _CLIENTS[name]
    sizes = sizes * processes * devices
    workload = workloads.softmax(name, name, sizes, batch_size, peers=())
    ours = contenders.Ours(workload.group(), rounds, "shard")
    ours.run()  # compiles, and touches memory for the first time
    seconds = []
    for _ in range(3):
        started = time.perf_counter()
        ours.run()
        seconds.append((time.perf_counter() - started) / rounds)
    return {"seconds": seconds, "clients": len(sizes)}


def _team(name: str, form: tuple[int, int], rounds: int) -> dict[str, Any]:
    """Times rounds of one form in processes of its own; returns what the first says."""
    processes, devices = form
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
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
    made = json.loads(texts[0].splitlines()[-1])
    return {"workload": name, "processes": processes, "devices": devices, **made}


def measured(
    names: tuple[str, ...], forms: tuple[tuple[int, int], ...], rounds: int, repeat: int
) -> Iterator[dict[str, Any]]:
    """Yields what teams have measured, all forms of a workload in turn."""
    for name in names:
        for _ in range(repeat):
            yield from (_team(name, form, rounds) for form in forms)


def _typical(rows: list[dict[str, Any]], form: tuple[int, int]) -> float:
    """Returns the median over repetitions of the fastest call of a form."""
    fastest = [
        min(row["seconds"])
        for row in rows
        if (row["processes"], row["devices"]) == form
    ]
    return statistics.median(fastest)


def ratio(rows: list[dict[str, Any]]) -> float:
    """Returns a round of two processes of a device over one of two devices."""
    return _typical(rows, (2, 1)) / _typical(rows, (1, 2))


@app.command()
def main(
    rounds: Annotated[int, typer.Option(min=1)] = 20,
    repeat: Annotated[int, typer.Option(min=1)] = 3,
    only: Annotated[str, typer.Option(help="W1, W2 or both.")] = "W1,W2",
    forms: Annotated[str, typer.Option(help="PROCESSESxDEVICES,...")] = "",
    out: Annotated[Path | None, typer.Option(help="JSON file.")] = None,
) -> None:
    """Prints seconds per round by processes and devices."""
    names = tuple(only.split(","))
    chosen = FORMS
    if forms:
        pairs = (form.split("x") for form in forms.split(","))
        chosen = tuple((int(p), int(d)) for p, d in pairs)
    load = os.getloadavg()
    rows = list(measured(names, chosen, rounds, repeat))
    for name in names:
        own = [row for row in rows if row["workload"] == name]
        for form in chosen:
            seconds = _typical(own, form)
            print(f"{name} {form[0]} x {form[1]}: {seconds * 1e3:.1f} ms a round")
        if {(2, 1), (1, 2)} <= set(chosen):
            print(f"{name} two processes over two devices of one: {ratio(own):.2f}")
    if out is not None:
        record = {"load_at_start": load, "cores": os.cpu_count(), "rounds": rounds}
        out.write_text(json.dumps(record | {"rows": rows}, indent=1), "utf-8")


if __name__ == "__main__":
    app()

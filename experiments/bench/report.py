"""Tables of what was timed, the file that keeps it, and the comparison of two runs."""

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from fedjax_pfl.core import checks

__all__ = [
    "FORMAT",
    "check_writable",
    "differing",
    "print_all",
    "print_difference",
    "read",
    "write",
]

FORMAT = 1
"""Version of the file's format."""
TOLERANCE = 0.1
"""Relative difference of two runs of one bench that is worth a word."""


def write(file: Path, run: Mapping[str, Any]) -> None:
    """Writes a file at once: readers see all of it or the file that was there.

    Args:
      file: path.
      run: its content, written as JSON.

    Raises:
      OSError: if it cannot be written; nothing is left then.
    """
    temporary = _temporary(file)
    try:
        temporary.write_text(json.dumps(run, indent=1) + "\n", "utf-8")
        os.replace(temporary, file)
    finally:
        temporary.unlink(missing_ok=True)


def check_writable(file: Path) -> None:
    """Checks that `write` can write a file, before long work.

    Raises:
      OSError: if it cannot.
    """
    temporary = _temporary(file)
    temporary.touch()
    temporary.unlink()


def _temporary(file: Path) -> Path:
    """Returns a name beside a file."""
    return file.with_name(f".{file.name}.{os.getpid()}")


def read(file: Path) -> dict[str, Any]:
    """Reads a run.

    Raises:
      InputError: if the file is none.
    """
    try:
        run = json.loads(file.read_text("utf-8"))
        if run["format"] != FORMAT:
            raise KeyError
        for workload in run["workloads"]:
            workload["name"], workload["contenders"]["ours"]["seconds_per_round"]
    except (ValueError, KeyError, TypeError):
        raise checks.InputError(
            f"Expected '{file}' to be a file that python -m experiments.bench --json"
            " has written."
        ) from None
    return run


def print_all(console: Console, run: Mapping[str, Any]) -> None:
    """Prints the machine and all tables."""
    for line in _machine_lines(run["machine"]):
        console.print(line, highlight=False, soft_wrap=True)
    console.print(_own_table(run["workloads"]))
    peers = list(_peer_rows(run["workloads"]))
    if peers:
        console.print(_table("Beside peers, in turn, in one process", _PEERS, peers))
    for workload in run["workloads"]:
        for name, reason in workload["failures"].items():
            line = f"{workload['name']}: {name} cannot run: {reason}."
            console.print(line, highlight=False, soft_wrap=True)


def _machine_lines(machine: Mapping[str, Any]) -> list[str]:
    """Describes the machine for readers of the numbers."""
    versions = ", ".join(f"{n} {v}" for n, v in machine["versions"].items())
    load = " ".join(f"{value:.2f}" for value in machine["load_at_start"])
    device = machine["device"]
    if machine["backend"] == "cpu":
        device = machine["processor"]
    return [
        f"{device} ({machine['backend']}), {machine['cpus']} CPUs, of which"
        f" {machine['threads']} used, as {machine['devices']} device(s); load {load}.",
        f"float32 product {machine['matmul_gflops']:.0f} GFLOP/s, copy"
        f" {machine['copy_gigabytes']:.1f} GB/s.",
        f"Versions: {versions}.",
    ]


_OWN = (
    "workload",
    "execution",
    "ms/round",
    "quartiles",
    "rounds/s",
    "client-steps/s",
    "GFLOP/s",
    "of peak",
    "compile s",
    "peak MB",
    "quiet",
)
_PEERS = (
    "workload",
    "peer",
    "ms/round ours",
    "peer",
    "wall ratio",
    "CPU ms ours",
    "peer",
    "CPU ratio",
    "difference",
    "loss ours",
    "peer",
)


def _table(title: str, columns: Iterable[str], rows: Iterable[Iterable[str]]) -> Table:
    """Returns a table whose first two columns are text."""
    table = Table(title=title, box=box.SIMPLE_HEAD, title_justify="left")
    for number, name in enumerate(columns):
        table.add_column(name, justify="left" if number < 2 else "right")
    for row in rows:
        table.add_row(*row)
    return table


def _own_table(workloads: Iterable[Mapping[str, Any]]) -> Table:
    """Tabulates ours alone."""
    rows = []
    for workload in workloads:
        ours = workload["contenders"]["ours"]
        times = ours["seconds_per_round"]
        steps, flops = workload["steps_per_round"], workload["flops_per_round"]
        rate = None if flops is None else flops / times["wall"] / 1e9
        share = None if rate is None else 100 * rate / workload["matmul_gflops"]
        rows.append(
            (
                workload["name"],
                ours["execution"],
                _milliseconds(times["wall"]),
                f"{_milliseconds(times['low'])}-{_milliseconds(times['high'])}",
                f"{1 / times['wall']:,.4g}",
                "" if steps is None else f"{steps / times['wall']:,.0f}",
                "" if rate is None else f"{rate:,.1f}",
                "" if share is None else f"{share:.0f} %",
                _number(workload["compile_seconds"] or None, ".1f"),
                f"{workload['peak_bytes'] / 1e6:,.0f}",
                f"{times['count']}/{times['total']}",
            )
        )
    return _table("Ours", _OWN, rows)


def _peer_rows(workloads: Iterable[Mapping[str, Any]]) -> Iterable[tuple[str, ...]]:
    """Yields a row per peer beside ours."""
    for workload in workloads:
        ours = workload["contenders"]["ours"]
        for name, peer in workload["contenders"].items():
            if name == "ours":
                continue
            mine, theirs = ours["seconds_per_round"], peer["seconds_per_round"]
            yield (
                workload["name"],
                name,
                _milliseconds(mine["wall"]),
                _milliseconds(theirs["wall"]),
                f"{theirs['wall'] / mine['wall']:.2f}",
                _milliseconds(mine["cpu"]),
                _milliseconds(theirs["cpu"]),
                f"{theirs['cpu'] / mine['cpu']:.2f}",
                _number(peer["agreement"].get("difference"), ".1e"),
                _number(ours["agreement"].get("loss"), ".4f"),
                _number(peer["agreement"].get("loss"), ".4f"),
            )


def _milliseconds(seconds: float) -> str:
    """Formats a time with three digits or more."""
    value = 1000 * seconds
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _number(value: float | None, form: str) -> str:
    """Formats a number, or nothing."""
    return "" if value is None else format(value, form)


def differing(
    earlier: Mapping[str, Any], later: Mapping[str, Any]
) -> list[tuple[str, float, float]]:
    """Returns the change of our wall and CPU time in the workloads of both runs.

    Args:
      earlier: a run.
      later: another one.

    Returns:
      Name and relative changes, positive where the later run was slower.
    """
    before = {w["name"]: _ours(w) for w in earlier["workloads"]}
    after = {w["name"]: _ours(w) for w in later["workloads"]}
    return [
        (
            name,
            after[name]["wall"] / before[name]["wall"] - 1,
            after[name]["cpu"] / before[name]["cpu"] - 1,
        )
        for name in before
        if name in after
    ]


def _ours(workload: Mapping[str, Any]) -> Mapping[str, float]:
    """Returns our times per round."""
    return workload["contenders"]["ours"]["seconds_per_round"]


def print_difference(
    console: Console, earlier: Mapping[str, Any], later: Mapping[str, Any]
) -> list[str]:
    """Prints how two runs differ.

    Args:
      console: where.
      earlier: a run.
      later: another one.

    Returns:
      Names of the workloads whose wall time differs by more than `TOLERANCE`.
    """
    changes = differing(earlier, later)
    rows = [(n, "", f"{100 * w:+.1f} %", f"{100 * c:+.1f} %") for n, w, c in changes]
    columns = ("workload", "", "wall time", "CPU time")
    console.print(_table("Change from the earlier run, ours", columns, rows))
    return [name for name, wall, _ in changes if abs(wall) > TOLERANCE]

"""Tables and files of measurements, and the comparison of two runs."""

import json
import tempfile
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from rich.console import Console

from fedjax_pfl.command import printing
from fedjax_pfl.core import checks
from fedjax_pfl.results import plain_files

__all__ = [
    "FORMAT",
    "by_workload",
    "changes",
    "check_alike",
    "check_writable",
    "differing",
    "floor",
    "gigaflops",
    "merged",
    "milliseconds",
    "print_all",
    "print_forms",
    "read",
    "seconds_of",
    "write",
]

FORMAT = 1
"""Version of the file's format."""
TOLERANCE = 0.1
"""Relative difference of two runs of one bench that is worth a word."""
_KINDS = ("wall", "cpu")


def write(file: Path, run: Mapping[str, Any]) -> None:
    """Writes a run as JSON, atomically: readers see the old file or the new one."""
    plain_files.write_text(file, json.dumps(run, indent=1) + "\n")


def check_writable(file: Path) -> None:
    """Raises an error, before long work, if `write` cannot write a file."""
    plain_files.check(file)
    tempfile.TemporaryFile(dir=file.parent).close()


def read(file: Path) -> dict[str, Any]:
    """Reads a run; checks that the file is one."""
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


_ALIKE = ("processor", "cpus", "threads", "devices", "huge_pages", "versions")


def check_alike(earlier: Mapping[str, Any], later: Mapping[str, Any]) -> None:
    """Checks that one file may have workloads of both runs."""
    for name in _ALIKE:
        stored, value = earlier["machine"][name], later["machine"][name]
        if stored != value:
            raise checks.InputError(
                f"Expected a file of a run with {name} = {value}, as now, to keep its"
                f" other workloads, got {stored}."
            )


def merged(earlier: Mapping[str, Any], later: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the later run with the workloads of both, in the order of the catalog."""
    from experiments.bench import catalog

    # Later measurements replace earlier ones of the same workload.
    by_name = {w["name"]: w for run in (earlier, later) for w in run["workloads"]}
    workloads = [by_name[name] for name in catalog.TIMED if name in by_name]
    return {**later, "workloads": workloads}


def print_all(console: Console, run: Mapping[str, Any]) -> None:
    """Prints the machine and all tables."""
    for line in _machine_lines(run["machine"]):
        console.print(line)
    update = run["machine"].get("update_gigabytes")
    our_rows = (_own_row(workload, update) for workload in run["workloads"])
    _print_table(console, "Ours", our_rows)
    rows = [
        _peer_row(workload, name, peer)
        for workload in run["workloads"]
        for name, peer in workload["contenders"].items()
        if name != "ours"
    ]
    if rows:
        _print_table(console, "Compared with peers, in turns, in one process", rows)
    for workload in run["workloads"]:
        for name, reason in workload["failures"].items():
            console.print(f"{workload['name']}: {name} cannot run: {reason}.")


def by_workload(run: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Returns the measured forms, sorted by workload."""
    names = list(dict.fromkeys(form["workload"] for form in run["forms"]))
    return sorted(run["forms"], key=lambda form: names.index(form["workload"]))


def print_forms(console: Console, run: Mapping[str, Any]) -> None:
    """Prints the machine, a table of all forms, and the forms left out."""
    for line in _machine_lines(run["machine"]):
        console.print(line)
    console.print(f"Battery: {run['battery'][-1]}.")
    rows = map(_form_row, by_workload(run))
    _print_table(console, "Forms; * is what auto picks", rows)
    left_out = Counter((form["workload"], form["reason"]) for form in run["left_out"])
    for (name, reason), count in left_out.items():
        console.print(f"{name}: {count} form(s) left out: {reason}.".replace("..", "."))


def _form_row(form: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Returns the row of a form of a workload."""
    times, size = form["seconds_per_round"], form["program_bytes"]
    share = form["share_of_bandwidth"]  # a cache has parameters, where it is above 1
    return [
        ("workload", form["workload"] + "*" * form["is_automatic"]),
        ("execution", form["execution"]),
        ("convolution", form["convolution"] or ""),
        ("products", "bfloat16" if form["bfloat16_products"] else "float32"),
        ("points", str(form["points_per_chunk"])),
        ("ms/round", milliseconds(times["wall"])),
        ("GFLOP/s", f"{form['flops_per_round'] / times['wall'] / 1e9:,.1f}"),
        ("of peak", f"{100 * form['share_of_peak']:.2g} %"),
        ("of bandwidth", f"{100 * share:.2g} %" if share <= 1 else "cache"),
        ("compile s", f"{form['compile_seconds']:.1f}"),
        ("program MB", _number(size and size / 1e6, ",.0f")),
    ]


def _machine_lines(machine: Mapping[str, Any]) -> list[str]:
    """Describes the machine for readers of the numbers."""
    versions = ", ".join(f"{n} {v}" for n, v in machine["versions"].items())
    load = " ".join(f"{value:.2f}" for value in machine["load_at_start"])
    device = machine["processor" if machine["backend"] == "cpu" else "device"]
    return [
        f"{device} ({machine['backend']}), {machine['cpus']} CPUs, of which"
        f" {machine['threads']} used, as {machine['devices']} device(s); load {load};"
        f" {'huge pages' if machine['huge_pages'] else 'usual pages'}.",
        *(
            f"{dtype} product {machine[prefix + 'matmul_gflops']:,.0f} GFLOP/s, copy"
            f" {machine[prefix + 'copy_gigabytes']:,.1f} GB/s."
            for dtype, prefix in (("float32", ""), ("bfloat16", "bfloat16_"))
        ),
        f"Versions: {versions}.",
    ]


def _print_table(
    console: Console, title: str, rows: Iterable[Iterable[tuple[str, str]]]
) -> None:
    """Prints a table of headings and texts; from the third column on, of numbers."""
    columns = [tuple(zip(*row, strict=True)) for row in rows]
    if columns:
        titles = columns[0][0]
        texts = [texts for _, texts in columns]
        printing.table(console, titles, texts, title=title, numbers=titles[2:])


def floor(workload: Mapping[str, Any], update_gigabytes: float) -> float | None:
    """Returns the least seconds of products and passes over memory, or None."""
    flops, num_bytes = workload["flops_per_round"], workload.get("bytes_per_round")
    if flops is None or num_bytes is None:
        return None
    products = flops / workload["matmul_gflops"] / 1e9
    return products + num_bytes / update_gigabytes / 1e9


def seconds_of(workload: Mapping[str, Any]) -> dict[str, float]:
    """Returns seconds per round by contender."""
    return {
        name: timed["seconds_per_round"]["wall"]
        for name, timed in workload["contenders"].items()
    }


def gigaflops(workload: Mapping[str, Any]) -> float | None:
    """Returns our operations in matrix products per second, in 10^9, if counted."""
    flops = workload["flops_per_round"]
    return None if flops is None else flops / seconds_of(workload)["ours"] / 1e9


def _own_row(
    workload: Mapping[str, Any], update_gigabytes: float | None
) -> list[tuple[str, str]]:
    """Returns a workload's row about ours alone."""
    contender = workload["contenders"]["ours"]
    times = contender["seconds_per_round"]
    steps, rate = workload["steps_per_round"], gigaflops(workload)
    share = None if rate is None else 100 * rate / workload["matmul_gflops"]
    quartiles = f"{milliseconds(times['low'])}-{milliseconds(times['high'])}"
    least = update_gigabytes and floor(workload, update_gigabytes)
    return [
        ("workload", workload["name"]),
        ("execution", contender["execution"]),
        ("ms/round", milliseconds(times["wall"])),
        ("floor", "" if least is None else milliseconds(least)),
        ("quartiles", quartiles),
        ("rounds/s", f"{1 / times['wall']:,.4g}"),
        ("client-steps/s", "" if steps is None else f"{steps / times['wall']:,.0f}"),
        ("GFLOP/s", _number(rate, ",.1f")),
        ("of peak", "" if share is None else f"{share:.0f} %"),
        ("compile s", _number(workload["compile_seconds"] or None, ".1f")),
        ("peak MB", f"{workload['peak_bytes'] / 1e6:,.0f}"),
        ("quiet", f"{times['count']}/{times['total']}"),
    ]


def _peer_row(
    workload: Mapping[str, Any], name: str, peer: Mapping[str, Any]
) -> list[tuple[str, str]]:
    """Returns the row of a peer, compared with ours."""
    contender = workload["contenders"]["ours"]
    times, peer_times = contender["seconds_per_round"], peer["seconds_per_round"]
    agreement = peer["agreement"]
    return [
        ("workload", workload["name"]),
        ("peer", name),
        ("ms/round ours", milliseconds(times["wall"])),
        ("peer", milliseconds(peer_times["wall"])),
        ("wall ratio", f"{peer_times['wall'] / times['wall']:.2f}"),
        ("CPU ms ours", milliseconds(times["cpu"])),
        ("peer", milliseconds(peer_times["cpu"])),
        ("CPU ratio", f"{peer_times['cpu'] / times['cpu']:.2f}"),
        ("difference", _number(agreement.get("difference"), ".1e")),
        ("loss ours", _number(contender["agreement"].get("loss"), ".4f")),
        ("peer", _number(agreement.get("loss"), ".4f")),
    ]


def milliseconds(seconds: float) -> str:
    """Formats a time with three digits or more."""
    value = 1000 * seconds
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _number(value: float | None, form: str) -> str:
    """Formats a number; None is empty."""
    return "" if value is None else format(value, form)


def differing(
    earlier: Mapping[str, Any], later: Mapping[str, Any]
) -> list[tuple[str, float, float]]:
    """Returns the relative changes of our wall and CPU time by workload."""
    base, times = (
        {w["name"]: w["contenders"]["ours"]["seconds_per_round"] for w in run}
        for run in (earlier["workloads"], later["workloads"])
    )
    return [
        (name, *(times[name][kind] / base[name][kind] - 1 for kind in _KINDS))
        for name in base
        if name in times
    ]


def changes(
    console: Console, earlier: Mapping[str, Any], later: Mapping[str, Any]
) -> list[str]:
    """Prints how two runs differ; returns the workloads that differ by `TOLERANCE`."""
    differences = differing(earlier, later)
    rows = [
        (
            ("workload", name),
            ("", ""),
            ("wall time", f"{100 * wall:+.1f} %"),
            ("CPU time", f"{100 * cpu:+.1f} %"),
        )
        for name, wall, cpu in differences
    ]
    _print_table(console, "Change from the earlier run, ours", rows)
    return [name for name, wall, _ in differences if abs(wall) > TOLERANCE]

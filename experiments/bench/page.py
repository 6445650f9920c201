"""The page of the measurements: `python -m experiments.bench.page`."""

import dataclasses
import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from experiments import commands, texts
from experiments.bench import chart, hosts, report
from fedjax_pfl.core import checks
from fedjax_pfl.results import plain_files

__all__ = ["HOSTS", "RUNS", "TARGETS", "Target", "app", "render"]

FOLDER = Path(__file__).parents[2] / "docs"
RUNS = {
    "one-core": "One core",
    "two-cores": "Two cores",
    "huge-pages": "One core, huge pages",
}
"""Runs on the page by the ending of their file, and their headings."""
HOSTS = "hosts"
"""Ending of the file of `experiments.bench.hosts`."""
OLDER, NEWER = "older-jax", "one-core"
"""Endings of the files of one core with two releases of JAX, run at once."""
FORMS, PLAIN, PEERS = ON_A_GPU = ("gpu", "gpu-plain", "gpu-torch")
"""Endings of the files of `--accelerator`, and of a run compared with PyTorch."""
_CHIPS = {"H100": (495e12, 3.35e12), "TPU v5e": (197e12, 0.82e12)}
"""Operations and bytes a second by the data sheets: TF32 on the one, bfloat16."""
_OWN = {
    "floor": "its products alone",
    "frozen": "the frozen products alone",
    "loop-jit": "32 trainings one by one",
    "plain": "without transforms",
    "synchronous": "synchronous rounds",
    "thousand": "a thousand clients",
    "training": "the training alone",
    "vmap": "`vmap` of all",
}
"""Peers that are ours, of whose time ours takes a share or a multiple."""


@dataclasses.dataclass(frozen=True)
class Target:
    """Bound on a workload's time relative to a peer's."""

    peer: str  # its name
    bound: float  # times as fast, at least; of a peer of `_OWN`, of its time at most

    def is_met(self, seconds: float, peer_seconds: float) -> bool:
        """Returns whether it is reached by two times in seconds."""
        if self.peer in _OWN:
            return seconds <= self.bound * peer_seconds
        return peer_seconds >= self.bound * seconds


def _bounds(peer: str, **bounds: float) -> dict[str, list[Target]]:
    """Returns one target per workload."""
    return {name: [Target(peer, bound)] for name, bound in bounds.items()}


_SHARED = {
    **_bounds("plain", W1private=1.15, W2private=1.25, W1topk=2, W2topk=2),
    **_bounds("plain", W1banded=1.15, W2banded=1.15, W1qsgd=2, W2qsgd=2),
    **_bounds("thousand", S1=2),
    **_bounds("synchronous", V1=1.3),
    **_bounds("training", G1=4, G2=5.5),
}
_W4 = Target("loop-jit", 0.7)
TARGETS = {
    "one-core": _SHARED
    | _bounds("torch", W1=6, W2=16, W3=1, W5=12, W6=15, A3large=1.1)
    | _bounds("byzfl", A1=8)
    | _bounds("geom-median", A2=20)
    | {"W4": [Target("torch", 9), _W4]},
    "two-cores": _SHARED
    | _bounds("torch", W1=8.5, W2=26, W3=1, W5=20)
    | {"W4": [Target("torch", 15), _W4]}
    | {"W7": [Target("torch", 4), Target("frozen", 1.4)]},
    "huge-pages": _bounds("torch", W2=20) | _bounds("byzfl", A1=10),
}
"""Targets by run and workload."""


@commands.application("Writes the page of what the bench measured, from its files.")
def app(
    folder: Annotated[
        Path, typer.Option(metavar="DIR", help="Directory of speed-*.json.")
    ] = FOLDER,
) -> None:
    """Writes `speed_results.md` to the folder of the files."""
    names = (*RUNS, OLDER, HOSTS, *ON_A_GPU)
    files = {name: folder / f"speed-{name}.json" for name in names}
    for file in files.values():
        if not file.is_file():
            raise checks.InputError(f"Expected the file '{file}', which is missing.")
    runs = {n: report.read(files[n]) for n in (*RUNS, OLDER, *ON_A_GPU)}
    divided = json.loads(files[HOSTS].read_text("utf-8"))
    plain_files.write_text(folder / "speed_results.md", render(runs, divided))
    print(f"Page: {folder / 'speed_results.md'}")


def render(
    runs: Mapping[str, Mapping[str, Any]], divided: Mapping[str, Any] | None = None
) -> str:
    """Returns the page of the files by their endings, and of the file of `HOSTS`."""
    workloads = {w["name"]: w["title"] for r in runs.values() for w in r["workloads"]}
    # Files of releases and of a GPU are optional, as few machines have one.
    return texts.page(
        "speed_results",
        workloads=_table(("", "a round, or an answer"), workloads.items()),
        runs=[_run(name, run) for name, run in runs.items() if name in RUNS],
        releases=_releases(runs[OLDER], runs[NEWER]) if OLDER in runs else None,
        gpu=_on_gpu(*(runs[n] for n in (*ON_A_GPU, "one-core")))
        if FORMS in runs
        else None,
        divided=None if divided is None else _divided(divided),
    )


def _run(name: str, run: Mapping[str, Any]) -> dict[str, str]:
    """Returns the texts and tables about a run."""
    targets = TARGETS[name]
    titles = ("", "execution", "ms", "floor", "GFLOP/s", "of peak", "resident MB")
    peer_titles = ("", "compared with", "ours, ms", "theirs, ms", "ratio", "target")
    return {
        "name": name,
        "heading": RUNS[name],
        "machine": _machine(run),
        "verdict": _verdict(run, targets),
        "ours": _table(titles, _our_rows(run)),
        "peers": _table(peer_titles, _peers(run, targets)),
    }


def _on_gpu(
    run: Mapping[str, Any],
    plain: Mapping[str, Any],
    compared: Mapping[str, Any],
    core: Mapping[str, Any],
) -> dict[str, Any]:
    """Returns texts and tables about a GPU, with the times of one core."""
    on_core = {w["name"]: report.seconds_of(w)["ours"] for w in core["workloads"]}
    # `plain` has the same forms without our compiler options, found by their fields.
    by_form = {_key(form): form["seconds_per_round"]["wall"] for form in plain["forms"]}
    titles = ("", "execution", "ms", "XLA's launches, ms", "GFLOP/s", "compile s", "MB")
    rows = [_form(form, by_form, on_core) for form in report.by_workload(run)]
    peer_titles = ("", "compared with", "ours, ms", "theirs, ms", "ratio")
    chip = run["machine"]["device"].removeprefix("NVIDIA ")
    return {
        "machine": run["machine"],
        "minutes": f"{run['minutes']:g}",
        "battery": run["battery"][-1],
        "num_left_out": len(run["left_out"]),
        "forms_file": FORMS,
        "plain_file": PLAIN,
        "peers_file": PEERS,
        "forms": _table((*titles, "one core, ms"), rows),
        "torch": compared["machine"]["versions"]["torch"],
        "peers": _table(peer_titles, (row[:-1] for row in _peers(compared, {}))),
        "chip": chip,
        "estimates": _estimates(run, chip),
    }


def _estimates(run: Mapping[str, Any], chip: str) -> str:
    """Returns the table of the least times that chips allow, and the measured ones."""
    rates = run["machine"]
    measured = (1e9 * rates["matmul_gflops"], 1e9 * rates["copy_gigabytes"])
    chips = _CHIPS | {chip: measured}
    rows = []
    for form in filter(_is_picked, run["forms"]):
        work = (form["flops_per_round"], form["least_bytes_per_round"])
        limits = [_limit(work, rates) for rates in chips.values()]
        seconds = form["seconds_per_round"]["wall"]
        sizes = (f"{work[0] / 1e9:,.2f}", f"{work[1] / 1e6:,.0f}")
        least, _ = limits[-1]
        bounds = (f"{report.milliseconds(best)} {binds}" for best, binds in limits)
        times = (report.milliseconds(seconds), f"{seconds / least:,.0f}")
        rows.append((form["workload"], *sizes, *bounds, *times))
    titles = ("", "GFLOP", "MB", *(f"{name}, ms" for name in chips))
    return _table((*titles, f"{chip} measured, ms", "times"), rows)


def _limit(work: tuple[float, float], chip: tuple[float, float]) -> tuple[float, str]:
    """Returns the least seconds of operations and bytes, and the one that binds."""
    seconds = [amount / rate for amount, rate in zip(work, chip, strict=True)]
    # The roofline: the slower of products and memory sets the time.
    return max(zip(seconds, ("operations", "bytes"), strict=True))


def _key(form: Mapping[str, Any]) -> tuple[Any, ...]:
    """Returns the fields that identify a form."""
    names = "workload execution points_per_chunk convolution bfloat16_products"
    return tuple(form[name] for name in names.split())


def _is_picked(form: Mapping[str, Any]) -> bool:
    """Returns whether `auto` picks a form; it never rounds products."""
    return form["is_automatic"] and not form["bfloat16_products"]


def _form(
    form: Mapping[str, Any],
    plain: Mapping[tuple[Any, ...], float],
    on_core: Mapping[str, float],
) -> tuple[str, ...]:
    """Returns the row of a form of a workload."""
    seconds, name = form["seconds_per_round"]["wall"], form["workload"]
    is_picked, is_rounded = _is_picked(form), form["bfloat16_products"]
    plain_seconds = plain.get(_key(form))
    return (
        f"{name}{'*' * is_picked}{' bf16' * is_rounded}",
        f"`{form['execution']}`",
        report.milliseconds(seconds),
        "" if plain_seconds is None else report.milliseconds(plain_seconds),
        f"{form['flops_per_round'] / seconds / 1e9:,.0f}",
        f"{form['compile_seconds']:.1f}",
        f"{form['program_bytes'] / 1e6:,.0f}",
        report.milliseconds(on_core[name]) if is_picked and name in on_core else "",
    )


def _releases(older: Mapping[str, Any], newer: Mapping[str, Any]) -> dict[str, Any]:
    """Returns texts and the table about two releases of JAX."""
    names = [f"JAX {run['machine']['versions']['jax']}" for run in (older, newer)]
    times = [
        {w["name"]: report.seconds_of(w)["ours"] for w in run["workloads"]}
        for run in (older, newer)
    ]
    peers = [chart.ratios(run) for run in (older, newer)]
    rows, apart = [], []
    for name, change, _ in report.differing(older, newer):
        seconds = [report.milliseconds(part[name]) for part in times]
        shares = [f"{part[name]:.2f}" if name in part else "" for part in peers]
        rows.append((name, *seconds, f"{1 + change:.2f}", *shares))
        if abs(change) > report.TOLERANCE:
            apart.append(f"{name} ({1 + change:.2f})")
    titles = ("", *(f"{name}, ms" for name in names), "newer / older")
    titles += tuple(f"PyTorch / ours, {name}" for name in names)
    return {
        "machines": {OLDER: _machine(older), NEWER: _machine(newer)},
        "table": _table(titles, rows),
        "tolerance": f"{100 * report.TOLERANCE:.0f} %",
        "apart": ", ".join(apart),
    }


def _divided(run: Mapping[str, Any]) -> dict[str, Any]:
    """Returns texts and the table about devices and processes."""
    return {
        **run,
        "name": HOSTS,
        "table": _table(hosts.TITLES, hosts.cells(run)),
        "verdicts": "\n".join(f"* {line}" for line in hosts.verdicts(run)),
    }


def _machine(run: Mapping[str, Any]) -> str:
    """Returns the machine, versions and date of a run."""
    machine = run["machine"]
    versions = machine["versions"]
    names = ("jax", "torch", "byzfl", "geom-median")
    text = ", ".join(f"{name} {versions[name]}" for name in names if name in versions)
    rate = machine.get("update_gigabytes")
    memory = "" if rate is None else f", {rate:.1f} GB/s read and written"
    return (
        f"{machine['threads']} of {machine['cpus']} cores of an {machine['processor']},"
        f" {machine['devices']} device(s), {machine['matmul_gflops']:,.0f} GFLOP/s in"
        f" float32 products{memory}; {text}; {machine['started'][:10]}."
    )


def _verdict(run: Mapping[str, Any], targets: Mapping[str, list[Target]]) -> str:
    """Says which targets are met."""
    names: dict[str, list[str]] = {"Targets met": [], "Missed": []}
    for workload, peer, seconds, target in _pairs(run, targets):
        if target is not None:
            word = "Targets met" if target.is_met(*seconds) else "Missed"
            names[word].append(f"{workload} (`{peer}`)")
    return " ".join(f"{word}: {', '.join(n)}." for word, n in names.items() if n)


def _our_rows(run: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    """Yields the rows of ours alone."""
    rate = run["machine"].get("update_gigabytes")
    for workload in run["workloads"]:
        seconds, pace = report.seconds_of(workload)["ours"], report.gigaflops(workload)
        least = None if rate is None else report.floor(workload, rate)
        execution = workload["contenders"]["ours"]["execution"]
        yield (
            workload["name"],
            f"`{execution}`" if execution else "",
            report.milliseconds(seconds),
            "" if least is None else report.milliseconds(least),
            "" if pace is None else f"{pace:.1f}",
            "" if pace is None else f"{100 * pace / workload['matmul_gflops']:.0f} %",
            f"{workload['peak_bytes'] / 1e6:,.0f}",
        )


def _pairs(
    run: Mapping[str, Any], targets: Mapping[str, list[Target]]
) -> Iterator[tuple[str, str, tuple[float, float], Target | None]]:
    """Yields every workload and peer, seconds of ours and of theirs, and the target."""
    for workload in run["workloads"]:
        seconds, name = report.seconds_of(workload), workload["name"]
        peer_targets = {target.peer: target for target in targets.get(name, [])}
        ours = seconds.pop("ours")
        for peer, theirs in seconds.items():
            yield name, peer, (ours, theirs), peer_targets.get(peer)


def _peers(
    run: Mapping[str, Any], targets: Mapping[str, list[Target]]
) -> Iterator[tuple[str, ...]]:
    """Yields a row per workload and peer."""
    for workload, peer, (seconds, peer_seconds), target in _pairs(run, targets):
        text = f"{peer_seconds / seconds:.2f} times as fast"
        if peer in _OWN:
            text = f"{seconds / peer_seconds:.2f} of its time"
        yield (
            workload,
            _OWN.get(peer, f"`{peer}`"),
            report.milliseconds(seconds),
            report.milliseconds(peer_seconds),
            text,
            "" if target is None else _target_cell(target, seconds, peer_seconds),
        )


def _target_cell(target: Target, seconds: float, peer_seconds: float) -> str:
    """Formats a target and whether it is met."""
    word = "at most" if target.peer in _OWN else "at least"
    verdict = "met" if target.is_met(seconds, peer_seconds) else "missed"
    return f"{word} {target.bound:g}: {verdict}"


def _table(titles: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    """Returns a table in Markdown, numbers at the right."""
    lines = [titles, ("---", "---", *("---:" for _ in titles[2:])), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


if __name__ == "__main__":
    app()

"""Chart of the measurements: `python -m experiments.bench.chart OUT FILE...`."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from experiments import commands
from experiments.bench import report
from fedjax_pfl.core import checks
from fedjax_pfl.figures import drawing
from fedjax_pfl.report import svg

__all__ = ["app", "draw", "ratios"]

_PEER = "torch"
_ROW, _BAR = 0.36, 0.8  # inches per workload; part of it that bars fill
_TICKS = (0.5, 1, 2, 5, 10, 20)
_NAMES = {  # of workloads, as a reader knows them
    "W1": "10 large clients, softmax",
    "W2": "1,000 small clients, softmax",
    "W3": "20 clients, CNN",
    "W4": "grid of 32 settings, softmax",
    "W5": "200 clients of unequal sizes",
    "W6": "10 of 1,000 clients per round",
    "W7": "50 clients, adapters of a frozen network",
    "W6cold": "100 short rounds with start and compilation",
    "A1": "coordinate median of 100 messages",
    "A2": "geometric median of 100 messages",
    "A3": "Krum among 100 messages",
    "A3large": "Krum among 1,000 messages",
    "P1": "50 portfolios, recurrent policy",
}


@commands.application("Draws how many times as fast ours is as PyTorch's loop.")
def app(
    out: Annotated[Path, typer.Argument(metavar="OUT", help="SVG file to write.")],
    files: Annotated[
        list[Path], typer.Argument(metavar="FILE...", help="Runs of the bench.")
    ],
) -> None:
    """Writes the chart of runs on one machine."""
    if out.suffix != ".svg":
        raise checks.InputError(f"Expected a file that ends in .svg, got '{out}'.")
    svg.write(draw([report.read(file) for file in files]), out, "speed")


def ratios(run: dict[str, Any]) -> dict[str, float]:
    """Returns PyTorch's time over ours by workload, where both were timed."""
    seconds = {w["name"]: report.seconds_of(w) for w in run["workloads"]}
    return {n: s[_PEER] / s["ours"] for n, s in seconds.items() if _PEER in s}


def draw(runs: Sequence[dict[str, Any]]) -> Figure:
    """Draws a bar per workload and run of one machine and JAX, about equal times."""
    machines = {
        f"{run['machine']['processor']}, JAX {run['machine']['versions']['jax']}"
        for run in runs
    }
    if len(machines) > 1:
        raise checks.InputError(
            "Expected runs of one machine with one JAX, got"
            f" {'; '.join(sorted(machines))}."
        )
    table = [ratios(run) for run in runs]
    timed_names = dict.fromkeys(w["name"] for run in runs for w in run["workloads"])
    names = [name for name in timed_names if any(name in row for row in table)]
    if not names:
        raise checks.InputError(f"Expected a run with the peer '{_PEER}'.")
    figure = Figure(layout="constrained")
    figure.set_size_inches(1.3 * drawing.WIDTH, 0.8 + _ROW * len(names))
    axes, height = figure.subplots(), _BAR / len(runs)
    timed = {name: [k for k, row in enumerate(table) if name in row] for name in names}
    for number, (run, row) in enumerate(zip(runs, table, strict=True)):
        places, values = [], []
        for line, name in enumerate(names):
            if name in row:
                middle = (len(timed[name]) - 1) / 2
                places.append(line + height * (timed[name].index(number) - middle))
                values.append(row[name])
        cores = run["machine"]["threads"]
        label = f"{cores} core{'s' if cores > 1 else ''}"
        # Bars begin at 1, so that a slower workload points to the left.
        starts = [value - 1 for value in values]
        bars = axes.barh(
            places, starts, height, left=1, color=drawing.color(number), label=label
        )
        texts = [f"{value:.2f}" for value in values]
        axes.bar_label(bars, texts, padding=3, fontsize=8)
    axes.set_xscale("log")
    axes.set_xlim(0.5, 1.6 * max(value for row in table for value in row.values()))
    axes.set_xticks(_TICKS, [f"{tick:g}" for tick in _TICKS])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.axvline(1, color="black", linewidth=0.8)
    axes.set_yticks(range(len(names)), [_NAMES[name] for name in names])
    axes.tick_params(labelsize=8)
    axes.invert_yaxis()
    axes.set_xlabel(
        f"times as fast as a loop over clients in PyTorch, {machines.pop()}", fontsize=9
    )
    if len(runs) > 1:
        axes.legend(fontsize=8, loc="lower right")
    return figure


if __name__ == "__main__":
    app()

"""The page `docs/finetune.md`: head, adapters, or the whole network."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from experiments import texts
from experiments.cards import markdown
from experiments.presets import finetune
from fedjax_pfl.figures import drawing
from fedjax_pfl.results import paired

__all__ = ["render"]

_FIGURES = "finetune_files"
_TITLES = {
    "femnist": "FEMNIST, writers",
    "sent140": "Sent140, ten groups of users: smoke scale",
}
_PARTS = {"head": "the head", "adapters": "adapters", "whole": "the whole network"}
_FEDAVG = "FedAvg"


def _cell(rows: pd.DataFrame, part: str, method: str, column: str) -> pd.Series:
    """Returns a column by seed, for one method and one trained part."""
    cell_rows = rows[(rows["part"] == part) & (rows["method"] == method)]
    return cell_rows.set_index("seed")[column]


def _methods(rows: pd.DataFrame) -> list[str]:
    """Returns the methods, in the order of the table."""
    return list(dict.fromkeys(rows["method"]))


def _figure(rows: pd.DataFrame) -> Figure:
    """Draws accuracies by part, with deviations over seeds."""
    figure = Figure(figsize=(drawing.WIDTH, 3.0), layout="constrained")
    axes = figure.subplots()
    methods = _methods(rows)
    for number, method in enumerate(methods):
        parts = [p for p in _PARTS if len(_cell(rows, p, method, "accuracy"))]
        values = [100 * _cell(rows, part, method, "accuracy") for part in parts]
        shift = 0.12 * (number - (len(methods) - 1) / 2)
        axes.errorbar(
            [list(_PARTS).index(part) + shift for part in parts],
            [v.mean() for v in values],
            [v.std() for v in values],
            fmt=drawing.MARKERS[number],
            color=drawing.COLORS[number],
            markersize=5,
            capsize=2,
            linewidth=1,
            label=method,
        )
    start = 100 * rows["start"].mean()
    axes.axhline(start, color=drawing.GRAY, linestyle="--", label="as pretrained")
    axes.set_xticks(range(len(_PARTS)), list(_PARTS.values()), **drawing.TEXT)
    axes.set_ylabel("accuracy on own test data, %", **drawing.TEXT)
    drawing.legend(figure, "bars are standard deviations over seeds")
    return figure


def _table(rows: pd.DataFrame) -> list[str]:
    """Returns the lines of the table, a row per part and method."""
    head = ("trained", "method", "accuracy", "beside Local", "worst 10 %")
    head += ("worse than Local", "MB", "steps", "seconds", "step size", "lam")
    lines = []
    for (part, method), cell_rows in rows.groupby(["part", "method"], sort=False):
        of = cell_rows.set_index("seed")
        accuracy = 100 * of["accuracy"]
        local_accuracy = 100 * _cell(rows, part, "Local", "accuracy")
        is_alone, lam = method == "Local", of["lam"].iloc[0]
        cells = [
            _PARTS[part],
            method,
            f"{accuracy.mean():.1f} ± {accuracy.std():.1f}",
            "–" if is_alone else paired.interval(accuracy, local_accuracy).text("+.1f"),
            f"{100 * of['worst'].mean():.1f}",
            "–" if is_alone else f"{100 * of['hurt'].mean():.0f} %",
            f"{of['megabytes'].mean():.3g}",
            f"{of['steps'].mean():,.0f}",
            f"{of['seconds'].mean():.2g}",
            f"{of['rate'].iloc[0]:g}",
            "–" if pd.isna(lam) else f"{lam:g}",
        ]
        lines.append(cells)
    return list(markdown.table(head, lines, 2))


def _mean_over(rows: pd.DataFrame, part: str, methods: Sequence[str]) -> pd.Series:
    """Returns accuracies in percent by seed, mean over methods."""
    values = [100 * _cell(rows, part, method, "accuracy") for method in methods]
    return sum(values[1:], values[0]) / len(values)


def _findings(rows: pd.DataFrame) -> list[str]:
    """Returns three findings, each with its paired intervals."""
    # Means over methods that all parts have: FedRep cannot train the head alone.
    num_parts = rows.groupby("method")["part"].nunique()
    methods = [name for name in _methods(rows) if num_parts[name] == len(_PARTS)]
    mean = {part: _mean_over(rows, part, methods) for part in _PARTS}
    adapters, whole = (
        paired.interval(mean[part], mean["head"]) for part in ("adapters", "whole")
    )
    adapter_bytes, all_bytes = (
        _cell(rows, part, _FEDAVG, "megabytes").mean() for part in ("adapters", "whole")
    )
    names = [name for name in methods if name not in ("Local", _FEDAVG)]
    gains = {
        part: paired.interval(
            _mean_over(rows, part, names), 100 * _cell(rows, part, _FEDAVG, "accuracy")
        )
        for part in _PARTS
    }
    # Mean accuracies hide clients that lose by federation.
    hurt = {
        part: paired.of_mean(100 * _cell(rows, part, _FEDAVG, "hurt"))
        for part in _PARTS
    }
    return texts.blocks(
        "finetune_findings",
        adapters=adapters,
        whole=whole,
        methods=methods,
        byte_share=f"{adapter_bytes / all_bytes:.1%}",
        personal=names,
        gains=", ".join(f"{_PARTS[part]} {gain}" for part, gain in gains.items()),
        hurt=", ".join(
            f"{_PARTS[part]} {gap.text('.0f')}" for part, gap in hurt.items()
        ),
    )


def _study(rows: pd.DataFrame, dataset: str) -> dict[str, Any]:
    """Returns texts and the table of one data set."""
    start = paired.of_mean(100 * rows.groupby("seed")["start"].mean())
    return {
        "dataset": dataset,
        "title": _TITLES[dataset],
        "findings": markdown.numbered(_findings(rows)),
        "start": start.text(".1f"),
        "table": "\n".join(_table(rows)),
    }


def render(folder: Path) -> tuple[str, dict[str, Figure]]:
    """Returns the page and its figures by name; tables of the folder may be missing."""
    figures, studies = {}, []
    # A data set that was not trained leaves its section out.
    for dataset in finetune.DATASETS:
        if (table := folder / f"{dataset}.csv").exists():
            rows = pd.read_csv(table)
            figures[dataset] = _figure(rows)
            studies.append(_study(rows, dataset))
    return texts.page("finetune", studies=studies, figures=_FIGURES), figures

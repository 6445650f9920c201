"""The page `docs/finetune.md`: head, adapters, or the whole network."""

from collections.abc import Sequence
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

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
_ABOUT = {
    "femnist": "A small convolutional network, pretrained on a fifth of the writers."
    " Twenty of the others are in a federation: every seed draws its own. Adapters, of"
    " rank 4, are those of convolutions and of the hidden layer; the head is trained"
    " with them.",
    "sent140": "Thirteen users of the data set have ten tweets, so that clients are"
    " groups of users, with fifty tweets each to train on: this shows that it works,"
    " and no more. A small encoder of our own, pretrained on a fifth of the users;"
    " adapters, of rank 4, are those of query and value, and the embeddings of words"
    " are frozen throughout.",
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
    size_text = (
        f"**How much of the network?** Over the head alone, adapters gain {adapters}"
        f" points and the whole network {whole}, in the mean over"
        f" {', '.join(methods)}. FedAvg sends {adapter_bytes / all_bytes:.1%} of the"
        " bytes of the whole network with adapters."
    )
    names = [name for name in methods if name not in ("Local", _FEDAVG)]
    gains = {
        part: paired.interval(
            _mean_over(rows, part, names), 100 * _cell(rows, part, _FEDAVG, "accuracy")
        )
        for part in _PARTS
    }
    texts = ", ".join(f"{_PARTS[part]} {gain}" for part, gain in gains.items())
    personal_text = (
        "**Do personal models pay, too?**"
        f" {' and '.join(names)} minus FedAvg, in points, by what is trained: {texts}."
    )
    # Mean accuracies hide clients that lose by federation.
    hurt = {
        part: paired.of_mean(100 * _cell(rows, part, _FEDAVG, "hurt"))
        for part in _PARTS
    }
    shares = ", ".join(
        f"{_PARTS[part]} {interval.text('.0f')}" for part, interval in hurt.items()
    )
    hurt_text = (
        "**How many clients does federation hurt?** FedAvg's model is worse than"
        f" training alone for this percentage of clients: {shares}."
    )
    return [size_text, personal_text, hurt_text]


def _section(rows: pd.DataFrame, dataset: str) -> list[str]:
    """Returns the blocks of one data set."""
    start = paired.of_mean(100 * rows.groupby("seed")["start"].mean())
    return [
        f"## {_TITLES[dataset]}",
        markdown.numbered(_findings(rows)),
        f"![Accuracy by the part that is trained]({_FIGURES}/{dataset}.svg)",
        f"{_ABOUT[dataset]} Before the first round the network is right on"
        f" {start.text('.1f')} % of the clients' own test data.",
        "\n".join(_table(rows)),
        f"```sh\npython -m experiments.pretrain --preset finetune_{dataset}_whole"
        f" --users 0.2 --epochs 20 --out {dataset}.safetensors\n"
        f"python -m experiments.sweep --preset 'finetune_{dataset}_*' --init"
        f" {dataset}.safetensors --out finetune_{dataset}\n"
        f"python -m experiments.finetune finetune_{dataset}\n```",
    ]


def render(folder: Path) -> tuple[str, dict[str, Figure]]:
    """Returns the page and its figures by name; tables of the folder may be missing."""
    blocks = [
        "# Head, adapters, or the whole network",
        "Choose what clients train, and therefore [send](adapters.md), when all start"
        " from the same pretrained network.",
    ]
    figures = {}
    # A data set that was not trained leaves its section out.
    for dataset in finetune.DATASETS:
        if (table := folder / f"{dataset}.csv").exists():
            rows = pd.read_csv(table)
            figures[dataset] = _figure(rows)
            blocks += _section(rows, dataset)
    blocks += [
        "## How it was measured",
        "Every method chooses among the same step sizes, and weights if it has one, on"
        " the clients' validation data. Accuracy is on own test data in percent after"
        " the last round, mean ± standard deviation over seeds; intervals are of 95 %"
        " and paired by seed. Worse than Local: the share of clients whose own training"
        " of the same part is better. Megabytes, local steps and seconds are those of"
        " one training; other work ran beside it, so seconds are rough. FedRep needs a"
        " body that clients share, and has none if all but the head is frozen.",
        "`experiments/presets/finetune.py` has every setting. This page is generated by"
        " `python -m experiments.cards` from the tables of `python -m"
        " experiments.finetune`; edits are lost.",
    ]
    return "\n\n".join(blocks) + "\n", figures

"""Silos with private examples: rows of a sweep, and their part of the page.

Claim: Liu, Hu, Wu, Smith, "On Privacy and Personalization in Cross-Silo Federated
Learning" (arXiv 2206.07902): the stronger the privacy, the more federation helps, and
the closer personal models should be to their mean.
"""

from collections.abc import Mapping, Sequence

import pandas as pd
from matplotlib.figure import Figure

from experiments import texts
from experiments.cards import markdown
from fedjax_pfl import results
from fedjax_pfl.figures import drawing
from fedjax_pfl.results import paired

__all__ = [
    "NAME",
    "best",
    "figure",
    "figure_of",
    "findings",
    "headings",
    "percent",
    "rows_of",
    "table",
    "verdict",
]

NAME = "atlas_silo"
_FIELDS = {
    "algorithm": "method",
    "algorithm.lam": "lam",
    "algorithm.local.learning_rate": "rate",
    "algorithm.local.multiplier": "multiplier",
    "seed": "seed",
    "model": "model",
}
_METHODS = {
    ("Local", "personal"): "Local",
    ("FedAvg", "global"): "FedAvg (global)",
    ("Flame", "personal"): "mean-regularized (personal)",
}
_TUNED = ["lam", "rate"]


def rows_of(result: results.Result) -> pd.DataFrame:
    """Returns accuracies and epsilon of silos' models, a row per training."""
    last = "metric == 'accuracy' and stat == 'mean' and when == 'last'"
    table = result.table().query(f"population == 'all' and {last}")
    model_index = pd.MultiIndex.from_tuples(_METHODS)
    is_shown = pd.MultiIndex.from_frame(table[["algorithm", "model"]]).isin(model_index)
    keys = list(_FIELDS)
    columns = {"own test": "accuracy", "own validation": "validation"}
    table = table[is_shown & table["data"].isin(list(columns))]
    rows = table.pivot_table(
        index=keys, columns="data", values="value", dropna=False, observed=True
    )
    rows = rows.dropna(how="all").reset_index().rename(columns=columns)
    # Epsilon of every client's examples; infinite without noise.
    privacy = result.local_privacy()
    privacy_keys = [name for name in keys if name in privacy.columns]
    rows = rows.merge(privacy[[*privacy_keys, "epsilon"]], on=privacy_keys, how="left")
    names = [*keys, "epsilon", "validation", "accuracy"]
    rounding = {"accuracy": 5, "validation": 5, "epsilon": 4}
    return rows[names].rename(columns=_FIELDS).round(rounding)


def best(rows: pd.DataFrame, method: str, multiplier: float) -> pd.DataFrame:
    """Returns a method's rows by seed, with the best setting on validation data."""
    method_rows = rows[(rows["method"] == method) & (rows["multiplier"] == multiplier)]
    settings = method_rows.groupby(_TUNED, dropna=False, sort=False)
    return max((part for _, part in settings), key=lambda p: p["validation"].mean())


def percent(rows: pd.DataFrame) -> pd.Series:
    """Returns accuracies in percent by seed."""
    return 100 * rows.set_index("seed")["accuracy"]


def _epsilons(rows: pd.DataFrame) -> dict[float, float]:
    """Returns epsilon by noise multiplier, starting without noise."""
    epsilons = rows.groupby("multiplier")["epsilon"].max()
    return {float(z): float(value) for z, value in epsilons.items()}


def headings(epsilons: Mapping[float, float]) -> list[str]:
    """Returns the titles of columns, from epsilon by noise multiplier."""
    return [f"ε = {e:.2g}" if z else "no noise" for z, e in epsilons.items()]


def verdict(interval: paired.Interval) -> str:
    """Answers the question of a finding."""
    words = {"holds": "It does", "does not hold": "It does not"}
    return words.get(interval.verdict, "It is open")


def figure_of(
    epsilons: Mapping[float, float],
    panels: Mapping[str, Mapping[str, Sequence[float]]],
    ylabel: str,
) -> Figure:
    """Draws accuracies over epsilons at even distances: panels by title and label."""
    canvas = Figure(figsize=(drawing.WIDTH, 3.0), layout="constrained")
    grid = canvas.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    angle = 45 if len(panels) > 1 else 0
    for axes, (title, lines) in zip(grid, panels.items(), strict=True):
        for number, (label, values) in enumerate(lines.items()):
            style = {"marker": drawing.MARKERS[number], "markersize": 4}
            style |= {"color": drawing.COLORS[number], "linewidth": 1.2}
            axes.plot(range(len(values)), values, label=label, **style)
        axes.set_title(title, fontsize=9)
        places = range(len(epsilons))
        axes.set_xticks(places, headings(epsilons), rotation=angle, **drawing.TEXT)
    grid[0].set_ylabel(ylabel, **drawing.TEXT)
    drawing.legend(canvas, "the right end has the strongest privacy")
    return canvas


def _gain(rows: pd.DataFrame, method: str, multiplier: float) -> pd.Series:
    """Returns a method's gain over training alone, in points by seed."""
    local_accuracy = percent(best(rows, "Local", multiplier))
    return percent(best(rows, method, multiplier)) - local_accuracy


def findings(rows: pd.DataFrame) -> list[str]:
    """Returns our findings on the claim, with paired intervals."""
    epsilons = _epsilons(rows)
    clean, strong = min(epsilons), max(epsilons)
    gains = []
    for method, name in (("Flame", "mean-regularized models"), ("FedAvg", "FedAvg")):
        change = paired.interval(
            _gain(rows, method, strong), _gain(rows, method, clean)
        )
        gains.append(
            {
                "name": name,
                "verdict": verdict(change),
                "clean": paired.of_mean(_gain(rows, method, clean)),
                "strong": paired.of_mean(_gain(rows, method, strong)),
                "change": change,
            }
        )
    weights = [best(rows, "Flame", z)["lam"].iloc[0] for z in (clean, strong)]
    return texts.blocks(
        "silo_findings",
        gains=gains,
        epsilon=f"{epsilons[strong]:.2g}",
        clean_weight=f"{weights[0]:g}",
        strong_weight=f"{weights[1]:g}",
    )


def table(rows: pd.DataFrame) -> list[str]:
    """Returns the lines of the table: methods by epsilon."""
    epsilons = _epsilons(rows)
    lines = []
    for (method, _), label in _METHODS.items():
        cells = [best(rows, method, z) for z in epsilons]
        means = [f"{percent(cell).mean():.1f}" for cell in cells]
        lines.append([label, *means])
        if method == "Flame":
            weights = [f"{cell['lam'].iloc[0]:g}" for cell in cells]
            lines.append(["its λ", *weights])
    for method, label in (("FedAvg", "FedAvg"), ("Flame", "mean-regularized")):
        gains = (paired.of_mean(_gain(rows, method, z)) for z in epsilons)
        lines.append([f"{label} - Local", *map(str, gains)])
    return list(markdown.table(["model", *headings(epsilons)], lines, 1))


def figure(rows: pd.DataFrame) -> Figure:
    """Draws accuracy against epsilon."""
    epsilons = _epsilons(rows)
    lines = {
        label: [percent(best(rows, method, z)).mean() for z in epsilons]
        for (method, _), label in _METHODS.items()
    }
    return figure_of(epsilons, {"": lines}, "accuracy on own test data, %")

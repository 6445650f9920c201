"""The page `docs/learned.md`: learned fields and a grid, from kept tables."""

import dataclasses
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure

from experiments import texts
from experiments.cards import markdown
from fedjax_pfl.figures import drawing
from fedjax_pfl.results import paired

__all__ = ["TRAININGS", "best_of", "render"]

TRAININGS = 3
"""Trainings in which fields are learned, one after the other."""

_FIGURES = "learned_files"
_LAM, _RATE = "algorithm.lam", "algorithm.local.learning_rate"
_START = [f"start {_LAM}", f"start {_RATE}"]
_WITHIN = 0.3  # points, of the best of the grid
_SHARE = 0.2  # of the grid's trainings
_FIELDS = 2
_TITLES = {
    "digits": "Digits",
    "fmnist_dir": "Fashion-MNIST, Dirichlet 0.1",
    "femnist": "FEMNIST, writers of each seed's own",
}


@dataclasses.dataclass(frozen=True)
class _Row:
    """Values from one search, and their scores."""

    name: str  # name of the search, for the first column
    values: tuple[float, float]  # lam and the learning rate
    scores: pd.DataFrame  # validation loss and accuracy, and test accuracy, by seed


def best_of(grid: pd.DataFrame) -> tuple[float, float]:
    """Returns lam and the learning rate with the best mean validation accuracy."""
    means = grid.groupby(["lam", "rate"])["validation_accuracy"].agg(
        # A point with a diverged seed is never the best.
        lambda values: values.mean(skipna=False)
    )
    lam, rate = means.idxmax()
    return lam, rate


def _best_of_grid(points: pd.DataFrame) -> _Row:
    """Returns the grid's point with the best validation accuracy."""
    grid = points[points["kind"] == "grid"]
    lam, rate = best_of(grid)
    seed_rows = grid[(grid["lam"] == lam) & (grid["rate"] == rate)].set_index("seed")
    return _Row("best of the grid", (lam, rate), seed_rows)


def _start_rows(points: pd.DataFrame, paths: pd.DataFrame) -> list[_Row]:
    """Returns a row per start, in the order of the paths."""
    rows = []
    learned = points[points["kind"] == "learned"]
    for (lam, rate), path in paths.groupby(_START, sort=False):
        best = learned[(learned["lam"] == lam) & (learned["rate"] == rate)]
        end = path[path["training"] == best["training"].iloc[0]].iloc[-1]
        name = f"from {lam:g} and {rate:g}"
        rows.append(_Row(name, (end[_LAM], end[_RATE]), best.set_index("seed")))
    return rows


def _table(rows: list[_Row], points: pd.DataFrame, cost: int) -> list[str]:
    """Returns the lines of a table, with differences from its first row."""
    head = ("found", "lam", "learning rate", "validation loss", "test accuracy")
    head += ("beside the grid's best", "trainings")
    lines = []
    num_points = len(points[points["kind"] == "grid"]) // len(rows[0].scores)
    costs = {"best of the grid": str(num_points), "lam per client": "–"}
    for row in rows:
        accuracy = 100 * row.scores["test_accuracy"]
        gap = _gap(row, rows[0])
        values = [f"{value:.3g}" if value == value else "own" for value in row.values]
        cells = [
            row.name,
            *values,
            f"{row.scores['validation_loss'].mean():.3f}",
            f"{accuracy.mean():.2f}" if accuracy.notna().all() else "diverged",
            "–" if row is rows[0] else str(gap),
            costs.get(row.name, str(cost)),
        ]
        lines.append(cells)
    return list(markdown.table(head, lines, 1))


def _figure(points: pd.DataFrame, paths: pd.DataFrame, learned: list[_Row]) -> Figure:
    """Draws the paths over the grid's validation losses."""
    grid = points[points["kind"] == "grid"]
    losses = grid.groupby(["lam", "rate"])["validation_loss"].mean().unstack()
    figure = Figure(figsize=(drawing.WIDTH, 3.6), layout="constrained")
    axes = figure.subplots()
    values = np.ma.masked_invalid(losses.to_numpy())
    mesh = axes.pcolormesh(
        losses.columns,
        losses.index,
        values,
        # The cap keeps the contrast among good settings.
        norm=LogNorm(values.min(), min(values.max(), 20 * values.min())),
        shading="nearest",
        cmap="Greys",
    )
    figure.colorbar(mesh, ax=axes, label="validation loss of the grid")
    starts = paths.groupby(_START, sort=False)
    for number, ((lam, rate), path) in enumerate(starts):
        color, style = drawing.COLORS[number], {"markersize": 2, "linewidth": 0.8}
        label = f"from lam = {lam:g}, learning rate = {rate:g}"
        axes.plot(path[_RATE], path[_LAM], "o-", color=color, label=label, **style)
    for number, row in enumerate(learned):
        lam, rate = row.values
        style = {"ms": 13, "mec": "white", "zorder": 3}
        axes.plot(rate, lam, "*", color=drawing.COLORS[number], **style)
    axes.set(xscale="log", yscale="log")
    axes.set_xlabel("learning rate", fontsize=9)
    axes.set_ylabel("lam", fontsize=9)
    drawing.legend(figure, "stars are where the best training ends")
    return figure


def _verdict(rows: list[_Row], points: pd.DataFrame, cost: int) -> str:
    """Returns a sentence on the starts that reach the grid's best, and their cost."""
    best, *other_rows = rows
    learned = [row for row in other_rows if row.name.startswith("from")]
    target = 100 * best.scores["test_accuracy"].mean()
    hits = [
        row
        for row in learned
        if 100 * row.scores["test_accuracy"].mean(skipna=False) >= target - _WITHIN
    ]
    ties = [row for row in learned if _gap(row, best).verdict == "undecided"]
    num_points = len(points[points["kind"] == "grid"]) // len(best.scores)
    share = cost / num_points
    assert share <= _SHARE
    return (
        f"{len(hits)} of {len(learned)} starts come within {_WITHIN} points of the"
        f" grid's best, or above it, and {len(ties)} cannot be told from it, at"
        f" {share:.0%} of the grid's trainings each."
    )


def _gap(row: _Row, best: _Row) -> paired.Interval:
    """Returns the difference of two rows' accuracies in percent, paired by seed."""
    return paired.interval(
        100 * row.scores["test_accuracy"], 100 * best.scores["test_accuracy"]
    )


def render(folder: Path) -> tuple[str, dict[str, Figure]]:
    """Returns the page and its figures by name, from a folder of points and paths."""
    figures, studies = {}, []
    for name, title in _TITLES.items():
        if not (folder / f"{name}-points.csv").exists():
            continue
        points, paths = (
            pd.read_csv(folder / f"{name}-{kind}.csv") for kind in ("points", "paths")
        )
        # A derivative in a field counts as one more training.
        cost = TRAININGS * (1 + _FIELDS)
        best = _best_of_grid(points)
        learned = _start_rows(points, paths)
        rows = [best, *learned]
        per_client = points[points["kind"] == "per client"].set_index("seed")
        if len(per_client):
            values = (np.nan, per_client["rate"].iloc[0])
            rows.append(_Row("lam per client", values, per_client))
        figures[name] = _figure(points, paths, learned)
        studies.append(
            {
                "name": name,
                "title": title,
                "verdict": _verdict(rows, points, cost),
                "table": "\n".join(_table(rows, points, cost)),
            }
        )
    return texts.page("learned", studies=studies, figures=_FIGURES), figures

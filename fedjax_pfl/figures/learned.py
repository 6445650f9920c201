"""Paths of learned fields, with their objective."""

import dataclasses

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from fedjax_pfl import results
from fedjax_pfl.figures import drawing
from fedjax_pfl.results import learned, selection

__all__ = ["Paths", "draw", "paths"]

_HEIGHT = 2.4  # inches of a row of panels
_SPAN = 5.0  # ratio of values above which an axis is logarithmic


@dataclasses.dataclass(frozen=True)
class Paths:
    """Fields step by step."""

    steps: pd.DataFrame  # from `results.learned.path`
    fields: tuple[str, ...]  # dotted names
    objective: str  # of the learning


def paths(result: results.Result) -> Paths | None:
    """Selects the paths of learned fields."""
    steps, objective = learned.path(result.groups), learned.objective(result.groups)
    if steps is None or objective is None:
        return None
    return Paths(steps, learned.fields(result.groups), objective)


def draw(chart: Paths) -> Figure:
    """Draws a panel for the objective and one for each field, a line per start."""
    columns = ["objective", *chart.fields]
    is_one = ", " not in chart.objective  # which the caption has otherwise
    goal = chart.objective if is_one else "objective"
    names = [goal, *selection.short(chart.fields)]
    across = min(len(columns), 3)
    down = -(-len(columns) // across)
    figure = Figure(figsize=(drawing.WIDTH, _HEIGHT * down), layout="constrained")
    grid = figure.subplots(down, across, squeeze=False).ravel()
    every = _lines(chart.steps)
    lines = every[: drawing.MAX_LINES]
    for axes, column, name in zip(grid, columns, names, strict=False):
        for number, (label, rows) in enumerate(lines):
            values = rows[column].to_numpy(float)
            axes.plot(
                rows["round"],
                values,
                color=drawing.color(number),
                marker=drawing.MARKERS[number % len(drawing.MARKERS)],
                markersize=3,
                linewidth=1.2,
                label=label,
            )
        if _is_wide(chart.steps[column].to_numpy(float)):
            axes.set_yscale("log")
        axes.set_title(drawing.text(name), **drawing.TEXT)
        axes.set_xlabel("round", fontsize=8)
        axes.tick_params(which="both", labelsize=8)
        axes.grid(alpha=0.3)
    for axes in grid[len(columns) :]:
        axes.set_visible(False)
    count = len(every) - len(lines)
    drawing.legend(figure, f"{count} more starts are not shown" if count else "")
    return figure


def _lines(steps: pd.DataFrame) -> list[tuple[str, pd.DataFrame]]:
    """Returns the steps of every start with its name."""
    starts = [c for c in map(str, steps) if c.startswith("start ")]
    short = selection.short([c.removeprefix("start ") for c in starts])
    named = []
    for values, rows in steps.groupby(["algorithm", *starts], sort=False, dropna=False):
        method, *at = values
        begun = ", ".join(
            f"{name} = {value:.4g}" if isinstance(value, float) else f"{name} = {value}"
            for name, value in zip(short, at, strict=True)
            if value == value  # NaN where another method has the axis
        )
        named.append((f"{method} from {begun}" if begun else str(method), rows))
    return named


def _is_wide(values: np.ndarray) -> bool:
    """Returns whether values need a logarithmic axis."""
    values = values[np.isfinite(values)]
    return bool(values.size and values.min() > 0) and (
        values.max() > _SPAN * values.min()
    )

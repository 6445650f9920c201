"""Colored tables: a metric over two swept fields, and other data with two axes."""

import textwrap
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.image import AxesImage

from fedjax_pfl import results
from fedjax_pfl.figures import contents, drawing, lines
from fedjax_pfl.results import selection, summaries

__all__ = ["MAX_PANELS", "draw", "over_two_fields"]

MAX_PANELS = 9
_COLUMNS = 3
_MAX_LABELED = 12  # columns with readable numbers
_MAX_TICKS = 24
_MAX_TOLD = 1600  # fields with texts of their values
_MAX_INCHES = 3.0  # of a table without numbers in its fields
_LETTERS = 90  # of titles side by side


def over_two_fields(result: results.Result) -> contents.Heats | None:
    """Returns the last round's metric over the two numeric fields with most values."""
    table, metric = selection.last_round(result)
    fields = lines.numeric(table, result.fields)[:2]
    if len(fields) < 2:
        return None
    x, y = fields
    fixed = [f for f in result.fields if f not in fields]
    keys = [*selection.DESCRIPTION, *fixed]
    table = table[table[fields].notna().all(axis=1)]
    names = selection.varying(table, keys) if len(table) else []
    # Settings of all other fields for which both fields were swept.
    complete = [
        rows
        for rows in selection.groups(table, [*keys, "model"])
        if rows[x].nunique() > 1 and rows[y].nunique() > 1
    ]
    if not complete:
        return None
    panels = []
    for rows in complete[:MAX_PANELS]:
        # Means over seeds; NaN if all seeds diverged. Large values are on top.
        means = rows.pivot_table(
            index=y, columns=x, values="value", aggfunc="mean", dropna=False
        ).sort_index(ascending=False)
        head = rows.iloc[0]
        title = f"{selection.label(head, names)}, {head['model']}"
        named = means.rename(index="{:g}".format, columns="{:g}".format)
        panels.append(contents.Heat(title, head["algorithm"], named))
    population = table["population"].iloc[0]
    return contents.Heats(
        panels=tuple(panels),
        xlabel=x,
        ylabel=y,
        value=f"mean {metric}, {summaries.OWN_TEST} data, {population} clients,"
        " last round",
        total=len(complete),
    )


def draw(chart: contents.Heats) -> Figure:
    """Draws colored tables, at most three in a row."""
    panels = chart.panels
    columns = min(_COLUMNS, len(panels))
    count = -(-len(panels) // columns)
    longest = max(len(name) for panel in panels for name in panel.values.index)
    rows = 0.22 * max(len(panel.values) for panel in panels)
    height = 0.9 + (rows if chart.labeled else min(rows, _MAX_INCHES))
    width = drawing.WIDTH if longest < 20 else drawing.WIDTH + 0.05 * longest
    figure = Figure(layout="constrained")
    figure.set_size_inches(width, 0.8 + count * max(height, 1.5))
    grid = figure.subplots(count, columns, squeeze=False)
    for axes, panel in zip(grid.flat, panels, strict=False):
        # Weights of different methods have different scales, metrics have one.
        parts = panels if chart.is_one_scale else (panel,)
        image = _heat(axes, chart, panel, _limits(chart, parts), columns)
        if not chart.is_one_scale:
            _scale(figure, image, axes, chart.value)
    for axes in grid.flat[len(panels) :]:
        axes.set_visible(False)
    for axes in grid[-1]:
        axes.set_xlabel(drawing.text(chart.xlabel), **drawing.TEXT)
    for axes in grid[:, 0]:
        axes.set_ylabel(drawing.text(chart.ylabel), **drawing.TEXT)
    if chart.is_one_scale:
        _scale(figure, image, grid, chart.value)
    return figure


def _heat(
    axes: Axes,
    chart: contents.Heats,
    panel: contents.Heat,
    limits: tuple[float, float],
    columns: int,
) -> AxesImage:
    """Draws one table, and returns the image for a scale."""
    low, high = limits
    image = axes.imshow(
        panel.values, aspect="auto", cmap="viridis", vmin=low, vmax=high
    )
    title = textwrap.fill(panel.title, _LETTERS // columns, replace_whitespace=False)
    axes.set_title(drawing.text(title), fontsize=7 if columns > 1 else 8)
    names = panel.values.index
    _name(axes, panel.values, len(names) if chart.labeled else _MAX_TICKS // 2)
    for edge in panel.edges:
        axes.axhline(edge, color="white", linewidth=0.8)
        axes.axvline(edge, color="white", linewidth=0.8)
    # Numbers in narrow fields could not be read.
    if chart.labeled and panel.values.shape[1] * columns <= 3 * _MAX_LABELED:
        _write(axes, panel.values.to_numpy(float), low, high)
    if panel.values.size <= _MAX_TOLD:
        rows, places = np.indices(panel.values.shape)
        texts = [
            f"{chart.ylabel} {row}, {chart.xlabel} {column}: {value:.4g}".lstrip()
            for row, values in panel.values.iterrows()
            for column, value in values.items()
        ]
        series = drawing.Series(panel.title, panel.algorithm)
        series.tell(axes, places.ravel(), rows.ravel(), texts)
    return image


def _scale(figure: Figure, image: AxesImage, axes: Any, value: str) -> None:
    """Draws the scale of the colors."""
    bar = figure.colorbar(image, ax=axes, location="bottom", shrink=0.8, aspect=40)
    bar.ax.tick_params(labelsize=7)
    bar.set_label(drawing.text(value), **drawing.TEXT)


def _limits(
    chart: contents.Heats, panels: Sequence[contents.Heat]
) -> tuple[float, float]:
    """Returns the values of the first and the last color."""
    values = np.concatenate([panel.values.to_numpy(float).ravel() for panel in panels])
    finite = values[np.isfinite(values)]
    if not len(finite):
        return 0.0, 1.0
    low = finite.min() if chart.low is None else chart.low
    high = finite.max() if chart.high is None else chart.high
    return (float(low), float(high)) if low < high else (float(low) - 0.5, low + 0.5)


def _name(axes: Axes, table: pd.DataFrame, max_rows: int) -> None:
    """Names as many rows and columns as fit."""
    for axis, names, most in (
        (axes.yaxis, table.index, max_rows),
        (axes.xaxis, table.columns, _MAX_TICKS),
    ):
        places = range(0, len(names), -(-len(names) // most))
        axis.set_ticks(places, [drawing.text(names[k]) for k in places], fontsize=7)
    if max(map(len, table.columns)) > 6:
        axes.tick_params(axis="x", labelrotation=45)
        for text in axes.get_xticklabels():
            text.set_horizontalalignment("right")


def _write(axes: Axes, values: np.ndarray, low: float, high: float) -> None:
    """Writes numbers into the fields."""
    for i, j in np.ndindex(values.shape):
        if np.isfinite(values[i, j]):
            is_light = values[i, j] > low + 0.6 * (high - low)
            color = "#111111" if is_light else "white"  # can be read on its field
            text = _number(float(values[i, j]), low, high)
            axes.text(j, i, text, ha="center", va="center", color=color, fontsize=6)


def _number(value: float, low: float, high: float) -> str:
    """Formats a number of a colored table, just long enough to distinguish colors."""
    if max(abs(low), abs(high)) >= 20:
        return f"{value:.3g}" if max(abs(low), abs(high)) >= 1e4 else f"{value:.0f}"
    return f"{value:.2f}" if high - low >= 0.02 else f"{value:.3g}"

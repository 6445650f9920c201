"""Drawing of lines: learning curves, metrics against swept fields, and others."""

import dataclasses
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fedjax_pfl.figures import contents, drawing

__all__ = ["draw", "views"]

_MAX_MARKED = 12  # points of a line
_MAX_TOLD = 60  # points of a line with texts of their values
_FIRST = 0.1  # share of the rounds that are the first
_FLAT = 0.6  # share of the full span below which the later rounds are shown alone
_MARGIN = 0.05
_MAX_BANDS = 3  # distinguishable bands of a panel
_MAX_LABELED, _MAX_LABEL = 12, 34  # lines, and letters of a name, next to the axes
_APART = 0.065  # share of the height between two names


def draw(chart: contents.Lines) -> Figure:
    """Draws lines with bands or bars."""
    # Colors are settings, dashes models, panels environments.
    figure, panels = drawing.panels(len(chart.panels))
    # Bands of many lines would cover each other, so bars at the ends replace them.
    at_ends = not chart.bars and _are_many(chart)
    for axes, panel in zip(panels, chart.panels, strict=True):
        for number, line in enumerate(panel.marks):
            _line(axes, line, chart, at_ends)
            if at_ends:
                _interval(axes, line, number, len(panel.marks))
    if chart.log_x:
        panels[0].set_xscale("log")
    if chart.log_y:
        panels[0].set_yscale("log")
    drawing.name(panels, chart)
    limits = _zoomed(chart)
    if limits is not None:
        panels[0].set_ylim(*limits)
    cut = "" if limits is None else "the first rounds lie outside of the axes"
    seeds = chart.seeds.replace("band", "bar at the end") if at_ends else chart.seeds
    caption = "\n".join(filter(None, (chart.names, seeds, chart.left_out, cut)))
    is_labeled = len(panels) == 1 and not chart.bars and _label_ends(panels[0], chart)
    drawing.legend(figure, caption, is_empty=is_labeled)
    return figure


def views(chart: contents.Lines) -> dict[str, contents.Lines]:
    """Returns lines with every suitable y-axis by its name, the default first."""
    span = _span(chart)
    full = dataclasses.replace(chart, zooms=False, log_y=False)
    # `full` shows all values, and is always there.
    charts = {} if _zoomed(chart) is None else {"zoomed": chart}
    charts["full"] = full
    if chart.log_y:
        charts = {"logarithmic": chart} | charts
    elif chart.is_loss and span is not None and span[0] > 0:
        charts["logarithmic"] = dataclasses.replace(full, log_y=True)
    return charts


def _zoomed(chart: contents.Lines) -> tuple[float, float] | None:
    """Returns the limits of values after the first rounds, if these are flat."""
    span, tail = _span(chart), _span(chart, _FIRST)
    if not chart.zooms or tail is None or span is None:
        return None
    if not 0 < np.ptp(tail) <= _FLAT * np.ptp(span):
        return None
    margin = _MARGIN * np.ptp(tail)
    return tail[0] - margin, tail[1] + margin


def _span(chart: contents.Lines, start: float = 0) -> tuple[float, float] | None:
    """Returns the range of finite values after a share `start` of the x-axis."""
    points = pd.concat([line.points for line in chart.marks])
    points = points[points["x"] >= start * points["x"].max()]
    values = points[["y", "low", "high"]].to_numpy(float)
    values = values[np.isfinite(values)]
    return (values.min(), values.max()) if values.size else None


def _are_many(chart: contents.Lines) -> bool:
    """Returns whether bands would cover each other."""
    count = max(len(panel.marks) for panel in chart.panels)
    return count > _MAX_BANDS and chart.spread.startswith("mean over")


def _interval(axes: Axes, line: contents.Mark, number: int, count: int) -> None:
    """Draws the band at the last point as a bar, next to the bars of other lines."""
    finite = line.points[np.isfinite(line.points[["low", "high"]]).all(axis=1)]
    if finite.empty:
        return
    color, _ = drawing.style(line)
    end, span = finite.iloc[-1], np.ptp(line.points["x"])
    x = end["x"] + span * (0.01 + 0.05 * number / count)
    series = drawing.Series(line.label, line.algorithm)
    series.name(axes.vlines(x, end["low"], end["high"], color=color, linewidth=2))


def _label_ends(axes: Axes, chart: contents.Lines) -> bool:
    """Names lines at their ends; returns False if the names do not fit."""
    # A line that diverged has no end; then a legend names all lines.
    marks = chart.marks
    last = np.array([line.points[["x", "y"]].iloc[-1] for line in marks])
    if not np.isfinite(last).all() or len(marks) > _MAX_LABELED:
        return False
    if max(len(line.label) for line in marks) > _MAX_LABEL:
        return False
    limits = axes.get_ylim()
    places = axes.transData.transform(last)
    ends = axes.transAxes.inverted().transform(places)[:, 1].tolist()
    axes.set_ylim(*limits)
    places = _spread(ends)
    for line, end, place in zip(marks, ends, places, strict=True):
        color, _ = drawing.style(line)
        drawing.name_end(axes, line, color, end, place)
    return True


def _spread(ends: list[float]) -> list[float]:
    """Moves places on an axis apart as little as possible, keeping their order."""
    # From above, each name at least a step below the one before.
    order = np.argsort(ends)[::-1]
    places = np.clip(np.array(ends)[order], 0.02, 0.98)
    for k in range(1, len(places)):
        places[k] = min(places[k], places[k - 1] - _APART)
    places += max(0.0, 0.02 - places[-1])  # move names below the axis up
    result = np.empty(len(places))
    result[order] = places
    return result.tolist()


def _line(
    axes: Axes, line: contents.Mark, chart: contents.Lines, at_ends: bool
) -> None:
    """Draws one line and its band or bars."""
    color, dash = drawing.style(line)
    series = drawing.Series(line.label, line.algorithm)
    x, y, low, high = (line.points[name] for name in ("x", "y", "low", "high"))
    style = {"color": color, "linestyle": dash, "linewidth": 1.2}
    style |= {"label": line.label} | _marks(line)
    if chart.bars and not line.is_level:
        bars = axes.errorbar(x, y, high - y, capsize=3, **style)
        series.name(*bars.get_children())
    else:
        series.name(*axes.plot(x, y, **style))
    if not (chart.bars or line.is_level or at_ends):
        band = axes.fill_between(x, low, high, color=color, alpha=0.15, linewidth=0)
        series.name(band)
    # Long lines have texts at some of their points, to keep pages small.
    step = -(-len(x) // _MAX_TOLD)
    series.tell(axes, x[::step], y[::step], _texts(line, chart)[::step])


def _texts(line: contents.Mark, chart: contents.Lines) -> list[str]:
    """Returns the texts for the points of a line."""
    texts = []
    point: Any
    for point in line.points.itertuples():
        text = f"{chart.xlabel} {point.x:g}: {point.y:.4g}"
        if chart.spread and not line.is_level and np.isfinite(point.low):
            text += f", {chart.around} {point.low:.4g} to {point.high:.4g}"
        texts.append(text)
    return texts


def _marks(line: contents.Mark) -> dict[str, Any]:
    """Marks of a line: none on long lines, unless they are hollow to distinguish it."""
    is_hollow = drawing.is_hollow(line.color)
    is_long = len(line.points) > _MAX_MARKED
    if not line.algorithm or (not is_hollow and (line.is_level or is_long)):
        return {"marker": ""}
    return {
        "marker": drawing.MARKERS[line.color % len(drawing.MARKERS)],
        "markersize": 4 if is_hollow else 3.5,
        "fillstyle": "none" if is_hollow else "full",
        "markeredgewidth": 0.8,
        "markevery": max(1, -(-len(line.points) // _MAX_MARKED)),
    }

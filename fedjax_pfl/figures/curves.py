"""Lines, drawn: learning curves, metrics against swept fields, and all others.

Colors are settings, dashes models, panels environments; bands and bars are over seeds.
"""

import dataclasses
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fedjax_pfl.figures import contents, drawing

__all__ = ["draw", "views"]

_MAX_MARKED = 12  # points of a line
_MAX_TOLD = 60  # points of a line that say their values
_FIRST = 0.1  # share of the rounds that are the first
_FLAT = 0.6  # share of the whole span below which the rest is shown alone
_MARGIN = 0.05
_MAX_BANDS = 3  # of a panel, which can be told apart
_MAX_LABELED, _MAX_LABEL = 12, 34  # lines, and letters of a name, beside the axes
_APART = 0.065  # share of the height between two names
_DASHES = {"solid": "-", "dash": "--", "dot": ":"}


def draw(shown: contents.Lines) -> Figure:
    """Draws lines with bands or bars."""
    figure, panels = drawing.panels(len(shown.panels))
    at_ends = not shown.bars and _are_many(shown)
    for axes, panel in zip(panels, shown.panels, strict=True):
        for number, line in enumerate(panel.marks):
            _line(axes, line, shown, at_ends)
            if at_ends:
                _interval(axes, line, number, len(panel.marks))
    if shown.log_x:
        panels[0].set_xscale("log")
    if shown.log_y:
        panels[0].set_yscale("log")
    drawing.name(panels, shown.panels, shown.xlabel, shown.ylabel)
    limits = _zoomed(shown)
    if limits is not None:
        panels[0].set_ylim(*limits)
    cut = "" if limits is None else "the first rounds lie outside of the axes"
    spread = shown.spread or "one seed"
    if at_ends:
        spread = spread.replace("band", "bar at the end")
    said = "\n".join(filter(None, (shown.names, spread, shown.left_out, cut)))
    is_labeled = len(panels) == 1 and not shown.bars and _label_ends(panels[0], shown)
    drawing.legend(figure, said, is_empty=is_labeled)
    return figure


def views(shown: contents.Lines) -> dict[str, contents.Lines]:
    """Returns lines with every y-axis that suits them, by its name.

    Returns:
      At least `full`, which shows all values; first the axis of `shown`.
    """
    span = _span(shown)
    whole = dataclasses.replace(shown, zooms=False, log_y=False)
    named = {} if _zoomed(shown) is None else {"zoomed": shown}
    named["full"] = whole
    if shown.log_y:
        named = {"logarithmic": shown} | named
    elif shown.is_loss and span is not None and span[0] > 0:
        named["logarithmic"] = dataclasses.replace(whole, log_y=True)
    return named


def _zoomed(shown: contents.Lines) -> tuple[float, float] | None:
    """Returns the limits of values after the first rounds, if others are flat."""
    whole, rest = _span(shown), _span(shown, _FIRST)
    if not shown.zooms or rest is None or whole is None:
        return None
    if not 0 < np.ptp(rest) <= _FLAT * np.ptp(whole):
        return None
    margin = _MARGIN * np.ptp(rest)
    return rest[0] - margin, rest[1] + margin


def _span(shown: contents.Lines, start: float = 0) -> tuple[float, float] | None:
    """Returns the least and the largest finite value from a share of the x-axis on."""
    end = max(line.x[-1] for line in shown.marks)
    parts = [
        np.stack([line.y, line.low, line.high])[:, line.x >= start * end]
        for line in shown.marks
    ]
    joined = np.concatenate([part.ravel() for part in parts])
    joined = joined[np.isfinite(joined)]
    return (joined.min(), joined.max()) if joined.size else None


def _are_many(shown: contents.Lines) -> bool:
    """Returns whether bands would cover each other."""
    most = max(len(panel.marks) for panel in shown.panels)
    return most > _MAX_BANDS and shown.spread.startswith("mean over")


def _interval(axes: Axes, line: contents.Line, number: int, count: int) -> None:
    """Draws what is around the last point, beside those of other lines."""
    finite = np.flatnonzero(np.isfinite(line.low) & np.isfinite(line.high))
    if not finite.size:
        return
    color, _ = drawing.style(line)
    last, span = finite[-1], line.x[-1] - line.x[0]
    x = line.x[last] + span * (0.01 + 0.05 * number / count)
    series = drawing.Series(line.label, line.algorithm)
    ends = (line.low[last], line.high[last])
    series.name(axes.vlines(x, *ends, color=color, linewidth=2))


def _label_ends(axes: Axes, shown: contents.Lines) -> bool:
    """Names lines at their ends; returns False where the names do not fit."""
    marks = [line for line in shown.marks if np.isfinite(line.y[-1])]
    if len(marks) < len(shown.marks) or len(marks) > _MAX_LABELED:
        return False
    if max(len(line.label) for line in marks) > _MAX_LABEL:
        return False
    limits = axes.get_ylim()
    to_share = axes.transAxes.inverted()
    points = [axes.transData.transform((line.x[-1], line.y[-1])) for line in marks]
    ends = [float(to_share.transform(point)[1]) for point in points]
    axes.set_ylim(*limits)
    places = _apart(ends)
    for line, end, place in zip(marks, ends, places, strict=True):
        color, _ = drawing.style(line)
        drawing.name_end(axes, line, color, end, place)
    return True


def _apart(ends: list[float]) -> list[float]:
    """Moves places on an axis apart, as little as their order allows."""
    order = np.argsort(ends)[::-1]
    places = np.clip(np.array(ends)[order], 0.02, 0.98)
    for k in range(1, len(places)):
        places[k] = min(places[k], places[k - 1] - _APART)
    places += max(0.0, 0.02 - places[-1])  # what is below the axis moves up
    moved = np.empty(len(places))
    moved[order] = places
    return moved.tolist()


def _line(
    axes: Axes, line: contents.Line, shown: contents.Lines, at_ends: bool
) -> None:
    """Draws one line and what is around it."""
    color, dash = drawing.style(line)
    series = drawing.Series(line.label, line.algorithm)
    style = {"color": color, "linestyle": _DASHES[dash], "linewidth": 1.2}
    style |= {"label": line.label} | _marks(line)
    if shown.bars and not line.is_level:
        bars = axes.errorbar(line.x, line.y, line.high - line.y, capsize=3, **style)
        series.name(*bars.get_children())
    else:
        series.name(*axes.plot(line.x, line.y, **style))
    if not (shown.bars or line.is_level or at_ends):
        series.name(
            axes.fill_between(
                line.x, line.low, line.high, color=color, alpha=0.15, linewidth=0
            )
        )
    step = -(-len(line.x) // _MAX_TOLD)
    series.tell(axes, line.x[::step], line.y[::step], _texts(line, shown)[::step])


def _texts(line: contents.Line, shown: contents.Lines) -> list[str]:
    """Returns what is said of the points of a line."""
    texts = []
    for x, y, low, high in zip(line.x, line.y, line.low, line.high, strict=True):
        text = f"{shown.xlabel} {x:g}: {y:.4g}"
        if shown.spread and not line.is_level and np.isfinite(low):
            text += f", {shown.around} {low:.4g} to {high:.4g}"
        texts.append(text)
    return texts


def _marks(line: contents.Line) -> dict[str, Any]:
    """Marks of a line: none on long ones, unless hollow ones tell it from another."""
    is_hollow = drawing.is_hollow(line.color)
    is_long = len(line.x) > _MAX_MARKED
    if not line.algorithm or (not is_hollow and (line.is_level or is_long)):
        return {"marker": ""}
    return {
        "marker": drawing.MARKERS[line.color % len(drawing.MARKERS)],
        "markersize": 4 if is_hollow else 3.5,
        "fillstyle": "none" if is_hollow else "full",
        "markeredgewidth": 0.8,
        "markevery": max(1, -(-len(line.x) // _MAX_MARKED)),
    }

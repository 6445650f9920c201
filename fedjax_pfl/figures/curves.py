"""Lines, drawn: learning curves, metrics against swept fields, and all others.

Colors are settings, dashes models, panels environments; bands and bars are over seeds.
"""

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fedjax_pfl.figures import contents, drawing

__all__ = ["draw"]

_MAX_MARKED = 12  # points of a line
_MAX_TOLD = 60  # points of a line that say their values
_FIRST = 0.1  # share of the rounds that are the first
_FLAT = 0.6  # share of the whole span below which the rest is shown alone
_MARGIN = 0.05
_DASHES = {"solid": "-", "dash": "--", "dot": ":"}


def draw(shown: contents.Lines) -> Figure:
    """Draws lines with bands or bars.

    Args:
      shown: panels with the same axes.

    Returns:
      The figure.
    """
    figure, panels = drawing.panels(len(shown.panels))
    for axes, panel in zip(panels, shown.panels, strict=True):
        for line in panel.marks:
            _line(axes, line, shown)
    if shown.log_x:
        panels[0].set_xscale("log")
    if shown.log_y:
        panels[0].set_yscale("log")
    drawing.name(panels, shown.panels, shown.xlabel, shown.ylabel)
    is_cut = shown.zooms and _zoom(panels[0], shown)
    cut = "the first rounds lie outside of the axes" if is_cut else ""
    said = (shown.names, shown.spread or "one seed", shown.left_out, cut)
    drawing.legend(figure, "\n".join(filter(None, said)))
    return figure


def _zoom(axes: Axes, shown: contents.Lines) -> bool:
    """Shows only values after the first rounds where those would flatten the rest."""
    lines = [line for panel in shown.panels for line in panel.marks]
    end = max(line.x[-1] for line in lines)
    ends = [np.stack([line.y, line.low, line.high]) for line in lines]
    late = [y[:, line.x >= _FIRST * end] for line, y in zip(lines, ends, strict=True)]
    whole, rest = _span(ends), _span(late)
    if rest is None or whole is None:
        return False
    if not 0 < np.ptp(rest) <= _FLAT * np.ptp(whole):
        return False
    margin = _MARGIN * np.ptp(rest)
    axes.set_ylim(rest[0] - margin, rest[1] + margin)
    return True


def _span(values: list[np.ndarray]) -> tuple[float, float] | None:
    """Returns the least and the largest finite value, if there is one."""
    joined = np.concatenate([part.ravel() for part in values])
    joined = joined[np.isfinite(joined)]
    return (joined.min(), joined.max()) if joined.size else None


def _line(axes: Axes, line: contents.Line, shown: contents.Lines) -> None:
    """Draws one line and what is around it."""
    color, dash = drawing.style(line)
    label = f"{line.setting}, {line.model}" if line.model else line.setting
    series = drawing.Series(label, line.algorithm)
    style = {"color": color, "linestyle": _DASHES[dash], "linewidth": 1.2}
    style |= {"label": label} | _marks(line)
    if shown.bars and not line.is_level:
        bars = axes.errorbar(line.x, line.y, line.high - line.y, capsize=3, **style)
        series.name(*bars.get_children())
    else:
        series.name(*axes.plot(line.x, line.y, **style))
    if not (shown.bars or line.is_level):
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

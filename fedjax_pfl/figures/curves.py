"""Lines, drawn: learning curves, metrics against swept fields, and all others.

Colors are settings, dashes models, panels environments; bands and bars are over seeds.
"""

from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fedjax_pfl import results
from fedjax_pfl.figures import contents, drawing, lines

__all__ = ["draw", "learning_curves", "sweep", "training_loss"]

_MAX_MARKED = 12  # points of a line
_DASHES = {"solid": "-", "dash": "--", "dot": ":"}


def learning_curves(result: results.Result) -> Figure | None:
    """Draws `lines.learning_curves` on clients' own test data."""
    shown = lines.learning_curves(result)
    return None if shown is None else draw(shown)


def training_loss(result: results.Result) -> Figure | None:
    """Draws `lines.training_loss`, where there is one."""
    shown = lines.training_loss(result)
    return None if shown is None else draw(shown)


def sweep(result: results.Result) -> Figure | None:
    """Draws `lines.swept`, where a numeric field was."""
    shown = lines.swept(result)
    return None if shown is None else draw(shown)


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
            _line(axes, line, shown.bars)
    if shown.log_x:
        panels[0].set_xscale("log")
    if shown.log_y:
        panels[0].set_yscale("log")
    drawing.name(panels, shown.panels, shown.xlabel, shown.ylabel)
    said = (shown.names, shown.spread or "one seed", shown.left_out)
    drawing.legend(figure, "\n".join(filter(None, said)))
    return figure


def _line(axes: Axes, line: contents.Line, bars: bool) -> None:
    """One line and what is around it."""
    color, dash = drawing.style(line)
    label = f"{line.model} × {line.setting}" if line.model else line.setting
    style = {"color": color, "linestyle": _DASHES[dash], "linewidth": 1.2}
    style |= {"label": label} | _marks(line)
    if bars and not line.is_level:
        axes.errorbar(line.x, line.y, line.high - line.y, capsize=3, **style)
        return
    axes.plot(line.x, line.y, **style)
    if not line.is_level:
        axes.fill_between(
            line.x, line.low, line.high, color=color, alpha=0.15, linewidth=0
        )


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

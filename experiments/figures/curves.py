"""Learning curves, and a metric against a swept field, drawn.

Legends name model x population x data; bands and bars are over seeds.
"""

from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments.figures import contents, drawing, lines
from fedjax_pfl import results

__all__ = ["draw", "draw_panels", "learning_curves", "sweep", "training_loss"]


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
    return None if shown is None else draw_panels(shown)


def draw(shown: contents.Lines) -> Figure:
    """Draws lines against rounds, with bands.

    Args:
      shown: with one panel.

    Returns:
      The figure.
    """
    figure, (axes,) = drawing.panels(1)
    populations = {line.population for line in shown.panels[0].lines}
    common = populations.pop() if len(populations) == 1 else None
    for line in shown.panels[0].lines:
        population = () if common else (line.population,)  # else the title says it
        label = " × ".join((line.model, *population, line.setting))
        dash = drawing.DASHES.get(line.model, drawing.OTHER_DASH)
        axes.plot(line.x, line.y, dash, color=drawing.color(line.color), label=label)
        _fill(axes, line)
    axes.set_xlabel(shown.xlabel, fontsize=9)
    axes.set_ylabel(shown.ylabel, fontsize=9)
    if shown.log_y:
        axes.set_yscale("log")
    title = f"model × {common or 'population'} × {shown.data} × algorithm"
    title += f"\n{shown.spread or 'one seed'}"
    drawing.legend(figure, axes, title, shown.total)
    return figure


def draw_panels(shown: contents.Lines) -> Figure:
    """Draws lines against a swept field, a panel per model, with bars.

    Args:
      shown: panels side by side.

    Returns:
      The figure.
    """
    figure, panels = drawing.panels(len(shown.panels))
    for axes, panel in zip(panels, shown.panels, strict=True):
        for line in panel.lines:
            style: dict[str, Any] = {"color": drawing.color(line.color)}
            style["label"] = line.setting
            if line.is_level:
                axes.axhline(line.y[0], linestyle="--", **style)  # nothing where NaN
                continue
            marker = drawing.MARKERS[line.color % len(drawing.MARKERS)]
            style |= {"marker": marker, "markersize": 4, "capsize": 3}
            axes.errorbar(line.x, line.y, line.high - line.y, **style)
        if shown.log_x:
            axes.set_xscale("log")
        axes.set_title(panel.title, **drawing.TEXT)
    panels[len(panels) // 2].set_xlabel(shown.xlabel, fontsize=9)
    panels[0].set_ylabel(shown.ylabel, fontsize=9)
    drawing.legend(figure, panels, shown.spread or "one seed", shown.total)
    return figure


def _fill(axes: Axes, line: contents.Line) -> None:
    """The band around a line."""
    color = drawing.color(line.color)
    axes.fill_between(line.x, line.low, line.high, color=color, alpha=0.2, lw=0)

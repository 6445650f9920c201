"""Colors, panels and legends of all figures; no pyplot, readable at 600 pixels."""

import math
from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

__all__ = [
    "COLORS",
    "DASHES",
    "MARKERS",
    "MAX_LINES",
    "OTHER_DASH",
    "TEXT",
    "WIDTH",
    "color",
    "legend",
    "panels",
]

# Okabe and Ito's colors that can be told apart with any color vision, without yellow;
# then gray and wine for the longest comparisons.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
COLORS += ("#999999", "#882255")
MARKERS = "osD^vPX*h"
DASHES = {"personal": "-", "global": "--"}
OTHER_DASH = ":"
MAX_LINES = 9  # as many as colors
TEXT = {"fontsize": 8}
WIDTH, HEIGHT, LINE = 6.0, 3.2, 0.18  # inches; 600 pixels at 100 dots per inch


def color(number: int) -> str:
    """The color of a number; they start again when there are no more."""
    return COLORS[number % len(COLORS)]


def panels(count: int) -> tuple[Figure, list[Axes]]:
    """A figure with panels side by side and room for a legend below."""
    figure = Figure(layout="constrained")
    panels = figure.subplots(1, count, sharey=True, squeeze=False)[0]
    for axes in panels:
        axes.grid(alpha=0.3)
        axes.tick_params(labelsize=8)
    return figure, list(panels)


def legend(figure: Figure, axes: Axes | Sequence[Axes], title: str, count: int) -> None:
    """One legend, of some panels, below all of them, which keep their height."""
    found: dict[str, Any] = {}
    for panel in [axes] if isinstance(axes, Axes) else axes:
        handles, labels = panel.get_legend_handles_labels()
        found = dict(zip(labels, handles, strict=True)) | found
    labels, handles = list(found), list(found.values())
    if count > MAX_LINES:
        title += f"\nthe first {MAX_LINES} of {count} lines"
    columns = 1 if max(map(len, labels), default=0) > 35 else 2
    rows = math.ceil(len(labels) / columns) + len(title.splitlines())
    figure.set_size_inches(WIDTH, HEIGHT + LINE * rows)
    figure.legend(
        handles,
        labels,
        loc="outside lower center",
        ncols=columns,
        title=title,
        title_fontsize=8,
        **TEXT,
    )

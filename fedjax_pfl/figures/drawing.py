"""Colors, panels and legends of all figures; no pyplot, readable at 600 pixels."""

import contextlib
import dataclasses
import json
import math
import textwrap
import weakref
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.container import Container
from matplotlib.figure import Figure

from fedjax_pfl.core import texts
from fedjax_pfl.figures import contents

__all__ = [
    "COLORS",
    "FEW_LINES",
    "GRAY",
    "MARKERS",
    "MAX_LINES",
    "MAX_PANELS",
    "Series",
    "TEXT",
    "WIDTH",
    "color",
    "dash",
    "is_hollow",
    "left_out",
    "legend",
    "name",
    "name_end",
    "panels",
    "shape",
    "style",
    "text",
    "told",
]

# Okabe and Ito's colors that can be told apart with any color vision, without yellow;
# then gray and wine for the longest comparisons.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
COLORS += ("#999999", "#882255")
GRAY = "#7F7F7F"
MARKERS = "osD^vPX*h"
_DASHES = {"": "solid", "personal": "solid", "global": "dash"}
FEW_LINES = len(COLORS)  # of which every setting and model is shown
MAX_LINES = 2 * len(COLORS)  # the second half with hollow marks
MAX_PANELS = 12
_COLUMNS = 3
TEXT = {"fontsize": 8}
WIDTH, _HEIGHT, _LINE = 6.0, 3.2, 0.18  # inches; 600 pixels at 100 dots per inch
_LOW = 1.9  # inches of a panel where there are several rows of them
_LETTERS = 84  # of titles side by side

_told: weakref.WeakKeyDictionary[Artist, str] = weakref.WeakKeyDictionary()
"""Texts that a page is told of artists, as `told` writes it."""


@dataclasses.dataclass(frozen=True)
class Series:
    """Artists that a page shows and hides together; files do not know of it.

    Attributes:
      label: in the legend, of which a click hides them.
      method: algorithm with which they are hidden, too; may be empty.
    """

    label: str
    method: str

    def name(
        self, *artists: Artist, texts: Sequence[str] = (), number: int | None = None
    ) -> None:
        """Makes artists known to the page, with texts of the points of each.

        The number of a box is that of the histories behind its points.
        """
        lines = [f"{self.label}\n{text}".strip() for text in texts]
        told = json.dumps([self.label, self.method, lines, number])
        for artist in artists:
            _told[artist] = f"series:{told}"

    def tell(self, axes: Axes, x: Any, y: Any, texts: Sequence[str]) -> None:
        """Puts texts at finite points, which only a pointer on the page finds."""
        x, y = np.asarray(x, float), np.asarray(y, float)
        good = np.isfinite(x) & np.isfinite(y)
        points = axes.scatter(x[good], y[good], s=40, alpha=0, linewidths=0)
        points.set_visible(False)
        self.name(points, texts=[texts[k] for k in np.flatnonzero(good)])


@contextlib.contextmanager
def told(figure: Figure) -> Iterator[None]:
    """Marks series, legend and points by ids in what is written in the block."""
    artists = figure.findobj(lambda artist: artist in _told)
    hidden = [artist for artist in artists if not artist.get_visible()]
    try:
        for artist in artists:
            artist.set(gid=_told[artist], visible=True)
        yield
    finally:
        for artist in artists:
            artist.set_gid(None)
        for artist in hidden:
            artist.set_visible(False)


def text(words: str) -> str:
    r"""Returns words as matplotlib shows them, with dollars that begin no formula.

    Example:
      >>> text("$x$ costs 3 $")
      '\\$x\\$ costs 3 \\$'
    """
    return texts.printable(words).replace("$", r"\$")


def color(number: int) -> str:
    """Returns the color of a number; they start again when there are no more."""
    return COLORS[number % len(COLORS)]


def is_hollow(number: int) -> bool:
    """Returns whether marks are hollow, because another number has the same color."""
    return number >= len(COLORS)


def style(line: contents.Line) -> tuple[str, str]:
    """Returns color and dash of a line, the same in all panels of a figure.

    Colors are settings and dashes models; what is no method is gray.
    """
    if not line.algorithm:
        return GRAY, ("dash", "dot")[line.color % 2]
    if line.is_level:
        return color(line.color), "dash"
    return color(line.color), dash(line.model)


def dash(model: str) -> str:
    """Returns the dash of a model."""
    return _DASHES.get(model, "dot")


def left_out(lines: int, panels: int) -> str:
    """Returns which lines and panels are shown, if some are left out."""
    parts = []
    if lines > MAX_LINES:
        parts.append(f"the first {MAX_LINES} of {lines} lines")
    if panels > MAX_PANELS:
        parts.append(f"the first {MAX_PANELS} of {panels} panels")
    return " and ".join(parts)


def panels(count: int, share_y: bool = True) -> tuple[Figure, list[Axes]]:
    """Returns a figure of panels with the same axes, at most three side by side.

    Panels with rows of their own do not share the y-axis, and are one below the other.
    """
    columns = (2 if count == 4 else min(count, _COLUMNS)) if share_y else 1
    rows = -(-count // columns)
    figure = Figure(layout="constrained")
    height = _HEIGHT if rows == 1 else rows * _LOW
    figure.set_size_inches(WIDTH, height)
    grid = figure.subplots(rows, columns, sharex=True, sharey=share_y, squeeze=False)
    for axes in grid.flat:
        axes.grid(alpha=0.3)
        axes.tick_params(which="both", labelsize=8)
    for axes in grid.flat[count:]:
        axes.set_visible(False)
    for axes in grid.flat[max(0, count - columns) : count]:  # the lowest of a column
        axes.tick_params(labelbottom=True)
    return figure, list(grid.flat[:count])


def shape(shown: list[Axes]) -> tuple[int, int]:
    """Returns the numbers of columns and rows of panels."""
    spec: Any = shown[0].get_subplotspec()
    rows, columns = spec.get_gridspec().get_geometry()
    return columns, rows


def name(
    shown: list[Axes],
    panels: Sequence[contents.Panel[Any]],
    xlabel: str,
    ylabel: str,
) -> None:
    """Writes titles, and names of the axes in the middle below and beside every row."""
    columns, rows = shape(shown)
    for axes, panel in zip(shown, panels, strict=True):
        whole = panel.title.replace(" = ", "\u00a0=\u00a0")  # never ends a line
        title = textwrap.fill(whole, _LETTERS // columns, break_long_words=False)
        axes.set_title(text(title), **TEXT)
    lowest = shown[columns * (rows - 1) :]
    lowest[len(lowest) // 2].set_xlabel(text(textwrap.fill(xlabel, 48)), fontsize=9)
    for axes in shown[::columns]:
        label = ylabel if rows == 1 else textwrap.fill(ylabel, _LETTERS // 4)
        axes.set_ylabel(text(label), fontsize=9 if rows == 1 else 8)


def name_end(
    axes: Axes, line: contents.Line, color: str, end: float, place: float
) -> None:
    """Writes the name of a line at its end, joined to it if the name had to move."""
    joined = {"arrowstyle": "-", "color": color, "linewidth": 0.6}
    named = axes.annotate(
        text(line.label),
        (1.0, end),
        (1.03, place),
        xycoords="axes fraction",
        textcoords="axes fraction",
        annotation_clip=False,
        arrowprops={**joined, "shrinkA": 0, "shrinkB": 0, "relpos": (0, 0.5)},
        color=color,
        va="center",
        **TEXT,
    )
    told = json.dumps([line.label, line.algorithm, [], None])
    _told[named] = f"legend:series:{told}"


def legend(figure: Figure, title: str, is_empty: bool = False) -> None:
    """Draws one legend, of all panels, below them; they keep their height.

    An empty one has the title alone, where lines are named at their ends.
    """
    named: dict[str, Any] = {}
    for panel in figure.axes:
        handles, labels = panel.get_legend_handles_labels()
        named = dict(zip(labels, handles, strict=True)) | named
    if is_empty:
        named = {}
    labels, handles = list(named), list(named.values())
    columns = 1 if max(map(len, labels), default=0) > 35 else 2
    rows = math.ceil(len(labels) / columns) + len(title.splitlines())
    width, height = figure.get_size_inches()
    figure.set_size_inches(width, height + _LINE * rows)
    shown = figure.legend(
        handles,
        list(map(text, labels)),
        loc="outside lower center",
        ncols=columns,
        title=text(title),
        title_fontsize=8,
        frameon=False,
        **TEXT,
    )
    for entry, handle in zip(shown.get_texts(), handles, strict=True):
        first = handle[0] if isinstance(handle, Container) else handle
        if first in _told:  # those of theory pages belong to no page of a report
            _told[entry] = f"legend:{_told[first]}"

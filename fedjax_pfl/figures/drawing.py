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
    "with_ids",
]

# Okabe and Ito's colors, distinguishable with any color vision, without yellow;
# then gray and wine for the longest comparisons.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
COLORS += ("#999999", "#882255")
GRAY = "#7F7F7F"
MARKERS = "osD^vPX*h"
_DASHES = {"": "solid", "personal": "solid", "global": "dashed"}
FEW_LINES = len(COLORS)  # up to here every setting and model is drawn
MAX_LINES = 2 * len(COLORS)  # the second half with hollow marks
MAX_PANELS = 12
_COLUMNS = 3
TEXT: dict[str, Any] = {"fontsize": 8}
WIDTH, _HEIGHT, _LINE = 6.0, 3.2, 0.18  # inches; 600 pixels at 100 dots per inch
_LOW = 1.9  # inches of a panel if there are several rows
_LETTERS = 84  # of titles side by side

_ids: weakref.WeakKeyDictionary[Artist, str] = weakref.WeakKeyDictionary()
"""Ids of artists for a page, written by `with_ids`."""


@dataclasses.dataclass(frozen=True)
class Series:
    """Artists that a page shows and hides together; files ignore it."""

    label: str  # entry of the legend
    method: str  # algorithm that also hides them; may be empty

    def name(
        self, *artists: Artist, texts: Sequence[str] = (), number: int | None = None
    ) -> None:
        """Registers artists for a page, with texts of their points."""
        lines = [f"{self.label}\n{text}".strip() for text in texts]
        # The number of a box is that of its clients in the packed histories.
        entry = json.dumps([self.label, self.method, lines, number])
        for artist in artists:
            _ids[artist] = f"series:{entry}"

    def tell(self, axes: Axes, x: Any, y: Any, texts: Sequence[str]) -> None:
        """Puts texts at finite points, for a pointer on the page."""
        x, y = np.asarray(x, float), np.asarray(y, float)
        good = np.isfinite(x) & np.isfinite(y)
        points = axes.scatter(x[good], y[good], s=40, alpha=0, linewidths=0)
        # Invisible in files; `with_ids` shows them in pages, where they have titles.
        points.set_visible(False)
        self.name(points, texts=[texts[int(k)] for k in np.flatnonzero(good)])


@contextlib.contextmanager
def with_ids(figure: Figure) -> Iterator[None]:
    """Marks series, legend and points by ids in files written in the block."""
    # Ids are only there while a file is written: the same figure is saved without.
    artists = figure.findobj(lambda artist: artist in _ids)
    hidden = [artist for artist in artists if not artist.get_visible()]
    try:
        for artist in artists:
            artist.set(gid=_ids[artist], visible=True)
        yield
    finally:
        for artist in artists:
            artist.set_gid(None)
        for artist in hidden:
            artist.set_visible(False)


def text(words: str) -> str:
    """Returns words for matplotlib, with dollars escaped, so they begin no formula."""
    return texts.printable(words).replace("$", r"\$")


def color(number: int) -> str:
    """Returns the color of a number; colors repeat after the last one."""
    return COLORS[number % len(COLORS)]


def is_hollow(number: int) -> bool:
    """Returns whether marks are hollow, because another number has the same color."""
    return number >= len(COLORS)


def style(line: contents.Mark) -> tuple[str, str]:
    """Returns color and dash of a line, the same in all panels of a figure."""
    # Colors are settings and dashes models; lines without a method are gray.
    if not line.algorithm:
        return GRAY, ("dashed", "dotted")[line.color % 2]
    if line.is_level:
        return color(line.color), "dashed"
    return color(line.color), dash(line.model)


def dash(model: str) -> str:
    """Returns the dash of a model."""
    return _DASHES.get(model, "dotted")


def left_out(lines: int, panels: int) -> str:
    """Describes the drawn lines and panels if some are left out."""
    parts = []
    if lines > MAX_LINES:
        parts.append(f"the first {MAX_LINES} of {lines} lines")
    if panels > MAX_PANELS:
        parts.append(f"the first {MAX_PANELS} of {panels} panels")
    return " and ".join(parts)


def panels(count: int, share_y: bool = True) -> tuple[Figure, list[Axes]]:
    """Returns a figure of panels with the same axes, at most three side by side."""
    # Panels with separate rows do not share the y-axis, and are one below the other.
    columns = (2 if count == 4 else min(count, _COLUMNS)) if share_y else 1
    rows = -(-count // columns)
    height = _HEIGHT if rows == 1 else rows * _LOW
    figure = Figure(figsize=(WIDTH, height), layout="constrained")
    grid = figure.subplots(rows, columns, sharex=True, sharey=share_y, squeeze=False)
    for axes in grid.flat:
        axes.grid(alpha=0.3)
        axes.tick_params(which="both", labelsize=8)
    for axes in grid.flat[count:]:
        axes.set_visible(False)
    for axes in grid.flat[max(0, count - columns) : count]:  # the lowest of a column
        axes.tick_params(labelbottom=True)
    return figure, list(grid.flat[:count])


def shape(grid: list[Axes]) -> tuple[int, int]:
    """Returns the numbers of columns and rows of panels."""
    spec: Any = grid[0].get_subplotspec()
    rows, columns = spec.get_gridspec().get_geometry()
    return columns, rows


def name(grid: list[Axes], chart: contents.Chart) -> None:
    """Writes titles, and names of the axes in the middle below and left of each row."""
    columns, rows = shape(grid)
    for axes, panel in zip(grid, chart.panels, strict=True):
        words = panel.title.replace(" = ", "\u00a0=\u00a0")  # never ends a line
        title = textwrap.fill(words, _LETTERS // columns, break_long_words=False)
        axes.set_title(text(title), **TEXT)
    lowest = grid[columns * (rows - 1) :]
    xlabel = textwrap.fill(chart.xlabel, 48)
    lowest[len(lowest) // 2].set_xlabel(text(xlabel), fontsize=9)
    for axes in grid[::columns]:
        label = chart.ylabel
        label = label if rows == 1 else textwrap.fill(label, _LETTERS // 4)
        axes.set_ylabel(text(label), fontsize=9 if rows == 1 else 8)


def name_end(
    axes: Axes, line: contents.Mark, color: str, end: float, place: float
) -> None:
    """Writes the name of a line at its end, joined to it if the name had to move."""
    arrow = {"arrowstyle": "-", "color": color, "linewidth": 0.6}
    label = axes.annotate(
        text(line.label),
        (1.0, end),
        (1.03, place),
        xycoords="axes fraction",
        textcoords="axes fraction",
        annotation_clip=False,
        arrowprops={**arrow, "shrinkA": 0, "shrinkB": 0, "relpos": (0, 0.5)},
        color=color,
        va="center",
        **TEXT,
    )
    entry = json.dumps([line.label, line.algorithm, [], None])
    _ids[label] = f"legend:series:{entry}"


def legend(figure: Figure, title: str, is_empty: bool = False) -> None:
    """Draws one legend, of all panels, below them; an empty one has only the title."""
    # Of handles with equal labels, the one of the first panel.
    entries: dict[str, Any] = {}
    for panel in figure.axes:
        handles, labels = panel.get_legend_handles_labels()
        entries = dict(zip(labels, handles, strict=True)) | entries
    if is_empty:
        entries = {}
    labels, handles = list(entries), list(entries.values())
    columns = 1 if max(map(len, labels), default=0) > 35 else 2
    rows = math.ceil(len(labels) / columns) + len(title.splitlines())
    width, height = figure.get_size_inches()
    # The figure grows by the legend, so that panels keep their height.
    figure.set_size_inches(width, height + _LINE * rows)
    drawn = figure.legend(
        handles,
        list(map(text, labels)),
        loc="outside lower center",
        ncols=columns,
        title=text(title),
        title_fontsize=8,
        frameon=False,
        **TEXT,
    )
    for entry, handle in zip(drawn.get_texts(), handles, strict=True):
        artist = handle[0] if isinstance(handle, Container) else handle
        if artist in _ids:  # figures of theory pages have no report
            _ids[entry] = f"legend:{_ids[artist]}"

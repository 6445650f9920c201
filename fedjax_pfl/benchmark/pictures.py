"""Figures of a benchmark: means with intervals on a data set, ranks over all."""

from collections.abc import Sequence

from matplotlib.figure import Figure
from matplotlib.ticker import MultipleLocator

from fedjax_pfl.benchmark import ranking
from fedjax_pfl.figures import drawing
from fedjax_pfl.results import paired

__all__ = ["of_places", "of_ranks"]

_ROW = 0.19  # inches
_SPAN = 25  # points below the best mean that are drawn
_STEP = 0.3  # between lines of the diagram of ranks


def of_places(places: Sequence[ranking.Place], metric: str) -> Figure:
    """Draws every method's mean over seeds with its 95 % interval, the best on top.

    The group that cannot be told from the best is blue; methods that are not ranked
    have open circles; means far below the best are written at the left edge.
    """
    figure = Figure(layout="constrained")
    figure.set_size_inches(drawing.WIDTH, 0.9 + _ROW * len(places))
    axes = figure.subplots()
    lowest = max((100 * place.mean for place in places), default=0) - _SPAN
    for row, place in enumerate(places):
        found = paired.of_mean(100 * place.values)
        if found.mean < lowest:
            axes.text(
                0.01,
                row,
                f"\u25c2 {found.mean:.0f}",
                va="center",
                color=drawing.GRAY,
                fontsize=8,
                transform=axes.get_yaxis_transform(),
            )
            continue
        color = drawing.color(0) if place.group == 1 else drawing.GRAY
        axes.errorbar(
            found.mean,
            row,
            xerr=found.margin if found.pairs > 1 else None,
            fmt="o",
            markersize=4,
            color=color,
            markerfacecolor=color if place.group else "none",
            capsize=2,
            linewidth=1,
        )
    names = [f"{p.method}{f' ({p.why_not})' if p.why_not else ''}" for p in places]
    axes.set_yticks(range(len(places)), [*map(drawing.text, names)], **drawing.TEXT)
    axes.set_ylim(len(places) - 0.5, -0.5)
    axes.tick_params(axis="x", labelsize=8)
    axes.grid(alpha=0.3)
    axes.set_xlabel(
        f"own test {metric} in %, mean over seeds with 95 % interval", fontsize=9
    )
    return figure


def of_ranks(ranks: ranking.Ranks) -> Figure:
    """Draws mean ranks as a critical-difference diagram, the best on the left.

    Bars join methods whose mean ranks are nearer than the critical difference; only
    bars that lie in no other one are drawn.
    """
    count, means = len(ranks.means), ranks.means
    half = -(-count // 2)
    bars = _bars(list(means), ranks.distance)
    depth = 0.6 + 0.2 * len(bars)
    figure = Figure(layout="constrained")
    height = depth + _STEP * half
    figure.set_size_inches(drawing.WIDTH + 1, 0.9 + 0.62 * height)
    axes = figure.subplots()
    axes.set_xlim(1 - 0.45 * count, count + 0.45 * count)
    axes.set_ylim(height + 0.2, -1.3)
    axes.axis("off")
    axes.plot([1, count], [0, 0], color="black", linewidth=1)
    for rank in _marks(count):
        axes.plot([rank, rank], [-0.1, 0], color="black", linewidth=1)
        axes.text(rank, -0.18, f"{rank}", ha="center", va="bottom", fontsize=8)
    axes.plot([1, 1 + ranks.distance], [-0.95, -0.95], color="black", linewidth=1.5)
    text = f" critical difference {ranks.distance:.1f}"
    axes.text(1 + ranks.distance, -0.95, text, va="center", fontsize=8)
    for number, (name, rank) in enumerate(means.items()):
        is_left = number < half
        row = number if is_left else count - 1 - number
        y = depth + _STEP * row
        end = 0.7 if is_left else count + 0.3
        axes.plot([rank, rank, end], [0, y, y], color=drawing.GRAY, linewidth=0.7)
        side = "right" if is_left else "left"
        label = f"{name} {rank:.1f} " if is_left else f" {rank:.1f} {name}"
        axes.text(end, y, drawing.text(label), ha=side, va="center", fontsize=8)
    for number, (low, high) in enumerate(bars):
        y = 0.2 + 0.2 * number
        line = {"color": drawing.color(0), "linewidth": 3}
        axes.plot([low - 0.05, high + 0.05], [y, y], solid_capstyle="round", **line)
    return figure


def _marks(count: int) -> list[int]:
    """Returns the ranks that the axis names."""
    step = 1 if count <= 10 else 5
    marks = MultipleLocator(step).tick_values(1, count)
    return sorted({1, count, *(int(m) for m in marks if 1 < m < count)})


def _bars(means: Sequence[float], distance: float) -> list[tuple[float, float]]:
    """Returns the longest runs of sorted means that lie within a distance."""
    bars: list[tuple[float, float]] = []
    for start, low in enumerate(means):
        high = max(m for m in means[start:] if m - low <= distance)
        if high > low and not any(high <= other for _, other in bars):
            bars.append((low, high))
    return bars

"""Figures of a benchmark: differences with intervals on a data set, ranks over all."""

import math
from collections.abc import Collection, Mapping, Sequence

from matplotlib.figure import Figure

from fedjax_pfl.benchmark import differences, ranking
from fedjax_pfl.figures import drawing

__all__ = ["of_gaps", "of_ranks"]

_ROW = 0.19  # inches
_SPAN = 16  # points to each side of the reference that are drawn
_STEP = 0.3  # between lines of the diagram of ranks


def of_gaps(
    places: Sequence[ranking.Place],
    gaps: Mapping[str, differences.Gap],
    reference: str,
    metric: str,
) -> Figure:
    """Draws every method's difference to a reference with its interval, in points."""
    figure = Figure(layout="constrained")
    figure.set_size_inches(drawing.WIDTH, 0.9 + _ROW * len(places))
    axes = figure.subplots()
    is_better = differences.verdicts(gaps)
    axes.axvline(0, color="black", linewidth=0.8)
    for row, place in enumerate(places):
        mean = "–" if math.isnan(place.mean) else f"{100 * place.mean:.1f}"
        margin = {"transform": axes.get_yaxis_transform(), "va": "center"}
        axes.text(1.02, row, mean, fontsize=8, **margin)
        if place.method == reference:
            axes.plot(0, row, "D", markersize=4, color="black")
            continue
        gap, better = gaps[place.method].seeds, is_better.get(place.method)
        # Blue: clearly better. Orange: clearly worse. Open circles: not ranked.
        color = drawing.GRAY if better is None else drawing.color(0 if better else 1)
        # Large differences are written at the edge, or would flatten all others.
        if not abs(gap.mean) <= _SPAN:
            is_left = gap.mean < 0
            text = f"\u25c2 {gap.mean:.0f}" if is_left else f"{gap.mean:.0f} \u25b8"
            place_of = (
                {"x": 0.01, "ha": "left"} if is_left else {"x": 0.99, "ha": "right"}
            )
            if not math.isnan(gap.mean):
                axes.text(y=row, s=text, color=color, fontsize=8, **place_of, **margin)
            continue
        axes.errorbar(
            gap.mean,
            row,
            xerr=gap.margin if gap.pairs > 1 else None,
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
    low, high = axes.get_xlim()
    axes.set_xlim(max(low, -_SPAN - 2), min(high, _SPAN + 2))
    axes.tick_params(axis="x", labelsize=8)
    axes.grid(alpha=0.3)
    title = {"transform": axes.transAxes, "ha": "left", "va": "bottom"}
    axes.text(1.02, 1.0, "mean", fontsize=8, **title)
    label = f"own test {metric} minus that of {reference}, in points,\n"
    label = f"{drawing.text(label)}mean over seeds with 95 % interval"
    axes.set_xlabel(label, fontsize=9)
    return figure


def of_ranks(ranks: ranking.Ranks, rising: Collection[str] = ()) -> Figure:
    """Draws mean ranks as a critical-difference diagram, the best on the left."""
    count, means = len(ranks.means), ranks.means
    half = -(-count // 2)
    # Bars join methods with mean ranks closer than the critical difference.
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
    # The better half is named at the left, from above; the other one at the right, from
    # below, so that lines do not cross.
    for number, (name, rank) in enumerate(means.items()):
        is_left = number < half
        row = number if is_left else count - 1 - number
        y = depth + _STEP * row
        end = 0.7 if is_left else count + 0.3
        axes.plot([rank, rank, end], [0, y, y], color=drawing.GRAY, linewidth=0.7)
        side = "right" if is_left else "left"
        name = ranking.marked(str(name), rising)
        label = f"{name} {rank:.1f} " if is_left else f" {rank:.1f} {name}"
        axes.text(end, y, drawing.text(label), ha=side, va="center", fontsize=8)
    for number, (low, high) in enumerate(bars):
        y = 0.2 + 0.2 * number
        line = {"color": drawing.color(0), "linewidth": 3}
        axes.plot([low - 0.05, high + 0.05], [y, y], solid_capstyle="round", **line)
    return figure


def _marks(count: int) -> list[int]:
    """Returns the ranks to label on the axis."""
    step = 1 if count <= 10 else 5
    return sorted({1, count, *range(step, count, step)})


def _bars(means: Sequence[float], distance: float) -> list[tuple[float, float]]:
    """Returns the longest runs of sorted means that lie within a distance."""
    bars: list[tuple[float, float]] = []
    for start, low in enumerate(means):
        high = max(m for m in means[start:] if m - low <= distance)
        # Bars inside another one are not drawn.
        if high > low and not any(high <= end for _, end in bars):
            bars.append((low, high))
    return bars

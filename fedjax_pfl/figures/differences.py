"""Differences of methods to a reference, paired by seed: the ranking as a figure."""

import math
import textwrap
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from fedjax_pfl import results
from fedjax_pfl.figures import contents, drawing
from fedjax_pfl.results import comparison, metrics, summaries

__all__ = ["draw", "to_reference"]

_ROW = 0.24  # inches
_LETTERS = 40  # of a line of a name


def to_reference(result: results.Result) -> contents.Chart | None:
    """Returns every row of the ranking minus the reference, a panel per environment."""
    ranked = comparison.rank(result)
    if ranked is None or not ranked.is_paired:
        return None
    is_share = result.headline in metrics.SHARES
    scale = 100.0 if is_share else 1.0
    # In the order of results, as in all other figures.
    colors: dict[str, int] = {}
    for algorithm in result.points()["algorithm"]:
        colors.setdefault(algorithm, len(colors))
    panels, names = [], {}
    for environment in ranked.environments[: drawing.MAX_PANELS]:
        reference = environment.rows[environment.reference]
        names[f"{reference.setting}, {reference.model}"] = None
        gaps = []
        for row in environment.rows:
            gap = row.differences[environment.reference]
            described = (row.setting, row.algorithm, row.model, colors[row.algorithm])
            numbers = {
                "difference": 0.0 if gap is None else scale * gap.mean,
                "margin": math.nan if gap is None else scale * gap.margin,
                "is_reference": gap is None,
                "value": scale * row.value,
            }
            gaps.append(contents.Mark(*described, pd.DataFrame([numbers])))
        panels.append(contents.Panel(environment.title, tuple(gaps)))
    # A figure with one environment needs no title.
    if len(panels) == 1:
        panels = [contents.Panel("", panels[0].marks)]
    unit = ", points" if is_share else ""
    seeds = result.points()["seed"].nunique()
    of = next(iter(names)) if len(names) == 1 else "the reference"
    label = f"{result.headline.replace('_', ' ')} minus that of {of}{unit}"
    if metrics.sign(result.headline) < 0:
        label += ", less is better"
    if seeds > 1:
        label += f" (mean over {seeds} seeds, 95 % interval)"
    return contents.Chart(
        panels=tuple(panels),
        xlabel=label,
        data=summaries.OWN_TEST,
        left_out=drawing.left_out(0, len(ranked.environments)),
        decimals=1 if is_share else 3,
    )


def _wrapped(label: str) -> str:
    """Breaks the name of a row so that it takes half of the figure at most."""
    return textwrap.fill(label, _LETTERS)


def draw(chart: contents.Chart) -> Figure:
    """Draws a row per method and model, the best on top, with its mean at the right."""
    figure, panels = drawing.panels(len(chart.panels), share_y=False)
    count = max(len(panel.marks) for panel in chart.panels)
    for axes, panel in zip(panels, chart.panels, strict=True):
        axes.axvline(0, color="black", linewidth=0.8)
        for row, mark in enumerate(panel.marks):
            gap: Any = next(mark.points.itertuples())
            series = drawing.Series(mark.label, mark.algorithm)
            has_bar = math.isfinite(gap.margin)
            color = "black" if gap.is_reference else drawing.color(mark.color)
            bars = axes.errorbar(
                gap.difference,
                row,
                xerr=gap.margin if has_bar else None,
                fmt="D" if gap.is_reference else "o",
                markersize=4,
                color=color,
                capsize=2,
                linewidth=1.2,
            )
            series.name(*bars.get_children())
            text = f"{gap.difference:+.{chart.decimals}f}"
            if has_bar:
                text += f" ± {gap.margin:.{chart.decimals}f}"
            value = f"{gap.value:.{chart.decimals}f}"
            series.tell(axes, [gap.difference], [row], [f"{text}, mean {value}"])
            # To the right of the axes, at the height of its row.
            place = {"transform": axes.get_yaxis_transform(), "va": "center"}
            axes.text(1.02, row, value, **place, **drawing.TEXT)
        labels = [drawing.text(_wrapped(gap.label)) for gap in panel.marks]
        axes.set_yticks(range(len(labels)), labels, **drawing.TEXT)
        axes.set_ylim(count - 0.5, -0.5)
        head = {"transform": axes.transAxes, "ha": "left", "va": "bottom"}
        axes.text(1.02, 1.0, "mean", **head, **drawing.TEXT)
    drawing.name(panels, chart)
    if chart.left_out:
        figure.suptitle(chart.left_out, **drawing.TEXT)
    lines = max(_wrapped(gap.label).count("\n") + 1 for gap in chart.marks)
    height = 0.8 + len(panels) * (0.3 + _ROW * count * max(1, 0.7 * lines))
    figure.set_size_inches(drawing.WIDTH, height)
    return figure

"""Charts of single clients, and of fairness between them."""

from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from fedjax_pfl.figures import clients, contents, drawing
from fedjax_pfl.report import charts

__all__ = ["MAX_POINTS", "boxes", "has_points", "spots"]

_MAX_LETTERS = 38  # that fit on a phone
MAX_POINTS = 3000
"""Of all boxes of a figure; more make a page slow."""


def boxes(shown: contents.Boxes) -> charts.Chart:
    """Distributions over clients, one above the other.

    Args:
      shown: the values.

    Returns:
      One drawing per panel; points are drawn where there are not too many.
    """
    legend: dict[str, charts.Entry] = {}
    heights = iter(clients.jitter(shown))
    reach = charts.span([box.values for box in shown.boxes]) or [0.0, 1.0]
    panels = []
    for panel in shown.panels:
        traces: list[Any] = []
        for box in panel.marks:
            name = f"{box.setting} · {box.model}"
            color = drawing.color(box.color)
            legend.setdefault(
                name, charts.Entry(name, name, box.algorithm, color, "box")
            )
            meta = {"key": name, "method": box.algorithm}
            row, height = shown.rows[box.setting, box.model], next(heights)
            if has_points(shown):
                traces.append(_points(box, row + height, name, color, meta))
            traces.append(_quartiles(box, row, name, color, meta))
            traces.append(_name(box, reach[0], row, meta))
        figure = charts.figure(traces, _layout(shown, reach))
        panels.append(charts.Panel(panel.title, figure))
    return charts.Chart(tuple(panels), tuple(legend.values()))


def _layout(shown: contents.Boxes, reach: list[float]) -> dict[str, Any]:
    """Axes of a panel."""
    count = len(shown.rows)
    label = charts.safe(shown.xlabel.partition(" × ")[0])
    return {
        "xaxis": {"title": {"text": label}, "range": reach},
        "yaxis": {
            "range": [count - 0.55, -0.7],
            "showticklabels": False,
            "showgrid": False,
            "zeroline": False,
        },
        "height": 90 + (74 if len(shown.panels) == 1 else 52) * count,
        "margin": {"l": 12},
    }


def _name(box: contents.Box, left: float, row: int, meta: dict[str, str]) -> Any:
    """Returns the name above a box, and a shorter one for narrow places."""
    name = charts.safe(f"{box.setting} · {box.model}")
    short = charts.safe(_short(f"{box.model} · {box.setting}"))
    return go.Scatter(
        x=[left],
        y=[row - 0.43],
        text=[name],
        mode="text",
        textposition="middle right",
        hoverinfo="skip",
        cliponaxis=False,
        meta=meta | {"short": short},
    )


def has_points(shown: contents.Boxes) -> bool:
    """Returns whether every client is a point."""
    return sum(len(box.values) for box in shown.boxes) <= MAX_POINTS


def _points(
    box: contents.Box, heights: np.ndarray, name: str, color: str, meta: dict[str, str]
) -> Any:
    """Every client's value."""
    who = [
        f"client {client}{'' if pd.isna(seed) else f', seed {seed}'}"
        f"<br>{size:,} training examples"
        for client, seed, size in zip(box.clients, box.seeds, box.sizes, strict=True)
    ]
    return go.Scatter(
        x=box.values.tolist(),
        y=heights.round(3).tolist(),
        customdata=who,
        mode="markers",
        marker={"color": color, "size": 6, "opacity": 0.45},
        hovertemplate=f"<b>{charts.safe(name)}</b><br>%{{customdata}}<br>%{{x:.4f}}"
        "<extra></extra>",
        meta=meta,
    )


def _quartiles(
    box: contents.Box, place: int, name: str, color: str, meta: dict[str, str]
) -> Any:
    """Returns the box of matplotlib's figure: quartiles, whiskers and mean."""
    values = box.values
    with np.errstate(invalid="ignore"):  # where losses are infinite
        low, middle, high = np.quantile(values, [0.25, 0.5, 0.75])
    reach = 1.5 * (high - low)
    inside = values[(values >= low - reach) & (values <= high + reach)]
    return go.Box(
        q1=[low],
        median=[middle],
        q3=[high],
        lowerfence=[min(inside.min(initial=low), low)],
        upperfence=[max(inside.max(initial=high), high)],
        mean=[values.mean()],
        y=[place],
        orientation="h",
        boxmean=True,
        width=0.5,
        line={"color": color, "width": 1.6},
        fillcolor="rgba(127,127,127,0.08)",
        name=charts.safe(name),
        hoverinfo="x",
        meta=meta,
    )


def spots(shown: contents.Spots) -> charts.Chart:
    """Settings in a plane; a color per algorithm, a symbol per model."""
    legend: dict[str, charts.Entry] = {}
    panels = []
    for panel in shown.panels:
        found: dict[str, list[contents.Spot]] = {}
        for spot in panel.marks:
            found.setdefault(f"{spot.algorithm} · {spot.model}", []).append(spot)
        traces = []
        for key, kind in found.items():
            first, number = kind[0], kind[0].color
            look = (drawing.color(number), charts.symbol(first.model))
            hollow = drawing.is_hollow(number)
            entry = charts.Entry(key, key, first.algorithm, *look, hollow)
            traces.append(_spots(kind, legend.setdefault(key, entry)))
        figure = charts.figure(traces, _plane(shown))
        panels.append(charts.Panel(panel.title, figure))
    return charts.Chart(tuple(panels), tuple(legend.values()))


def _plane(shown: contents.Spots) -> dict[str, Any]:
    """Axes of a panel."""
    x: dict[str, Any] = {"title": {"text": shown.xlabel.partition(" (")[0]}}
    y: dict[str, Any] = {"title": {"text": shown.ylabel}}
    if len(shown.panels) > 1:
        values = np.array([(s.x, s.y, s.x_std, s.y_std) for s in shown.spots])
        for axis, k in ((x, 0), (y, 1)):
            ends = values[:, k] - values[:, k + 2], values[:, k] + values[:, k + 2]
            axis["range"] = charts.span(ends)
    return {"xaxis": x, "yaxis": y, "height": charts.height(len(shown.panels))}


def _spots(found: list[contents.Spot], entry: charts.Entry) -> Any:
    """Settings of one algorithm and model."""
    texts = [
        f"<b>{charts.safe(f'{s.setting} · {s.model}')}</b>"
        f"<br>accuracy {s.y:.4f} ± {s.y_std:.4f}"
        f"<br>variance {s.x:.4g} ± {s.x_std:.2g}"
        for s in found
    ]
    bars = {"type": "data", "thickness": 1, "width": 3}
    return go.Scatter(
        x=[s.x for s in found],
        y=[s.y for s in found],
        error_x=bars | {"array": [s.x_std for s in found]},
        error_y=bars | {"array": [s.y_std for s in found]},
        mode="markers",
        marker=entry.marker(entry.dash, 9),
        text=texts,
        hovertemplate="%{text}<extra></extra>",
        meta={"key": entry.key, "method": entry.method},
    )


def _short(name: str) -> str:
    """Returns a name that fits above its box; the legend has all of it."""
    cut = _MAX_LETTERS - 1
    return name if len(name) <= _MAX_LETTERS else f"{name[:cut]}…"

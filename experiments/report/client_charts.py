"""Charts of single clients, and of fairness between them."""

from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from experiments.figures import clients, contents, drawing
from experiments.report import charts

__all__ = ["MAX_POINTS", "boxes", "has_points", "spots"]

_MAX_LETTERS = 38  # that fit on a phone
MAX_POINTS = 3000
"""Of all boxes of a figure; more make a page slow."""


def boxes(shown: contents.Boxes) -> charts.Chart:
    """Distributions over clients, one above the other.

    Args:
      shown: the values.

    Returns:
      One drawing; points are drawn where there are not too many.
    """
    traces: list[Any] = []
    legend = []
    values = np.concatenate([box.values for box in shown.boxes])
    finite = values[np.isfinite(values)]
    left = float(finite.min()) if len(finite) else 0.0
    heights = clients.jitter(shown)
    for k, (box, height) in enumerate(zip(shown.boxes, heights, strict=True)):
        name = f"{box.setting} · {box.model}"
        color = drawing.color(box.color)
        legend.append(charts.Entry(name, name, box.algorithm, color, "box"))
        meta = {"key": name, "method": box.algorithm}
        if has_points(shown):
            traces.append(_points(box, k + height, name, color, meta))
        traces.append(_quartiles(box, k, name, color, meta))
        traces.append(
            go.Scatter(
                x=[left],
                y=[k - 0.43],
                text=[charts.safe(name)],
                mode="text",
                textposition="middle right",
                hoverinfo="skip",
                cliponaxis=False,
                meta=meta
                | {"short": charts.safe(_short(f"{box.model} · {box.setting}"))},
            )
        )
    layout = {
        "xaxis": {"title": {"text": charts.safe(shown.xlabel.partition(" × ")[0])}},
        "yaxis": {
            "range": [len(shown.boxes) - 0.55, -0.7],
            "showticklabels": False,
            "showgrid": False,
            "zeroline": False,
        },
        "height": 90 + 74 * len(shown.boxes),
        "margin": {"l": 12},
    }
    return charts.Chart(
        (charts.Panel("", charts.figure(traces, layout)),), tuple(legend)
    )


def has_points(shown: contents.Boxes) -> bool:
    """Whether every client is a point."""
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
    """The box of matplotlib's figure: quartiles, whiskers and mean."""
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
    kinds = dict.fromkeys((s.algorithm, s.model, s.color) for s in shown.spots)
    traces, legend = [], []
    for algorithm, model, number in kinds:
        found = [s for s in shown.spots if (s.algorithm, s.model) == (algorithm, model)]
        key = f"{algorithm} · {model}"
        color = drawing.color(number)
        symbol = charts.symbol(model)
        legend.append(charts.Entry(key, key, algorithm, color, symbol))
        texts = [
            f"<b>{charts.safe(f'{s.setting} · {s.model}')}</b>"
            f"<br>accuracy {s.y:.4f} ± {s.y_std:.4f}"
            f"<br>variance {s.x:.4g} ± {s.x_std:.2g}"
            for s in found
        ]
        bars = {"type": "data", "thickness": 1, "width": 3}
        trace = go.Scatter(
            x=[s.x for s in found],
            y=[s.y for s in found],
            error_x=bars | {"array": [s.x_std for s in found]},
            error_y=bars | {"array": [s.y_std for s in found]},
            mode="markers",
            marker={"color": color, "symbol": symbol, "size": 9},
            text=texts,
            hovertemplate="%{text}<extra></extra>",
            meta={"key": key, "method": algorithm},
        )
        traces.append(trace)
    layout = {
        "xaxis": {"title": {"text": shown.xlabel.partition(" (")[0]}},
        "yaxis": {"title": {"text": shown.ylabel}},
    }
    return charts.Chart(
        (charts.Panel("", charts.figure(traces, layout)),), tuple(legend)
    )


def _short(name: str) -> str:
    """A name that fits above its box; the legend has all of it."""
    cut = _MAX_LETTERS - 1
    return name if len(name) <= _MAX_LETTERS else f"{name[:cut]}…"

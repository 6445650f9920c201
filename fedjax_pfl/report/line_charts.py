"""Charts of lines."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import plotly.graph_objects as go

from fedjax_pfl.figures import contents, drawing
from fedjax_pfl.report import charts

__all__ = ["lines"]

_MAX_MARKED = 40  # points of a line
_MAX_ROUNDS = 10  # that all have a tick; of more, plotly chooses whole numbers itself


def lines(shown: contents.Lines) -> charts.Chart:
    """Lines with bands or, of a swept field, bars.

    Args:
      shown: what to draw.

    Returns:
      One drawing per panel, all with one scale.
    """
    legend: dict[str, charts.Entry] = {}
    panels = []
    for panel in shown.panels:
        traces: list[Any] = []
        for line in panel.marks:
            entry = _entry(line)
            legend.setdefault(entry.key, entry)
            meta = {"key": entry.key, "method": line.algorithm}
            if shown.spread and not (shown.bars or line.is_level):
                traces += _filled(line, entry.color, meta)
            traces.append(_line(shown, line, entry, meta))
        figure = charts.figure(traces, _layout(shown, panel))
        panels.append(charts.Panel(panel.title, figure))
    return charts.Chart(tuple(panels), tuple(legend.values()))


def _layout(shown: contents.Lines, panel: contents.Panel[contents.Line]) -> Any:
    """Axes of a panel."""
    x: dict[str, Any] = {"title": {"text": charts.safe(shown.xlabel)}}
    y: dict[str, Any] = {"title": {"text": charts.safe(shown.ylabel)}}
    last = max((line.x[-1] for line in panel.marks if len(line.x)), default=0)
    if shown.xlabel == "round" and last < _MAX_ROUNDS:
        x["dtick"] = 1
    if shown.log_x:
        x["type"] = "log"
        x |= _ticks(np.unique(np.concatenate([line.x for line in panel.marks])))
    if shown.log_y:
        y |= {"type": "log", "exponentformat": "power"}
    if len(shown.panels) > 1:
        every = [line for panel in shown.panels for line in panel.marks]
        values = [v for line in every for v in (line.y, line.low, line.high)]
        y["range"] = charts.span(values, is_log=shown.log_y)
    return {"xaxis": x, "yaxis": y, "height": charts.height(len(shown.panels))}


def _entry(line: contents.Line) -> charts.Entry:
    """Returns the legend's button of a line."""
    name = f"{line.setting} · {line.model}" if line.model else line.setting
    hollow = bool(line.algorithm) and drawing.is_hollow(line.color)
    return charts.Entry(name, name, line.algorithm, *drawing.style(line), hollow)


def _filled(line: contents.Line, color: str, meta: dict[str, str]) -> Iterator[Any]:
    """The band around a line, where it is finite."""
    good = np.isfinite(line.low) & np.isfinite(line.high)
    if good.sum() < 2:
        return
    x, low, high = line.x[good], line.low[good], line.high[good]
    yield go.Scatter(
        x=np.concatenate([x, x[::-1]]).tolist(),
        y=np.concatenate([high, low[::-1]]).tolist(),
        fill="toself",
        fillcolor=charts.band(color),
        line={"width": 0},
        mode="lines",
        hoverinfo="skip",
        meta=meta,
    )


def _line(
    shown: contents.Lines,
    line: contents.Line,
    entry: charts.Entry,
    meta: dict[str, str],
) -> Any:
    """Returns the line itself; its points say what they are."""
    is_short = len(line.x) <= _MAX_MARKED and not line.is_level
    mark = entry.is_hollow or (is_short and bool(line.algorithm))
    template = (
        f"<b>{charts.safe(entry.name)}</b>"
        f"<br>{charts.safe(shown.xlabel)} %{{x}}<br>%{{y:.4f}}%{{customdata}}"
    )
    spread = None
    if shown.bars and not line.is_level and shown.spread:
        spread = {"type": "data", "array": (line.high - line.y).tolist()}
    return go.Scatter(
        x=line.x.tolist(),
        y=line.y.tolist(),
        customdata=_around(shown, line),
        error_y=spread,
        mode="lines+markers" if mark else "lines",
        line={"color": entry.color, "dash": entry.dash},
        marker=entry.marker(charts.symbol(line.model) if line.model else "circle", 6),
        hovertemplate=f"{template}<extra></extra>",
        meta=meta,
    )


def _around(shown: contents.Lines, line: contents.Line) -> list[str]:
    """Returns the text of the band around the points of a line."""
    has_band = np.isfinite(line.low) & bool(shown.spread and not line.is_level)
    return [
        f"<br>{shown.around}: {low:.4g} to {high:.4g}" if has else ""
        for has, low, high in zip(has_band, line.low, line.high, strict=True)
    ]


def _ticks(values: np.ndarray) -> dict[str, Any]:
    """Ticks at the values of a swept field, where there are few."""
    if len(values) > 10:
        return {}
    return {"tickvals": values.tolist(), "ticktext": [f"{v:g}" for v in values]}

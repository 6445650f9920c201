"""Charts of lines."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import plotly.graph_objects as go

from experiments.figures import contents, drawing
from experiments.report import charts

__all__ = ["lines"]

_DASHES = {"personal": "solid", "global": "dash", "": "solid"}
_OTHER_DASH = "dot"
_GRAY = "#7F7F7F"
_MAX_MARKED = 40  # points of a line
_MAX_ROUNDS = 10  # that all have a tick; of more, plotly chooses whole numbers itself


def lines(shown: contents.Lines, *, bars: bool = False) -> charts.Chart:
    """Lines with bands or, of a swept field, bars.

    Args:
      shown: what to draw.
      bars: whether there are bars at points, not bands.

    Returns:
      One drawing per panel, all with one scale.
    """
    legend: dict[str, charts.Entry] = {}
    panels = []
    for panel in shown.panels:
        traces: list[Any] = []
        for line in panel.lines:
            entry = _entry(line, bars)
            legend.setdefault(entry.key, entry)
            meta = {"key": entry.key, "method": line.algorithm}
            if not (bars or line.is_level) and shown.spread:
                traces += _filled(line, entry.color, meta)
            traces.append(_line(shown, line, entry, meta, bars))
        layout: dict[str, Any] = {
            "xaxis": {"title": {"text": charts.safe(shown.xlabel)}},
            "yaxis": {"title": {"text": charts.safe(shown.ylabel)}},
        }
        last = max((line.x[-1] for line in panel.lines if len(line.x)), default=0)
        if shown.xlabel == "round" and last < _MAX_ROUNDS:
            layout["xaxis"]["dtick"] = 1
        if shown.log_x:
            layout["xaxis"]["type"] = "log"
            x = [line.x for line in panel.lines]
            layout["xaxis"] |= _ticks(np.unique(np.concatenate(x)))
        if shown.log_y:
            layout["yaxis"] |= {"type": "log", "exponentformat": "power"}
        elif len(shown.panels) > 1:
            layout["yaxis"]["range"] = _range(shown)
        panels.append(charts.Panel(panel.title, charts.figure(traces, layout)))
    return charts.Chart(tuple(panels), tuple(legend.values()))


def _entry(line: contents.Line, bars: bool) -> charts.Entry:
    """The legend's button of a line; panels with bars say their models themselves."""
    has_model = line.model and not bars
    name = f"{line.setting} · {line.model}" if has_model else line.setting
    if bars:
        dash = "dash" if line.is_level else "solid"
        return charts.Entry(name, name, line.algorithm, drawing.color(line.color), dash)
    if not line.algorithm:
        return charts.Entry(name, name, "", _GRAY, ("dash", "dot")[line.color % 2])
    dash = _DASHES.get(line.model, _OTHER_DASH)
    return charts.Entry(name, name, line.algorithm, drawing.color(line.color), dash)


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
    bars: bool,
) -> Any:
    """The line itself; its points say what they are."""
    mark = len(line.x) <= _MAX_MARKED and bool(line.algorithm) and not line.is_level
    template = (
        f"<b>{charts.safe(entry.name)}</b>"
        f"<br>{charts.safe(shown.xlabel)} %{{x}}<br>%{{y:.4f}}%{{customdata}}"
    )
    spread = None
    if bars and not line.is_level and shown.spread:
        spread = {"type": "data", "array": (line.high - line.y).tolist()}
    return go.Scatter(
        x=line.x.tolist(),
        y=line.y.tolist(),
        customdata=_around(shown, line),
        error_y=spread,
        mode="lines+markers" if mark else "lines",
        line={"color": entry.color, "dash": "dash" if line.is_level else entry.dash},
        marker={"size": 6, "symbol": charts.symbol(line.model)}
        if line.model
        else {"size": 6},
        hovertemplate=f"{template}<extra></extra>",
        meta=meta,
    )


def _around(shown: contents.Lines, line: contents.Line) -> list[str]:
    """What the points of a line say of the band."""
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


def _range(shown: contents.Lines) -> list[float] | None:
    """One scale for all panels."""
    lines = [line for panel in shown.panels for line in panel.lines]
    values = np.concatenate([v for x in lines for v in (x.y, x.low, x.high)])
    values = values[np.isfinite(values)]
    if not len(values):
        return None
    margin = 0.05 * (values.max() - values.min()) or 0.5
    return [float(values.min() - margin), float(values.max() + margin)]

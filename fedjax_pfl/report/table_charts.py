"""Charts of colored tables, and of who holds which data."""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go

from fedjax_pfl.figures import contents, drawing, heat_maps, partitions
from fedjax_pfl.report import charts

__all__ = ["heats", "partition"]

_MAX_LABELED = 12  # columns whose numbers can be read
_MAX_TICKS = 30
_MAX_NUMBERED = 10  # clients that all have a tick
_MAX_CLIENTS = 2000  # whose classes a page can hold


def heats(shown: contents.Heats) -> charts.Chart:
    """Colored tables.

    Args:
      shown: the tables.

    Returns:
      One drawing per table.
    """
    panels = []
    for panel in shown.panels:
        alone = dataclasses.replace(shown, panels=(panel,))
        low, high = heat_maps.limits(shown if shown.is_one_scale else alone)
        panels.append(charts.Panel(panel.title, _heat(shown, panel, low, high)))
    return charts.Chart(tuple(panels))


def _heat(
    shown: contents.Heats, panel: contents.Heat, low: float, high: float
) -> dict[str, Any]:
    """One colored table."""
    columns = list(range(len(panel.columns)))
    rows = list(range(len(panel.rows)))
    x, y = (charts.safe(n.rpartition(".")[2]) for n in (shown.xlabel, shown.ylabel))
    names = [
        [f"{x} {charts.safe(c)}<br>{y} {charts.safe(r)}" for c in panel.columns]
        for r in panel.rows
    ]
    trace = go.Heatmap(
        z=[
            [v if np.isfinite(v) else None for v in row]
            for row in panel.values.tolist()
        ],
        x=columns,
        y=rows,
        customdata=names,
        zmin=low,
        zmax=high,
        colorscale="Viridis",
        xgap=1 if len(columns) <= _MAX_TICKS else 0,
        ygap=1 if len(rows) <= _MAX_TICKS else 0,
        colorbar={"thickness": 10, "outlinewidth": 0},
        hovertemplate="%{customdata}<br><b>%{z:.4f}</b><extra></extra>",
        meta={"key": panel.title, "method": panel.algorithm},
    )
    layout: dict[str, Any] = {
        "xaxis": {"title": {"text": x}} | _named(panel.columns),
        "yaxis": {"title": {"text": y}} | _named(panel.rows),
        "height": 130 + max(150, min(26 * len(rows), 420)),
        "shapes": [*_edges(panel.edges, len(columns))],
    }
    layout["yaxis"]["range"] = [len(rows) - 0.5, -0.5]
    traces = [trace]
    if shown.labeled and len(columns) <= _MAX_LABELED:
        traces.append(_numbers(panel, low, high))
    return charts.figure(traces, layout)


def _numbers(panel: contents.Heat, low: float, high: float) -> Any:
    """Returns the numbers in the fields."""
    rows, columns = np.nonzero(np.isfinite(panel.values))
    values = panel.values[rows, columns].tolist()
    return go.Scatter(
        x=columns.tolist(),
        y=rows.tolist(),
        text=[heat_maps.number(value, low, high) for value in values],
        mode="text",
        textfont={"color": [heat_maps.ink(value, low, high) for value in values]},
        hoverinfo="skip",
        meta={"key": panel.title, "method": panel.algorithm},
    )


def _named(names: Sequence[str]) -> dict[str, Any]:
    """Returns an axis with names at whole numbers, as many as fit."""
    step = -(-len(names) // _MAX_TICKS)
    places = list(range(0, len(names), step))
    return {
        "tickvals": places,
        "ticktext": [charts.safe(names[k]) for k in places],
        "showgrid": False,
        "zeroline": False,
    }


def _edges(edges: Sequence[float], size: int) -> Iterator[dict[str, Any]]:
    """Lines between clusters."""
    line = {"color": "white", "width": 1}
    for edge in edges:
        along = {"type": "line", "line": line}
        yield along | {"x0": edge, "x1": edge, "y0": -0.5, "y1": size - 0.5}
        yield along | {"x0": -0.5, "x1": size - 0.5, "y0": edge, "y1": edge}


def partition(several: Sequence[partitions.Holdings]) -> charts.Chart:
    """Draws who holds which training data, as `partitions.draw` does.

    Args:
      several: federations; where there is one, its title is not repeated.

    Returns:
      Of each, a drawing of sizes and, where there are classes, one of their shares, of
      the first 2,000 clients.
    """
    panels = []
    for holdings in several:
        sizes, counts = holdings.sizes, holdings.label_counts
        is_small = len(sizes) <= partitions.MAX_BARS
        panels.append(_bars(sizes) if is_small else _histogram(sizes))
        if counts is not None:
            panels.append(_classes(counts[:_MAX_CLIENTS], len(counts)))
        if len(several) > 1:
            made = 1 if counts is None else 2
            panels[-made:] = [
                dataclasses.replace(panel, title=f"{holdings.title}: {panel.title}")
                for panel in panels[-made:]
            ]
    return charts.Chart(tuple(panels))


def _bars(sizes: np.ndarray) -> charts.Panel:
    """One bar per client."""
    trace = go.Bar(
        x=list(range(len(sizes))),
        y=sizes.tolist(),
        marker={"color": drawing.color(0)},
        hovertemplate="client %{x}<br><b>%{y:,} examples</b><extra></extra>",
    )
    layout: dict[str, Any] = {
        "xaxis": {"title": {"text": "client"}},
        "yaxis": {"title": {"text": "training examples"}},
    }
    if len(sizes) <= _MAX_NUMBERED:
        layout["xaxis"]["dtick"] = 1
    return charts.Panel("examples of each client", charts.figure([trace], layout))


def _histogram(sizes: np.ndarray) -> charts.Panel:
    """Draws the histogram of examples per client."""
    edges, _ = partitions.bins(sizes)  # in equal steps on the page, whatever they are
    found, _ = np.histogram(sizes, bins=edges)
    ends = zip(np.ceil(edges[:-1]), np.floor(edges[1:]), strict=True)
    trace = go.Bar(
        x=(np.arange(len(found)) + 0.5).tolist(),
        y=found.tolist(),
        customdata=[f"{low:,.0f} to {high:,.0f} examples" for low, high in ends],
        marker={"color": drawing.color(0)},
        hovertemplate="%{customdata}<br><b>%{y:,} clients</b><extra></extra>",
    )
    layout: dict[str, Any] = {
        "xaxis": {"title": {"text": "training examples of a client"}},
        "yaxis": {"title": {"text": "clients"}},
        "bargap": 0.05,
    }
    shown = range(0, len(edges), 5)
    layout["xaxis"] |= {
        "tickvals": list(shown),
        "ticktext": [f"{np.ceil(edges[k]):,.0f}" for k in shown],
    }
    title = f"sizes of {len(sizes):,} clients"
    return charts.Panel(title, charts.figure([trace], layout))


def _classes(counts: np.ndarray, total: int) -> charts.Panel:
    """Share of every class among a client's examples."""
    shares = partitions.shares(counts)
    num_clients, num_classes = counts.shape
    trace = go.Heatmap(
        z=shares.T.round(4).tolist(),
        customdata=counts.T.tolist(),
        zmin=0,
        zmax=float(shares.max(initial=0)),
        colorscale="Viridis",
        colorbar={"thickness": 10, "outlinewidth": 0, "tickformat": ".0%"},
        hovertemplate="client %{x}, class %{y}<br><b>%{customdata:,} examples,"
        " %{z:.1%} of its own</b><extra></extra>",
    )
    layout = {
        "xaxis": {"title": {"text": "client"}, "showgrid": False}
        | ({"dtick": 1} if num_clients <= _MAX_NUMBERED else {}),
        "yaxis": {"title": {"text": "class"}, "range": [num_classes - 0.5, -0.5]}
        | _named([str(label) for label in range(num_classes)]),
    }
    title = "share of each class among a client's examples"
    if num_clients < total:
        title += f", first {num_clients:,} of {total:,} clients"
    return charts.Panel(title, charts.figure([trace], layout))

"""Clients one by one: distribution of a metric, and fairness."""

import itertools
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fedjax_pfl import results
from fedjax_pfl.figures import contents, drawing, multiples
from fedjax_pfl.results import metrics, selection, summaries

__all__ = [
    "accuracy_and_spread",
    "draw_boxes",
    "draw_spots",
    "values_of_clients",
]

_MARKERS = {"personal": "o", "global": "D", "fine-tuned": "s"}
_OTHER_MARKER = "X"
_MAX_DRAWN = 2000  # points that are lines in vector graphics; more are one image


def values_of_clients(result: results.Result) -> contents.Chart | None:
    """Returns every client's metric in the last round, one row per model."""
    # Settings, models and panels are the same as in the learning curves.
    clients, metric = selection.shown_clients(result)
    clients = clients[clients["value"].notna()]
    if clients.empty:
        return None
    methods = selection.contenders(result, clients)
    populations = " or ".join(clients["population"].unique())
    seeds = max(1, clients["seed"].nunique())  # a single seed may be missing
    low, high = clients["num_test"].min(), clients["num_test"].max()
    sizes = f"{low:,}" if low == high else f"{low:,} to {high:,}"
    label = (
        f"{metric} of each client, {populations} clients, {summaries.OWN_TEST} data"
        f" ({sizes} example{'s' if high > 1 else ''} of a client), last round"
        f" ({seeds} seed{'s' if seeds > 1 else ''})"
    )
    return multiples.in_panels(
        multiples.of_few_models(clients, methods),
        [*methods, "model"],
        selection.environments(result),
        lambda rows, _: rows,
        score=lambda rows: metrics.score(metric, rows["value"].mean()),
        kind=contents.Chart,
        xlabel=label,
    )


def draw_boxes(chart: contents.Chart) -> Figure:
    """Draws distributions over clients: quartiles, median and mean over the points."""
    figure, panels = drawing.panels(len(chart.panels))
    # Rows of settings and models, the same in all panels.
    names = dict.fromkeys((box.setting, box.model) for box in chart.marks)
    rows = {name: row for row, name in enumerate(names)}
    rng = np.random.default_rng(0)  # the same points in every drawing
    numbers = itertools.count()
    for axes, panel in zip(panels, chart.panels, strict=True):
        for box in panel.marks:
            heights = rng.uniform(-0.25, 0.25, len(box.points))
            row = rows[box.setting, box.model]
            _draw_box(axes, box, row, heights, next(numbers))
    labels = [drawing.text(f"{model}\n{setting}") for setting, model in rows]
    panels[0].set_yticks(range(len(rows)), labels)
    panels[0].set_ylim(len(rows) - 0.5, -0.5)
    drawing.name(panels, chart)
    if chart.left_out:
        figure.suptitle(chart.left_out, **drawing.TEXT)
    across, down = drawing.shape(panels)
    # Names stand at the left of the first panel only.
    longest = max(len(setting) for setting, _ in rows)
    width = drawing.WIDTH if across == 1 else drawing.WIDTH + 0.06 * longest
    figure.set_size_inches(width, 0.6 + down * (0.4 + 0.45 * len(rows)))
    return figure


def _draw_box(
    axes: Axes, box: contents.Mark, row: int, heights: np.ndarray, number: int
) -> None:
    """Draws points, and the box over them."""
    series, values = drawing.Series(box.label, box.algorithm), box.points["value"]
    # Many points as shapes would make the page slow, so they are one image without
    # texts.
    is_vector = len(heights) <= _MAX_DRAWN
    points = axes.scatter(
        values,
        row + heights,
        s=9,
        color=drawing.color(box.color),
        alpha=0.35,
        linewidths=0,
        rasterized=not is_vector,
    )
    if is_vector:
        texts = list(map(_text, box.points.itertuples()))
        series.name(points, texts=texts, number=number)
    else:
        series.name(points)
    drawn = axes.boxplot(
        values,
        positions=[row],
        orientation="horizontal",
        widths=0.6,
        showfliers=False,
        showmeans=True,
        manage_ticks=False,
        medianprops={"color": "black"},
        meanprops={"markerfacecolor": "black", "markeredgecolor": "black"},
    )
    series.name(*(artist for artists in drawn.values() for artist in artists))


def _text(client: Any) -> str:
    """Returns the text for the row of one client."""
    seed = "" if pd.isna(client.seed) else f", seed {client.seed:g}"
    examples = f"{client.num_train:,} training examples"
    return f"client {client.name}{seed}: {client.value:.4g}, {examples}"


def accuracy_and_spread(result: results.Result) -> contents.Chart | None:
    """Returns the mean of the headline against the variance of clients' losses."""
    accuracy, metric = selection.last_round(result)
    loss, _ = selection.last_round(result, "variance", "loss")
    if metric not in metrics.SHARES:
        return None
    has_validation = (result.table()["data"] == selection.VALIDATION).any()
    settings = selection.settings(result)
    on = [*settings, "model", "seed"]
    points = accuracy[[*on, "population", "value"]]
    points = points.merge(loss[[*on, "value"]], on=on, suffixes=("", "_variance"))
    points = points.dropna(subset=["value", "value_variance"])
    if points.empty:
        return None
    best = selection.best_settings(result).assign(is_best=True)
    points = points.merge(best, on=settings, how="left")
    # Without validation data all settings have colors.
    points["is_best"] = points["is_best"].notna() | (not has_validation)
    methods = selection.methods(result)
    names = selection.varying(points, methods)
    # Over all panels, so that a method has one color.
    colors = {name: k for k, name in enumerate(points["algorithm"].unique())}
    parts = selection.by_environment(points, selection.environments(result))
    panels = []
    for title, part in parts[: drawing.MAX_PANELS]:
        spots = [
            _spot(rows, selection.label(rows.iloc[0], names), colors)
            for rows in selection.groups(part, [*methods, "model"])
        ]
        panels.append(contents.Panel(title, tuple(spots)))
    return contents.Chart(
        panels=tuple(panels),
        xlabel="variance of the loss over clients (small is fair)",
        ylabel=f"mean {metric} over clients",
        data=summaries.OWN_TEST,
        left_out=drawing.left_out(0, len(parts)),
    )


def _spot(rows: pd.DataFrame, setting: str, colors: dict[str, int]) -> contents.Mark:
    """Averages one setting and model over seeds."""
    pair = rows[["value_variance", "value"]]
    (x, y), (x_std, y_std) = pair.mean(), pair.std().fillna(0)
    spot = {"x": x, "y": y, "x_std": x_std, "y_std": y_std}
    spot["is_best"] = bool(rows["is_best"].iloc[0])
    color = colors[rows["algorithm"].iloc[0]]
    return multiples.mark(rows, setting, color, pd.DataFrame([spot]))


def draw_spots(chart: contents.Chart) -> Figure:
    """Draws settings in a plane, one color per algorithm and one marker per model."""
    figure, panels = drawing.panels(len(chart.panels))
    for axes, panel in zip(panels, chart.panels, strict=True):
        # One artist per entry of the legend; settings that are not the best are gray.
        groups: dict[tuple[bool, str, str], list[contents.Mark]] = {}
        for mark in panel.marks:
            key = (mark.points["is_best"].item(), mark.algorithm, mark.model)
            groups.setdefault(key, []).append(mark)
        for (is_best, algorithm, model), marks in groups.items():
            name, color = f"{algorithm}, {model}", marks[0].color
            spots = pd.concat([m.points.assign(setting=m.setting) for m in marks])
            bars = axes.errorbar(
                spots["x"],
                spots["y"],
                xerr=spots["x_std"],
                yerr=spots["y_std"],
                fmt=_MARKERS.get(model, _OTHER_MARKER),
                color=drawing.color(color) if is_best else drawing.GRAY,
                alpha=1 if is_best else 0.5,
                zorder=2 + is_best,
                fillstyle="none" if drawing.is_hollow(color) else "full",
                markersize=4,
                elinewidth=0.7,
                label=name if is_best else "",
            )
            series = drawing.Series(name, algorithm)
            series.name(*bars.get_children())
            texts = [
                f"{s.setting}: {s.y:.4f} ± {s.y_std:.4f},"
                f" variance {s.x:.4g} ± {s.x_std:.2g}"
                for s in spots.itertuples()
            ]
            series.tell(axes, spots["x"], spots["y"], texts)
    drawing.name(panels, chart)
    title = (
        f"{chart.data} data, {chart.populations} clients, last round;"
        " one point per setting"
    )
    if not all(spot.points["is_best"].all() for spot in chart.marks):
        title += "\nin color the best on validation data, other settings gray"
    drawing.legend(figure, "\n".join(filter(None, (title, chart.left_out))))
    return figure

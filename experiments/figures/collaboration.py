"""Whom a method lets each client learn from, and how much of it is its own cluster."""

import numpy as np
from matplotlib.figure import Figure

from experiments.figures import contents, drawing
from fedjax_pfl import history, results

__all__ = [
    "between_clients",
    "draw_shares",
    "draw_weights",
    "own_cluster",
    "shares",
    "weights",
]

_MAX_PANELS = 4


def between_clients(result: results.Result) -> contents.Heats | None:
    """Weights between clients after the last round, ordered by cluster.

    One panel per static group that mixes messages, for its first grid point; a client's
    weight for itself is left out, because it hides the others.

    Args:
      result: what to show.

    Returns:
      Rows are receivers, columns senders; None if no method mixes messages.
    """
    groups = [g for g in result.groups if g.collaboration is not None]
    if not groups:
        return None
    by_cluster = any(g.cluster is not None for g in groups[:_MAX_PANELS])
    return contents.Heats(
        panels=tuple(map(_panel, groups[:_MAX_PANELS])),
        xlabel="sender",
        ylabel="receiver, by cluster" if by_cluster else "receiver",
        value="weight",
        total=len(groups),
        labeled=False,
        is_one_scale=False,
    )


def _panel(group: history.History) -> contents.Heat:
    """The weights of a group's first point."""
    assert group.collaboration is not None
    shown = group.collaboration[0].copy()
    order = np.arange(len(shown))
    edges = np.zeros(0)
    if group.cluster is not None:
        order = np.argsort(group.cluster[0], kind="stable")
        edges = np.flatnonzero(np.diff(group.cluster[0][order])) + 0.5
    np.fill_diagonal(shown, np.nan)
    title = group.config["algorithm"]
    if group.own_cluster is not None:
        share = _mean_share(group)[:, -1].mean()
        title += f"\n{share:.0%} in the own cluster"
    names = tuple(str(group.clients[k]) for k in order)
    return contents.Heat(
        title=title,
        algorithm=group.config["algorithm"],
        columns=names,
        rows=names,
        values=shown[np.ix_(order, order)],
        edges=tuple(edges.tolist()),
    )


def weights(result: results.Result) -> Figure | None:
    """Draws `between_clients`, where something is mixed."""
    shown = between_clients(result)
    return None if shown is None else draw_weights(shown)


def draw_weights(shown: contents.Heats) -> Figure:
    """Draws weights between clients, each panel with a scale of its own."""
    figure, panels = drawing.panels(len(shown.panels))
    width = drawing.WIDTH / max(2, len(shown.panels))
    figure.set_size_inches(drawing.WIDTH, 1.2 + width)
    for axes, panel in zip(panels, shown.panels, strict=True):
        axes.grid(visible=False)
        image = axes.imshow(panel.values, cmap="viridis")
        for edge in panel.edges:
            axes.axhline(edge, color="white", linewidth=0.8)
            axes.axvline(edge, color="white", linewidth=0.8)
        axes.set_title(panel.title, **drawing.TEXT)
        axes.set_xlabel(shown.xlabel, **drawing.TEXT)
        bar = figure.colorbar(image, ax=axes, orientation="horizontal", shrink=0.9)
        bar.ax.tick_params(labelsize=7)
        bar.set_label(shown.value, **drawing.TEXT)
    panels[0].set_ylabel(shown.ylabel, **drawing.TEXT)
    return figure


def shares(result: results.Result) -> contents.Lines | None:
    """Share of the collaboration weight inside the own cluster against rounds.

    The mean over clients that receive something, one line per setting, and what equal
    weights for all would give.

    Args:
      result: what to show.

    Returns:
      The lines; None where nothing is mixed or no clusters are known.
    """
    groups = [g for g in result.groups if g.own_cluster is not None]
    if not groups:
        return None
    found = [(group, setting) for group in groups for setting in _settings(group)]
    lines = []
    for k, (group, (name, points)) in enumerate(found[: drawing.MAX_LINES]):
        values = _mean_share(group)[points]
        ends = values.mean(0), values.min(0), values.max(0)
        algorithm = group.config["algorithm"]
        lines.append(_line(name, algorithm, k, group.rounds, *ends))
    cluster = groups[0].cluster
    assert cluster is not None
    chance = (cluster[0][:, None] == cluster[0]).sum() / len(cluster[0]) - 1
    chance /= max(1, len(cluster[0]) - 1)
    level = np.full(len(groups[0].rounds), chance)
    equal = _line(
        "equal weights", "", len(lines), groups[0].rounds, level, level, level
    )
    panel = contents.Panel("", (*lines, equal))
    return contents.Lines(
        panels=(panel,),
        xlabel="round",
        ylabel="share of weight in the own cluster",
        data="",
        spread="mean over clients, then over seeds; band from min to max",
        total=len(found),
    )


def _line(
    setting: str,
    algorithm: str,
    color: int,
    rounds: np.ndarray,
    y: np.ndarray,
    low: np.ndarray,
    high: np.ndarray,
) -> contents.Line:
    """A line that is about no model; without an algorithm it is a level."""
    return contents.Line(
        setting=setting,
        algorithm=algorithm,
        model="",
        population="",
        color=color,
        x=rounds,
        y=y,
        low=low,
        high=high,
        is_level=not algorithm,
    )


def own_cluster(result: results.Result) -> Figure | None:
    """Draws `shares`, where clusters are known."""
    shown = shares(result)
    return None if shown is None else draw_shares(shown)


def draw_shares(shown: contents.Lines) -> Figure:
    """Draws shares of weights against rounds."""
    figure, (axes,) = drawing.panels(1)
    for line in shown.panels[0].lines:
        color = drawing.color(line.color)
        if line.is_level:
            axes.axhline(line.y[0], color="gray", linestyle=":", label=line.setting)
            continue
        axes.plot(line.x, line.y, "o-", color=color, ms=3, label=line.setting)
        axes.fill_between(line.x, line.low, line.high, color=color, alpha=0.2, lw=0)
    axes.set_ylim(0, 1.02)
    axes.set_xlabel(shown.xlabel, fontsize=9)
    axes.set_ylabel(shown.ylabel, fontsize=9)
    drawing.legend(figure, axes, shown.spread, shown.total)
    return figure


def _mean_share(group: history.History) -> np.ndarray:
    """Mean `[G, E]` over the clients that receive anything; NaN if nobody does."""
    assert group.own_cluster is not None
    count = (~np.isnan(group.own_cluster)).sum(-1)
    total = np.nansum(group.own_cluster, axis=-1)
    return np.where(count > 0, total / np.maximum(count, 1), np.nan)


def _settings(group: history.History) -> list[tuple[str, list[int]]]:
    """Names of the settings of a group, with the points (seeds) of each."""
    found: dict[str, list[int]] = {}
    for number, point in enumerate(group.points):
        values = [
            f"{name.rpartition('.')[2]} = {value}"
            for name, value in point.items()
            if name != "seed"
        ]
        algorithm = group.config["algorithm"]
        name = f"{algorithm} ({', '.join(values)})" if values else algorithm
        found.setdefault(name, []).append(number)
    return list(found.items())

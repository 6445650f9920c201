"""Whom a method lets each client learn from, and how much of it is its own cluster."""

import numpy as np
from matplotlib.figure import Figure

from experiments.figures import drawing
from fedjax_pfl import history, results

__all__ = ["own_cluster", "weights"]

_MAX_PANELS = 4


def weights(result: results.Result) -> Figure | None:
    """Weights between clients after the last round, ordered by cluster.

    One panel per static group that mixes messages, for its first grid point; a client's
    weight for itself is left out, because it hides the others.

    Args:
      result: what to draw.

    Returns:
      The figure; None if no method of the result mixes messages.
    """
    groups = [g for g in result.groups if g.collaboration is not None][:_MAX_PANELS]
    if not groups:
        return None
    figure, panels = drawing.panels(len(groups))
    figure.set_size_inches(drawing.WIDTH, 1.2 + drawing.WIDTH / max(2, len(groups)))
    for axes, group in zip(panels, groups, strict=True):
        assert group.collaboration is not None
        shown = group.collaboration[0].copy()
        order = np.arange(len(shown))
        edges = np.zeros(0)
        if group.cluster is not None:
            order = np.argsort(group.cluster[0], kind="stable")
            edges = np.flatnonzero(np.diff(group.cluster[0][order])) + 0.5
        np.fill_diagonal(shown, np.nan)
        axes.grid(visible=False)
        image = axes.imshow(shown[np.ix_(order, order)], cmap="viridis")
        for edge in edges:
            axes.axhline(edge, color="white", linewidth=0.8)
            axes.axvline(edge, color="white", linewidth=0.8)
        title = group.config["algorithm"]
        if group.own_cluster is not None:
            share = _mean_share(group)[:, -1].mean()
            title += f"\n{share:.0%} in the own cluster"
        axes.set_title(title, **drawing.TEXT)
        axes.set_xlabel("sender", **drawing.TEXT)
        bar = figure.colorbar(image, ax=axes, orientation="horizontal", shrink=0.9)
        bar.ax.tick_params(labelsize=7)
        bar.set_label("weight", **drawing.TEXT)
    by_cluster = any(group.cluster is not None for group in groups)
    panels[0].set_ylabel(
        "receiver, by cluster" if by_cluster else "receiver", **drawing.TEXT
    )
    return figure


def own_cluster(result: results.Result) -> Figure | None:
    """Share of the collaboration weight inside the own cluster against rounds.

    The mean over clients that receive something, one line per setting; the dotted line
    is what equal weights for all would give.

    Args:
      result: what to draw.

    Returns:
      The figure; None where nothing is mixed or no clusters are known.
    """
    groups = [g for g in result.groups if g.own_cluster is not None]
    if not groups:
        return None
    figure, (axes,) = drawing.panels(1)
    lines = [(group, setting) for group in groups for setting in _settings(group)]
    for k, (group, (name, points)) in enumerate(lines[: drawing.MAX_LINES]):
        shares = _mean_share(group)[points]
        color = drawing.COLORS[k % len(drawing.COLORS)]
        axes.plot(group.rounds, shares.mean(0), "o-", color=color, ms=3, label=name)
        axes.fill_between(
            group.rounds, shares.min(0), shares.max(0), color=color, alpha=0.2, lw=0
        )
    cluster = groups[0].cluster
    assert cluster is not None
    chance = (cluster[0][:, None] == cluster[0]).sum() / len(cluster[0]) - 1
    chance /= max(1, len(cluster[0]) - 1)
    axes.axhline(chance, color="gray", linestyle=":", label="equal weights")
    axes.set_ylim(0, 1.02)
    axes.set_xlabel("round", fontsize=9)
    axes.set_ylabel("share of weight in the own cluster", fontsize=9)
    title = "mean over clients, then over seeds; band from min to max"
    drawing.legend(figure, axes, title, len(lines))
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

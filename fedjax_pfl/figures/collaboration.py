"""Figures of collaboration weights, and of the share from the own cluster."""

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd

from fedjax_pfl import results
from fedjax_pfl.figures import contents, multiples
from fedjax_pfl.results import history, metrics, selection

__all__ = ["between_clients", "shares"]

_MAX_PANELS = 4


def between_clients(result: results.Result) -> contents.Heats | None:
    """Returns weights between clients after the last round, ordered by cluster."""
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
    """Returns the weights of a group's first point."""
    assert group.collaboration is not None
    weights = group.collaboration[0].copy()
    # Clients of a cluster stand together, so that clusters are blocks on the diagonal.
    order = np.arange(len(weights))
    edges = np.zeros(0)
    if group.cluster is not None:
        order = np.argsort(group.cluster[0], kind="stable")
        edges = np.flatnonzero(np.diff(group.cluster[0][order])) + 0.5
    # A client's weight for itself would dominate the colors.
    np.fill_diagonal(weights, np.nan)
    title = group.config["algorithm"]
    if group.own_cluster is not None:
        share = metrics.mean(group.own_cluster, np.array(True))[:, -1].mean()
        title += f"\n{share:.0%} in the own cluster"
    called = group.names_of(0)
    names = [str(called[k]) for k in order]
    values = pd.DataFrame(weights[np.ix_(order, order)], names, names)
    return contents.Heat(title, group.config["algorithm"], values, tuple(edges))


def shares(result: results.Result) -> contents.Lines | None:
    """Returns the share of weight inside the own cluster against rounds."""
    rows = _share_rows(result)
    if rows.empty:
        return None
    methods, environments = selection.methods(result), selection.environments(result)
    chart = multiples.in_panels(
        rows,
        methods,
        environments,
        multiples.over_seeds,
        xlabel="round",
        ylabel="share of weight in the own cluster",
        spread="mean over clients, then over seeds; band from min to max",
    )
    # The level of equal weights depends on the sizes of the clusters in a panel.
    return multiples.extend(chart, rows, environments, _equal)


def _share_rows(result: results.Result) -> pd.DataFrame:
    """Returns mean shares, and the share of equal weights, by point and round."""
    points: Iterator[dict[Any, Any]]
    points = iter(result.points().drop(columns="status").to_dict("records"))
    parts = []
    for group in result.groups:
        heads = list(itertools.islice(points, len(group.points)))
        if group.own_cluster is None or group.cluster is None:
            continue
        means = metrics.mean(
            group.own_cluster, np.array(True)
        )  # of receivers, `[G, E]`
        for point, share, cluster in zip(heads, means, group.cluster, strict=True):
            peers = (cluster[:, None] == cluster).sum() / len(cluster) - 1
            equal = float(peers / max(1, len(cluster) - 1))  # all others weigh the same
            rows = pd.DataFrame({"round": group.rounds, "value": share})
            parts.append(rows.assign(**point, equal=equal))
    if not parts:
        return pd.DataFrame()
    return pd.concat(parts, ignore_index=True).assign(model="", population="")


def _equal(rows: pd.DataFrame) -> list[contents.Mark]:
    """Computes the level of equal weights."""
    rows = rows.assign(algorithm="", value=rows["equal"], is_level=True)
    points = multiples.over_seeds(rows, 1)
    return [multiples.mark(rows, "equal weights", 1, points)]

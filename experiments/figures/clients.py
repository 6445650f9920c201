"""Clients one by one: distribution of a metric, fairness, and who holds which data."""

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from experiments.figures import drawing, partitions, selection
from fedjax_pfl import results, summaries

__all__ = ["distribution", "fairness", "partition"]


def distribution(result: results.Result) -> Figure | None:
    """Every client's metric in the last round, one row of points per model.

    The box spans the quartiles over clients and seeds, the line in it is the median and
    the triangle the mean. Settings are those of the learning curves.

    Args:
      result: what to draw.

    Returns:
      The figure; None if every training diverged.
    """
    clients, metric = selection.shown_clients(result)
    clients = clients[clients["value"].notna()]
    if clients.empty:
        return None
    keys = selection.settings(result)
    names = selection.varying(clients, keys)
    shown = list(selection.groups(clients, [*keys, "model"]))[: drawing.MAX_LINES]
    labels = [f"{r['model'].iloc[0]}\n{_name(r, names)}" for r in shown]
    figure, (axes,) = drawing.panels(1)
    figure.set_size_inches(drawing.WIDTH, 1.0 + 0.45 * len(shown))
    values = [rows["value"].to_numpy() for rows in shown]
    rng = np.random.default_rng(0)  # of the jitter alone
    for k, found in enumerate(values):
        height = k + rng.uniform(-0.25, 0.25, len(found))
        color = drawing.COLORS[k % len(drawing.COLORS)]
        axes.plot(found, height, ".", color=color, alpha=0.35, markersize=4)
    axes.boxplot(
        values,
        positions=range(len(values)),
        orientation="horizontal",
        widths=0.6,
        showfliers=False,
        showmeans=True,
        medianprops={"color": "black"},
        meanprops={"markerfacecolor": "black", "markeredgecolor": "black"},
    )
    axes.set_yticks(range(len(labels)), labels, **drawing.TEXT)
    axes.invert_yaxis()
    first = clients.iloc[0]
    seeds = clients["seed"].nunique()
    axes.set_xlabel(
        f"{metric} of each client × {first['population']} × {summaries.OWN_TEST},"
        f" last round ({seeds} seed{'s' if seeds > 1 else ''})",
        fontsize=9,
    )
    return figure


def fairness(result: results.Result) -> Figure | None:
    """Mean accuracy over clients against the variance of their losses, last round.

    Up and to the left is better; every setting of the result is a point, bars are
    standard deviations over seeds.

    Args:
      result: what to draw.

    Returns:
      The figure; None where there is no accuracy, or nothing finite.
    """
    table = result.table()
    is_last = (table["when"] == "last") & (table["data"] == summaries.OWN_TEST)
    table = table[is_last & table["model"].isin(selection.MODELS)]
    accuracy, metric = selection.reported(result, table)
    loss, _ = selection.reported(result, table, "loss")
    if metric != "accuracy":
        return None
    keys = [*selection.settings(result), "model"]
    on = [*keys, "seed"]
    points = accuracy.loc[accuracy["stat"] == "mean", [*on, "population", "value"]]
    spread = loss.loc[loss["stat"] == "variance", [*on, "value"]]
    points = points.merge(spread, on=on, suffixes=("", "_variance")).dropna(
        subset=["value", "value_variance"]
    )
    if points.empty:
        return None
    figure, (axes,) = drawing.panels(1)
    kinds = list(selection.groups(points, ["algorithm", "model"]))
    for k, kind in enumerate(kinds):
        means, errors = [], []
        for setting in selection.groups(kind, keys):
            pair = setting[["value_variance", "value"]]
            means.append(pair.mean())
            errors.append(pair.std().fillna(0))
        mean, error = pd.DataFrame(means), pd.DataFrame(errors)
        first = kind.iloc[0]
        axes.errorbar(
            mean["value_variance"],
            mean["value"],
            xerr=error["value_variance"],
            yerr=error["value"],
            fmt=drawing.MARKERS[k % len(drawing.MARKERS)],
            color=drawing.COLORS[k % len(drawing.COLORS)],
            markersize=5,
            elinewidth=0.7,
            label=f"{first['model']} × {first['algorithm']}",
        )
    population = points["population"].iloc[0]
    axes.set_xlabel("variance of the loss over clients (small is fair)", fontsize=9)
    axes.set_ylabel("mean accuracy over clients", fontsize=9)
    title = f"× {population} × {summaries.OWN_TEST}, last round; one point per setting"
    drawing.legend(figure, axes, title, len(kinds))
    return figure


def partition(result: results.Result) -> Figure:
    """Who holds which training data: the first federation of the result.

    Args:
      result: what to draw.

    Returns:
      The figure.
    """
    group = result.groups[0]
    counts = None if group.label_counts is None else group.label_counts[0]
    config = group.config
    title = f"{config.get('federation.dataset')}, {config.get('federation.partition')}"
    if "seed" in group.points[0]:
        title += f", seed {group.points[0]['seed']}"
    return partitions.draw(counts, group.num_train[0], title=title)


def _name(rows: pd.DataFrame, names: list[str]) -> str:
    """What one setting is called."""
    return selection.label(rows.iloc[0], names)

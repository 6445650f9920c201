"""Clients one by one: distribution of a metric, fairness, and who holds which data."""

import numpy as np
from matplotlib.figure import Figure

from experiments.figures import contents, drawing, lines, partitions, selection
from fedjax_pfl import history, results, summaries

__all__ = [
    "accuracy_and_spread",
    "distribution",
    "draw_boxes",
    "draw_spots",
    "fairness",
    "jitter",
    "partition",
    "partition_title",
    "values_of_clients",
]

_MAX_DRAWN = 2000  # points that are lines in vector graphics; more are one image


def values_of_clients(result: results.Result) -> contents.Boxes | None:
    """Every client's metric in the last round, one row per model.

    Settings, and models where there are too many, are those of the learning curves.

    Args:
      result: what to show.

    Returns:
      The rows; None if every training diverged.
    """
    clients, metric = selection.shown_clients(result)
    clients = clients[clients["value"].notna()]
    if clients.empty:
        return None
    keys = selection.settings(result)
    names = selection.varying(clients, keys)
    found = lines.at_most(clients, keys)
    colors: dict[str, int] = {}
    boxes = []
    for rows in found[: drawing.MAX_LINES]:
        setting = selection.label(rows.iloc[0], names)
        box = contents.Box(
            setting=setting,
            algorithm=rows["algorithm"].iloc[0],
            model=rows["model"].iloc[0],
            color=colors.setdefault(setting, len(colors)),
            values=rows["value"].to_numpy(),
            clients=rows["client"].to_numpy(),
            seeds=rows["seed"].to_numpy(),
            sizes=rows["num_train"].to_numpy(),
        )
        boxes.append(box)
    first = clients.iloc[0]
    seeds = max(1, clients["seed"].nunique())  # of a single one it may not be known
    label = (
        f"{metric} of each client × {first['population']} × {summaries.OWN_TEST},"
        f" last round ({seeds} seed{'s' if seeds > 1 else ''})"
    )
    return contents.Boxes(tuple(boxes), xlabel=label, total=len(found))


def jitter(boxes: contents.Boxes) -> list[np.ndarray]:
    """Heights of every box's points around 0, the same whenever they are drawn."""
    rng = np.random.default_rng(0)
    return [rng.uniform(-0.25, 0.25, len(box.values)) for box in boxes.boxes]


def distribution(result: results.Result) -> Figure | None:
    """Draws `values_of_clients`, where there are some."""
    shown = values_of_clients(result)
    return None if shown is None else draw_boxes(shown)


def draw_boxes(shown: contents.Boxes) -> Figure:
    """Draws distributions over clients.

    The box spans the quartiles over clients and seeds, the line in it is the median and
    the triangle the mean.

    Args:
      shown: the values.

    Returns:
      The figure.
    """
    figure, (axes,) = drawing.panels(1)
    count = len(shown.boxes)
    figure.set_size_inches(drawing.WIDTH, 1.0 + 0.45 * count)
    for k, (box, heights) in enumerate(zip(shown.boxes, jitter(shown), strict=True)):
        axes.plot(
            box.values,
            k + heights,
            ".",
            color=drawing.color(box.color),
            alpha=0.35,
            markersize=4,
            rasterized=len(heights) > _MAX_DRAWN,
        )
    axes.boxplot(
        [box.values for box in shown.boxes],
        positions=range(count),
        orientation="horizontal",
        widths=0.6,
        showfliers=False,
        showmeans=True,
        medianprops={"color": "black"},
        meanprops={"markerfacecolor": "black", "markeredgecolor": "black"},
    )
    labels = [f"{box.model}\n{box.setting}" for box in shown.boxes]
    axes.set_yticks(range(count), labels, **drawing.TEXT)
    axes.invert_yaxis()
    axes.set_xlabel(shown.xlabel, fontsize=9)
    return figure


def accuracy_and_spread(result: results.Result) -> contents.Spots | None:
    """Mean accuracy over clients against the variance of their losses, last round.

    Up and to the left is better; every setting of the result is a point.

    Args:
      result: what to show.

    Returns:
      The points, with standard deviations over seeds; None where there is no accuracy,
      or nothing finite.
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
    names = selection.varying(points, selection.settings(result))
    spots, colors = [], {}
    for rows in selection.groups(points, keys):
        first = rows.iloc[0]
        pair = rows[["value_variance", "value"]]
        (x, y), (x_std, y_std) = pair.mean(), pair.std().fillna(0)
        spot = contents.Spot(
            setting=selection.label(first, names),
            algorithm=first["algorithm"],
            model=first["model"],
            color=colors.setdefault(first["algorithm"], len(colors)),
            x=float(x),
            y=float(y),
            x_std=float(x_std),
            y_std=float(y_std),
        )
        spots.append(spot)
    return contents.Spots(
        spots=tuple(spots),
        xlabel="variance of the loss over clients (small is fair)",
        ylabel="mean accuracy over clients",
        population=points["population"].iloc[0],
        data=summaries.OWN_TEST,
    )


def fairness(result: results.Result) -> Figure | None:
    """Draws `accuracy_and_spread`, where there is something."""
    shown = accuracy_and_spread(result)
    return None if shown is None else draw_spots(shown)


def draw_spots(shown: contents.Spots) -> Figure:
    """Draws settings in a plane, one marker per algorithm and model.

    Args:
      shown: the settings; bars are standard deviations.

    Returns:
      The figure.
    """
    figure, (axes,) = drawing.panels(1)
    kinds = list(dict.fromkeys((s.algorithm, s.model) for s in shown.spots))
    for k, kind in enumerate(kinds):
        spots = [s for s in shown.spots if (s.algorithm, s.model) == kind]
        axes.errorbar(
            [s.x for s in spots],
            [s.y for s in spots],
            xerr=[s.x_std for s in spots],
            yerr=[s.y_std for s in spots],
            fmt=drawing.MARKERS[k % len(drawing.MARKERS)],
            color=drawing.color(k),
            markersize=5,
            elinewidth=0.7,
            label=f"{kind[1]} × {kind[0]}",
        )
    axes.set_xlabel(shown.xlabel, fontsize=9)
    axes.set_ylabel(shown.ylabel, fontsize=9)
    title = f"× {shown.population} × {shown.data}, last round; one point per setting"
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
    return partitions.draw(counts, group.num_train[0], title=partition_title(group))


def partition_title(group: history.History) -> str:
    """Data, partition and seed of a group's first federation."""
    config = group.config | group.points[0]
    names = [config.get("federation.dataset"), config.get("federation.partition")]
    if "seed" in config:
        names.append(f"seed {config['seed']}")
    return ", ".join(str(name) for name in names if name is not None)

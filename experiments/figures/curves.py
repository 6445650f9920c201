"""Learning curves, and a metric against a swept field.

Names in legends are model x population x data; bands and bars are over seeds.
"""

from collections.abc import Sequence
from typing import Any

import pandas as pd
from matplotlib.figure import Figure
from pandas.api.types import is_bool_dtype, is_numeric_dtype

from experiments.figures import drawing, selection
from fedjax_pfl import results, summaries

__all__ = ["learning_curves", "sweep", "training_loss"]

_DATA = summaries.OWN_TEST
_TRAINING = "own training"


def learning_curves(result: results.Result) -> Figure:
    """The mean over clients against rounds, one line per algorithm and model.

    Where that is too many lines, an algorithm's personal model stands for it.

    Of the settings of an algorithm's own fields, the one that is best on validation
    data in the last round is drawn, the first if there are no such data; all other
    swept fields are compared.

    Args:
      result: what to draw.

    Returns:
      The figure.
    """
    curves, metric = selection.shown_curves(result)
    return _draw(result, curves, f"mean {metric} over clients", _DATA)


def training_loss(result: results.Result) -> Figure | None:
    """The mean loss on clients' own training data against rounds, of all settings.

    Args:
      result: what to draw.

    Returns:
      The figure; None if nothing was evaluated on training data.
    """
    curves, _ = selection.reported(result, result.curves(), "loss")
    shown = (curves["data"] == _TRAINING) & curves["model"].isin(selection.MODELS)
    if not shown.any():
        return None
    figure = _draw(result, curves[shown], "mean training loss over clients", _TRAINING)
    figure.axes[0].set_yscale("log")
    return figure


def _draw(
    result: results.Result, curves: pd.DataFrame, ylabel: str, data: str
) -> Figure:
    """One line per setting and model, with a band over seeds."""
    figure, (axes,) = drawing.panels(1)
    lines = _lines(curves, selection.settings(result))
    names = selection.varying(curves, selection.settings(result))
    colors: dict[str, str] = {}
    for line in lines[: drawing.MAX_LINES]:
        first = line.iloc[0]
        algorithm, model = selection.label(first, names), first["model"]
        color = colors.setdefault(
            algorithm, drawing.COLORS[len(colors) % len(drawing.COLORS)]
        )
        over_seeds = line.groupby("round")["value"]
        mean, low, high = over_seeds.mean(), over_seeds.min(), over_seeds.max()
        axes.plot(
            mean.index,
            mean,
            drawing.DASHES.get(model, drawing.OTHER_DASH),
            color=color,
            label=" × ".join((model, first["population"], data, algorithm)),
        )
        axes.fill_between(mean.index, low, high, color=color, alpha=0.2, lw=0)
    axes.set_xlabel("round", fontsize=9)
    axes.set_ylabel(ylabel, fontsize=9)
    seeds = curves["seed"].nunique()
    title = (
        f"mean over {seeds} seeds, band from min to max" if seeds > 1 else "one seed"
    )
    drawing.legend(
        figure, axes, f"model × population × data × algorithm\n{title}", len(lines)
    )
    return figure


def _lines(curves: pd.DataFrame, settings: list[str]) -> list[pd.DataFrame]:
    """One line per setting and model; of too many only a setting's first model."""
    lines = list(selection.groups(curves, [*settings, "model"]))
    if len(lines) <= drawing.MAX_LINES:
        return lines
    order = list(selection.MODELS).index
    first = []
    for rows in selection.groups(curves, settings):
        model = min(rows["model"].unique(), key=order)
        first.append(rows[rows["model"] == model])
    return first


def sweep(result: results.Result) -> Figure | None:
    """The metric in the last round against the numeric field with most values.

    Algorithms without this field are horizontal lines.

    Args:
      result: what to draw.

    Returns:
      The figure, with one panel per model; None if no numeric field was swept.
    """
    table = result.table()
    table = table[(table["when"] == "last") & (table["stat"] == "mean")]
    table, metric = selection.reported(result, table)
    table = table[(table["data"] == _DATA) & table["model"].isin(selection.MODELS)]
    field = _swept_number(table, result.fields)
    if field is None:
        return None
    keys = [*selection.DESCRIPTION, *(f for f in result.fields if f != field)]
    names = selection.varying(table, keys)
    found = set(table.loc[table[field].notna(), "model"])
    models = [model for model in selection.MODELS if model in found]
    lines = list(selection.groups(table, keys))
    figure, panels = drawing.panels(len(models))
    values = table[field].dropna()
    for axes, model in zip(panels, models, strict=True):
        for k, everything in enumerate(lines[: drawing.MAX_LINES]):
            line = everything[everything["model"] == model]
            style: dict[str, Any] = {
                "color": drawing.COLORS[k % len(drawing.COLORS)],
                "label": selection.label(everything.iloc[0], names),
            }
            if everything[field].isna().all():
                where = line["value"].mean()
                axes.axhline(where, linestyle="--", **style)  # not drawn where NaN
                continue
            over_seeds = line.groupby(field)["value"]
            mean, spread = over_seeds.mean(), over_seeds.std().fillna(0)
            style |= {
                "marker": drawing.MARKERS[k % len(drawing.MARKERS)],
                "markersize": 4,
            }
            axes.errorbar(mean.index, mean, spread, capsize=3, **style)
        if values.min() > 0 and values.max() >= 10 * values.min():
            axes.set_xscale("log")
        population = table["population"].iloc[0]
        axes.set_title(f"{model}\n× {population} × {_DATA}", **drawing.TEXT)
    panels[len(panels) // 2].set_xlabel(field, fontsize=9)
    panels[0].set_ylabel(f"mean {metric}, last round", fontsize=9)
    seeds = table["seed"].nunique()
    title = "one seed"
    if seeds > 1:
        title = f"mean over clients, then mean ± std over {seeds} seeds"
    drawing.legend(figure, panels[0], title, len(lines))
    return figure


def _swept_number(table: pd.DataFrame, fields: Sequence[str]) -> str | None:
    """The numeric field with most values, the first of equals."""
    counts = {
        f: table[f].nunique()
        for f in fields
        if is_numeric_dtype(table[f]) and not is_bool_dtype(table[f])
    }
    best = max(counts, key=lambda f: counts[f], default=None)
    return best if best is not None and counts[best] > 1 else None

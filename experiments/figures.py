"""Figures of a result: learning curves, and a metric against a swept field.

They read results only, draw without pyplot and stay readable at 600 pixels. Names in
legends are model x population x data; bands and bars are over seeds.
"""

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from pandas.api.types import is_bool_dtype, is_numeric_dtype

from fedjax_pfl import results

__all__ = ["learning_curves", "save_all", "sweep"]

# Okabe and Ito's colors that can be told apart with any color vision, without yellow.
_COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_MARKERS = "osD^vPX"
_DASHES = {"personal": "-", "global": "--"}
_OTHER_DASH = ":"
_MODELS = ("personal", "global", "fine-tuned", "hybrid (validation)")
_DATA = "own test"
_MAX_LINES = 7  # as many as colors
_WIDTH, _HEIGHT, _LINE = 6.0, 3.2, 0.18  # inches; 600 pixels at 100 dots per inch
_STYLE = {"fontsize": 8}
_DESCRIPTION = ("algorithm", "dataset", "partition")


def learning_curves(result: results.Result) -> Figure:
    """The mean over clients against rounds, one line per algorithm and model.

    Of the settings of an algorithm's own fields, the one that is best on validation
    data in the last round is drawn, the first if there are no such data; all other
    swept fields are compared.

    Args:
      result: what to draw.

    Returns:
      The figure.
    """
    curves, metric = _reported(result, result.curves())
    tuned = [f for f in result.fields if f.startswith("algorithm.")]
    compared = [*_DESCRIPTION, *(f for f in result.fields if f not in tuned)]
    curves = _best_settings(curves, metric, tuned, compared)
    curves = curves[curves["data"] == _DATA]
    curves = curves[curves["model"].isin(_MODELS)]
    figure, (axes,) = _panels(1)
    settings = _groups(curves, [*compared, *tuned])
    lines = [line for rows in settings for line in _groups(rows, ["model"])]
    names = _varying(curves, [*compared, *tuned])
    colors: dict[str, str] = {}
    for line in lines[:_MAX_LINES]:
        first = line.iloc[0]
        algorithm, model = _label(first, names), first["model"]
        color = colors.setdefault(algorithm, _COLORS[len(colors) % len(_COLORS)])
        over_seeds = line.groupby("round")["value"]
        mean, low, high = over_seeds.mean(), over_seeds.min(), over_seeds.max()
        axes.plot(
            mean.index,
            mean,
            _DASHES.get(model, _OTHER_DASH),
            color=color,
            label=f"{model} × {first['population']} × {_DATA} × {algorithm}",
        )
        axes.fill_between(mean.index, low, high, color=color, alpha=0.2, lw=0)
    axes.set_xlabel("round", fontsize=9)
    axes.set_ylabel(f"mean {metric} over clients", fontsize=9)
    seeds = curves["seed"].nunique()
    title = (
        f"mean over {seeds} seeds, band from min to max" if seeds > 1 else "one seed"
    )
    _legend(figure, axes, f"model × population × data × algorithm\n{title}", len(lines))
    return figure


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
    table, metric = _reported(result, table)
    table = table[(table["data"] == _DATA) & table["model"].isin(_MODELS)]
    field = _swept_number(table, result.fields)
    if field is None:
        return None
    keys = [*_DESCRIPTION, *(f for f in result.fields if f != field)]
    names = _varying(table, keys)
    found = set(table.loc[table[field].notna(), "model"])
    models = [model for model in _MODELS if model in found]
    lines = list(_groups(table, keys))
    figure, panels = _panels(len(models))
    values = table[field].dropna()
    for axes, model in zip(panels, models, strict=True):
        for k, everything in enumerate(lines[:_MAX_LINES]):
            line = everything[everything["model"] == model]
            style: dict[str, Any] = {
                "color": _COLORS[k % len(_COLORS)],
                "label": _label(everything.iloc[0], names),
            }
            if everything[field].isna().all():
                where = line["value"].mean()
                axes.axhline(where, linestyle="--", **style)  # not drawn where NaN
                continue
            over_seeds = line.groupby(field)["value"]
            mean, spread = over_seeds.mean(), over_seeds.std().fillna(0)
            style |= {"marker": _MARKERS[k % len(_MARKERS)], "markersize": 4}
            axes.errorbar(mean.index, mean, spread, capsize=3, **style)
        if values.min() > 0 and values.max() >= 10 * values.min():
            axes.set_xscale("log")
        population = table["population"].iloc[0]
        axes.set_title(f"{model}\n× {population} × {_DATA}", **_STYLE)
    panels[len(panels) // 2].set_xlabel(field, fontsize=9)
    panels[0].set_ylabel(f"mean {metric}, last round", fontsize=9)
    seeds = table["seed"].nunique()
    title = "one seed"
    if seeds > 1:
        title = f"mean over clients, then mean ± std over {seeds} seeds"
    _legend(figure, panels[0], title, len(lines))
    return figure


def save_all(result: results.Result, directory: Path) -> list[Path]:
    """Draws everything that the result has, into `directory/figures`.

    Args:
      result: what to draw.
      directory: a result directory.

    Returns:
      The written files.
    """
    folder = directory / "figures"
    folder.mkdir()
    files = []
    for name, draw in (("learning_curves", learning_curves), ("sweep", sweep)):
        figure = draw(result)
        if figure is not None:
            files.append(folder / f"{name}.png")
            figure.savefig(files[-1], dpi=200)
    return files


def _reported(result: results.Result, rows: pd.DataFrame) -> tuple[pd.DataFrame, str]:
    """Rows of the reported metric and population, and the metric's name."""
    has_accuracy = (rows["metric"] == "accuracy").any()
    metric = "accuracy" if has_accuracy else "loss"
    attacked = any(group.malicious.any() for group in result.groups)
    population = "honest" if attacked else "all"
    chosen = (rows["metric"] == metric) & (rows["population"] == population)
    return rows[chosen], metric


def _groups(rows: pd.DataFrame, keys: Sequence[str]) -> Iterator[pd.DataFrame]:
    """Rows by equal keys, missing ones included, in order of appearance."""
    for _, group in rows.groupby(list(keys), sort=False, dropna=False):
        yield group


def _best_settings(
    curves: pd.DataFrame, metric: str, tuned: Sequence[str], compared: Sequence[str]
) -> pd.DataFrame:
    """Keeps, of every compared algorithm, the tuned setting that validates best."""
    if not tuned:
        return curves
    kept = []
    for candidates in _groups(curves, compared):
        scores = []
        for setting in _groups(candidates, tuned):
            last = setting[setting["round"] == setting["round"].max()]
            last = last[last["data"] == "own validation"]
            by_model = last.groupby("model")["value"].agg(
                lambda v: v.mean(skipna=False)
            )
            score = by_model.max() if metric == "accuracy" else -by_model.min()
            scores.append((-math.inf if np.isnan(score) else score, setting))
        kept.append(max(scores, key=lambda pair: pair[0])[1])
    return pd.concat(kept)


def _varying(rows: pd.DataFrame, names: Sequence[str]) -> list[str]:
    """Names whose values a label must show: swept fields and what else varies."""
    return [n for n in names if rows[n].nunique(dropna=False) > 1 or "." in n]


def _label(row: pd.Series, names: Sequence[str]) -> str:
    """For example `Flame (lam = 1, kappa = 2)`."""
    shown = []
    for name in names:
        value = None if name == "algorithm" else row[name]
        if not pd.isna(value):
            text = f"{value:g}" if isinstance(value, float) else str(value)
            shown.append(f"{name.rpartition('.')[2]} = {text}")
    return f"{row['algorithm']} ({', '.join(shown)})" if shown else row["algorithm"]


def _swept_number(table: pd.DataFrame, fields: Sequence[str]) -> str | None:
    """The numeric field with most values, the first of equals."""
    counts = {
        f: table[f].nunique()
        for f in fields
        if is_numeric_dtype(table[f]) and not is_bool_dtype(table[f])
    }
    best = max(counts, key=lambda f: counts[f], default=None)
    return best if best is not None and counts[best] > 1 else None


def _panels(count: int) -> tuple[Figure, list[Axes]]:
    """A figure with panels side by side and room for a legend below."""
    figure = Figure(layout="constrained")
    panels = figure.subplots(1, count, sharey=True, squeeze=False)[0]
    for axes in panels:
        axes.grid(alpha=0.3)
        axes.tick_params(labelsize=8)
    return figure, list(panels)


def _legend(figure: Figure, axes: Axes, title: str, count: int) -> None:
    """One legend below the panels, which keep their height."""
    handles, labels = axes.get_legend_handles_labels()
    if count > _MAX_LINES:
        title += f"\nthe first {_MAX_LINES} of {count} lines"
    columns = 1 if max(map(len, labels), default=0) > 35 else 2
    rows = math.ceil(len(labels) / columns) + len(title.splitlines())
    figure.set_size_inches(_WIDTH, _HEIGHT + _LINE * rows)
    figure.legend(
        handles,
        labels,
        loc="outside lower center",
        ncols=columns,
        title=title,
        title_fontsize=8,
        **_STYLE,
    )

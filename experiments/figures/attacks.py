"""Accuracy of honest clients under attacks: against their number, or as a table."""

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from experiments.figures import drawing, selection
from fedjax_pfl import results, summaries

__all__ = ["by_fraction", "table"]

_FRACTION = "federation.malicious_fraction"
_KINDS = ("attack", "federation.label_poisoning")
_NONE = "no attack"
_COLUMNS = 2


def _attacked(result: results.Result) -> tuple[pd.DataFrame, list[str]]:
    """Means over clients in the last round with a column `kind`, and the settings.

    Empty where there is no field that says how many are malicious.
    """
    if _FRACTION not in result.fields:
        return pd.DataFrame(), []
    rows = result.table()
    rows = rows[(rows["when"] == "last") & (rows["data"] == summaries.OWN_TEST)]
    rows = rows[(rows["stat"] == "mean") & rows["model"].isin(selection.MODELS)]
    rows, _ = selection.reported(result, rows, "accuracy")
    kind = pd.Series(None, rows.index, dtype=object)
    for name in _KINDS:
        kind = kind.fillna(rows[name]) if name in rows else kind
    kind = kind.where(kind.notna() & (rows[_FRACTION] > 0), _NONE)
    told = "algorithm.malicious_fraction"  # follows the fraction
    others = [f for f in result.fields if f not in (_FRACTION, *_KINDS, told)]
    return rows.assign(kind=kind), ["algorithm", *others]


def by_fraction(result: results.Result) -> Figure | None:
    """Accuracy against the fraction of malicious clients, one panel per attack.

    Args:
      result: what to draw.

    Returns:
      The figure; None unless several fractions meet several attacks.
    """
    rows, settings = _attacked(result)
    if rows.empty or rows[_FRACTION].nunique() < 3:
        return None
    kinds = [kind for kind in rows["kind"].unique() if kind != _NONE]
    if len(kinds) < 2:
        return None
    clean = rows[rows["kind"] == _NONE]
    count = -(-len(kinds) // _COLUMNS)
    figure = Figure(layout="constrained")
    grid = figure.subplots(count, _COLUMNS, sharex=True, sharey=True, squeeze=False)
    names = selection.varying(rows, settings)
    for axes, kind in zip(grid.flat, kinds, strict=False):
        _panel(axes, pd.concat([clean, rows[rows["kind"] == kind]]), settings, names)
        axes.set_title(kind, **drawing.TEXT)
    for axes in grid[-1]:
        axes.set_xlabel("fraction of malicious clients", fontsize=8)
    for axes in grid[:, 0]:
        axes.set_ylabel("mean accuracy", fontsize=8)
    _, labels = grid[0, 0].get_legend_handles_labels()
    title = f"model × honest × {summaries.OWN_TEST} × algorithm, last round"
    drawing.legend(figure, grid[0, 0], title, min(len(labels), drawing.MAX_LINES))
    width, height = figure.get_size_inches()
    figure.set_size_inches(width, height + 2.2 * (count - 1))
    return figure


def _panel(axes, rows: pd.DataFrame, settings: list[str], names: list[str]) -> None:
    """Lines of one attack: a color per setting, a dash per model."""
    axes.grid(alpha=0.3)
    axes.tick_params(labelsize=8)
    for k, setting in enumerate(selection.groups(rows, settings)):
        for line in selection.groups(setting, ["model"]):
            model = line["model"].iloc[0]
            over_seeds = line.groupby(_FRACTION)["value"]
            mean = over_seeds.mean()
            axes.plot(
                mean.index,
                mean,
                drawing.DASHES.get(model, drawing.OTHER_DASH),
                marker=drawing.MARKERS[k % len(drawing.MARKERS)],
                markersize=3,
                color=drawing.COLORS[k % len(drawing.COLORS)],
                label=f"{model} × {selection.label(line.iloc[0], names)}",
            )


def table(result: results.Result) -> Figure | None:
    """Mean accuracies of all settings under every attack, as a colored table.

    Args:
      result: what to draw.

    Returns:
      The figure; None unless there are several attacks, all with one fraction.
    """
    rows, settings = _attacked(result)
    if rows.empty or rows.loc[rows[_FRACTION] > 0, _FRACTION].nunique() != 1:
        return None
    kinds = list(rows["kind"].unique())
    if len(kinds) < 3:
        return None
    names = selection.varying(rows, settings)
    labels, values = [], []
    for line in selection.groups(rows, [*settings, "model"]):
        first = line.iloc[0]
        labels.append(f"{first['model']} × {selection.label(first, names)}")
        values.append(line.groupby("kind")["value"].mean().reindex(kinds))
    shown = 100 * np.array(values)
    figure = Figure(layout="constrained")
    figure.set_size_inches(2 + 0.5 * len(kinds) + 2.5, 1 + 0.2 * len(labels))
    axes = figure.subplots()
    axes.imshow(shown, aspect="auto", cmap="viridis", vmin=0, vmax=100)
    axes.set_yticks(range(len(labels)), labels, fontsize=7)
    axes.set_xticks(range(len(kinds)), kinds, fontsize=7, rotation=45, ha="right")
    for i, j in np.ndindex(shown.shape):
        if np.isfinite(shown[i, j]):
            color = "black" if shown[i, j] > 60 else "white"
            axes.text(
                j,
                i,
                f"{shown[i, j]:.0f}",
                ha="center",
                va="center",
                color=color,
                fontsize=6,
            )
    fraction = rows[_FRACTION].max()
    axes.set_title(
        f"mean accuracy in percent × honest × {summaries.OWN_TEST}, last round;"
        f" {100 * fraction:g} % malicious",
        fontsize=8,
    )
    return figure

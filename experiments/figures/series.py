"""What becomes of clients' series, such as the values of their portfolios."""

import pandas as pd
from matplotlib.figure import Figure

from experiments.figures import drawing, selection
from fedjax_pfl import results

__all__ = ["values"]

_MAX_PANELS = 3
_BESIDE = {"uniform_value": "equal shares, rebalanced", "hold_value": "bought and held"}


def values(result: results.Result) -> Figure | None:
    """Values of portfolios over the test days, one panel per market.

    Means over parties and seeds of the personal model, or of the first there is; the
    band is from the 10 % to the 90 % quantile of the parties of a seed, averaged over
    seeds, of the first method.

    Args:
      result: what to draw.

    Returns:
      The figure; None for trainings without such series.
    """
    table = result.series()
    if table.empty:
        return None
    table = table[table["model"].isin(selection.MODELS)]
    settings = selection.settings(result)
    markets = [name for name in settings if name.startswith("federation.")]
    keys = [name for name in settings if name not in markets]
    parts = list(selection.groups(table, markets)) if markets else [table]
    figure, panels = drawing.panels(len(parts[:_MAX_PANELS]))
    names = selection.varying(table, keys)
    count = 0
    for axes, part in zip(panels, parts, strict=False):
        count = _draw(axes, part, keys, names)
        shown = selection.varying(table, markets)
        title = ", ".join(f"{n.split('.', 1)[1]} = {part[n].iloc[0]}" for n in shown)
        axes.set_title(title, **drawing.TEXT)
        axes.set_xlabel("trading day of the test", fontsize=9)
    panels[0].set_ylabel("value, from 1 on", fontsize=9)
    title = "mean over parties and seeds; band: 10 % to 90 % of parties"
    if len(parts) > _MAX_PANELS:
        title += f"\nthe first {_MAX_PANELS} of {len(parts)} markets"
    drawing.legend(figure, panels[0], title, count)
    return figure


def _draw(axes, table: pd.DataFrame, keys: list[str], names: list[str]) -> int:
    """Lines of one panel; how many methods there are."""
    order = list(selection.MODELS).index
    own = table[table["name"] == "value"]
    lines = list(selection.groups(own, keys))
    for k, rows in enumerate(lines[: drawing.MAX_LINES]):
        model = min(rows["model"].unique(), key=order)
        by_day = rows[rows["model"] == model].groupby("moment")
        color = drawing.COLORS[k % len(drawing.COLORS)]
        name = f"{model} × {selection.label(rows.iloc[0], names)}"
        mean = by_day["mean"].mean()
        axes.plot(mean.index, mean, color=color, linewidth=1.2, label=name)
        if k == 0:
            low, high = by_day["10 %"].mean(), by_day["90 %"].mean()
            axes.fill_between(mean.index, low, high, color=color, alpha=0.15, lw=0)
    for name, dash in zip(_BESIDE, ("--", ":"), strict=True):
        mean = table[table["name"] == name].groupby("moment")["mean"].mean()
        axes.plot(mean.index, mean, dash, color="gray", label=_BESIDE[name])
    return len(lines)

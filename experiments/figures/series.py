"""What becomes of clients' series, such as the values of their portfolios."""

import dataclasses

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from experiments.figures import contents, drawing, selection
from fedjax_pfl import results

__all__ = ["draw", "over_days", "values"]

_MAX_PANELS = 3
_BESIDE = {"uniform_value": "equal shares, rebalanced", "hold_value": "bought and held"}
_GRAYS = ("--", ":")


def over_days(result: results.Result) -> contents.Lines | None:
    """Values of portfolios over the test days, one panel per market.

    Means over parties and seeds of the personal model, or of the first there is; the
    band is from the 10 % to the 90 % quantile of the parties of a seed, averaged over
    seeds, of the first method.

    Args:
      result: what to show.

    Returns:
      The lines; those without an algorithm are of no method. None for trainings without
      such series.
    """
    table = result.series()
    if table.empty:
        return None
    table = table[table["model"].isin(selection.MODELS)]
    settings = selection.settings(result)
    markets = [name for name in settings if name.startswith("federation.")]
    keys = [name for name in settings if name not in markets]
    parts = list(selection.groups(table, markets)) if markets else [table]
    names = selection.varying(table, keys)
    total, panels = 0, []
    for part in parts[:_MAX_PANELS]:
        own = part[part["name"] == "value"]
        methods = list(selection.groups(own, keys))
        total = max(total, len(methods))
        shown = selection.varying(table, markets)
        title = ", ".join(f"{n.split('.', 1)[1]} = {part[n].iloc[0]}" for n in shown)
        lines = [
            _method(r, k, names) for k, r in enumerate(methods[: drawing.MAX_LINES])
        ]
        beside = [_beside(part, name, k) for k, name in enumerate(_BESIDE)]
        panels.append(contents.Panel(title, (*lines, *beside)))
    spread = "mean over parties and seeds; band: 10 % to 90 % of parties"
    if len(parts) > _MAX_PANELS:
        spread += f"\nthe first {_MAX_PANELS} of {len(parts)} markets"
    return contents.Lines(
        panels=tuple(panels),
        xlabel="trading day of the test",
        ylabel="value, from 1 on",
        data="",
        spread=spread,
        around="10 % to 90 %",
        total=total,
    )


def _method(rows: pd.DataFrame, number: int, names: list[str]) -> contents.Line:
    """The line of one method; only the first has a band."""
    rows = selection.first_model(rows)
    first, band = rows.iloc[0], None if number else ("10 %", "90 %")
    line = _line(rows, selection.label(first, names), number, band)
    return dataclasses.replace(
        line, algorithm=first["algorithm"], model=first["model"], population="honest"
    )


def _beside(table: pd.DataFrame, name: str, number: int) -> contents.Line:
    """What becomes of money that no method invests."""
    return _line(table[table["name"] == name], _BESIDE[name], number, None)


def _line(
    rows: pd.DataFrame, name: str, number: int, band: tuple[str, str] | None
) -> contents.Line:
    """Means by day, of no method; NaN around it without a band."""
    by_day = rows.groupby("moment")
    mean = by_day["mean"].mean()
    nothing = np.full(len(mean), np.nan)
    low, high = (nothing, nothing) if band is None else (by_day[b].mean() for b in band)
    return contents.Line(
        setting=name,
        algorithm="",
        model="",
        population="",
        color=number,
        x=mean.index.to_numpy(),
        y=mean.to_numpy(),
        low=np.asarray(low),
        high=np.asarray(high),
    )


def values(result: results.Result) -> Figure | None:
    """Draws `over_days`, where there are series."""
    shown = over_days(result)
    return None if shown is None else draw(shown)


def draw(shown: contents.Lines) -> Figure:
    """Draws values against days, markets side by side."""
    figure, panels = drawing.panels(len(shown.panels))
    for axes, panel in zip(panels, shown.panels, strict=True):
        for line in panel.lines:
            if not line.algorithm:
                dash = _GRAYS[line.color]
                axes.plot(line.x, line.y, dash, color="gray", label=line.setting)
                continue
            color = drawing.color(line.color)
            label = f"{line.model} × {line.setting}"
            axes.plot(line.x, line.y, color=color, linewidth=1.2, label=label)
            good = np.isfinite(line.low)
            ends = line.x[good], line.low[good], line.high[good]
            axes.fill_between(*ends, color=color, alpha=0.15, lw=0)
        axes.set_title(panel.title, **drawing.TEXT)
        axes.set_xlabel(shown.xlabel, fontsize=9)
    panels[0].set_ylabel(shown.ylabel, fontsize=9)
    drawing.legend(figure, panels[0], shown.spread, shown.total)
    return figure

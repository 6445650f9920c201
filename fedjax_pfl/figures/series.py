"""Figures of clients' series, such as the values of their portfolios."""

import dataclasses

import numpy as np
import pandas as pd

from fedjax_pfl import results
from fedjax_pfl.figures import contents, multiples
from fedjax_pfl.results import selection

__all__ = ["over_days"]

_BESIDE = {"uniform_value": "equal shares, rebalanced", "hold_value": "bought and held"}


def over_days(result: results.Result) -> contents.Lines | None:
    """Returns values of portfolios over the test days, one panel per market.

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
    methods, markets = selection.methods(result), selection.environments(result)
    own = table[table["name"] == "value"]
    own = pd.concat(map(selection.first_model, selection.groups(own, methods)))
    panels, left_out = multiples.in_panels(own, methods, markets, _method)
    return contents.Lines(
        panels=multiples.beside(panels, table, markets, _strategies),
        xlabel="trading day of the test",
        ylabel="value, from 1 on",
        data="",
        spread="mean over parties and seeds; band: 10 % to 90 % of parties",
        left_out=left_out,
        around="10 % to 90 %",
    )


def _method(rows: pd.DataFrame, name: str, color: int) -> contents.Line:
    """Returns the line of one method; only the first has a band."""
    line = _line(rows, name, color, None if color else ("10 %", "90 %"))
    first = rows.iloc[0]
    return dataclasses.replace(
        line, algorithm=first["algorithm"], model=first["model"], population="honest"
    )


def _strategies(table: pd.DataFrame) -> list[contents.Line]:
    """Returns the curves of strategies that no method trains."""
    return [
        _line(table[table["name"] == name], title, color, None)
        for color, (name, title) in enumerate(_BESIDE.items())
    ]


def _line(
    rows: pd.DataFrame, name: str, number: int, band: tuple[str, str] | None
) -> contents.Line:
    """Returns means by day, of no method; NaN around it without a band."""
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

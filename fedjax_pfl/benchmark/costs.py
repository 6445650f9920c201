"""The table of what methods cost, whole and until they are as good as FedAvg."""

import math

import pandas as pd

from fedjax_pfl.benchmark import finished, ranking, tables
from fedjax_pfl.report import tables as texts

__all__ = ["number", "table"]

_TITLES = {
    "rounds": "rounds",
    "bytes": "MB",
    "gradients": "gradients",
    "virtual_seconds": "virtual seconds",
}
_ROUNDS = f"rounds{finished.TO_TARGET}"
_MEGA = 1e6


def table(task: tables.Tables, places: list[ranking.Place]) -> texts.Table | None:
    """Returns the table of costs of one data set, in the order of places.

    Means over seeds until the target are of those seeds whose training came there.
    A training that was there at its first evaluation came at an unknown time before.
    Costs that no method has are left out; None if there are none.
    """
    by_method = task.scores.groupby("method", sort=False)
    means, counts = by_method.mean(numeric_only=True), by_method.count()
    whole, until = (
        [f"{n}{end}" for n in names if counts[f"{n}{end}"].any()]
        for names, end in ((finished.COSTS, ""), (tuple(_TITLES), finished.TO_TARGET))
    )
    if not whole:
        return None
    is_early = task.scores[_ROUNDS] <= task.scores["first_evaluation"]
    early = is_early.groupby(task.scores["method"]).sum()
    columns = ["method", *(_TITLES[name] for name in whole)]
    columns += ["reached"] * bool(until)
    columns += [f"{_TITLES[n.removesuffix(finished.TO_TARGET)]} to it" for n in until]
    rows = []
    for place in places:
        name = place.method
        cells = _cells(means.loc[name, whole])
        if until:
            came, seeds = counts.loc[name, _ROUNDS], counts.loc[name, "seed"]
            cells.append(f"{came} of {seeds}")
            spent = _cells(means.loc[name, until])
            if came and early[name] == came:
                spent = ["at once"] * len(spent)
            elif early[name]:
                spent = [f"≤ {cell}" if cell != "–" else cell for cell in spent]
            cells += spent
        rows.append((name, *cells))
    parts = (texts.Part("", tuple(rows)),)
    name = f"{task.tasks[0]}-costs"
    return texts.Table(name, "Costs", "", tuple(columns), parts)


def _cells(row: pd.Series) -> list[str]:
    """Formats costs of a method."""
    units = {name: _MEGA if name.startswith("bytes") else 1.0 for name in row.index}
    return [number(float(row[name]) / units[name]) for name in row.index]


def number(value: float) -> str:
    """Formats a number of any size."""
    if math.isnan(value):
        return "–"
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"

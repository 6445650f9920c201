"""The table of methods' costs, in total and until they are as good as FedAvg."""

import math
from typing import Any

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
    """Returns the table of costs of one data set, in the order of places, or None."""
    by_method = task.scores.groupby("method", sort=False)
    # Costs until the target are NaN for seeds that never reached it, and means over the
    # others.
    means, counts = by_method.mean(numeric_only=True), by_method.count()
    totals, until = (
        [f"{n}{end}" for n in names if counts[f"{n}{end}"].any()]
        for names, end in ((finished.COSTS, ""), (tuple(_TITLES), finished.TO_TARGET))
    )
    # Columns that no method has are left out.
    if not totals:
        return None
    is_early = task.scores[_ROUNDS] <= task.scores["first_evaluation"]
    early_counts = is_early.groupby(task.scores["method"]).sum()
    columns = ["method", *(_TITLES[name] for name in totals)]
    columns += ["reached"] * bool(until)
    columns += [f"{_TITLES[n.removesuffix(finished.TO_TARGET)]} to it" for n in until]
    rows = []
    for place in places:
        name = place.method
        cells = _cells(means[totals].loc[name].to_dict())
        if until:
            came, seeds = counts.loc[name, _ROUNDS], counts.loc[name, "seed"]
            cells.append(f"{came} of {seeds}")
            costs = _cells(means[until].loc[name].to_dict())
            # A training that was there at its first evaluation reached it at an unknown
            # time before.
            if came and early_counts[name] == came:
                costs = ["at once"] * len(costs)
            elif early_counts[name]:
                costs = [f"≤ {cell}" if cell != "–" else cell for cell in costs]
            cells += costs
        rows.append((name, *cells))
    parts = (texts.Part("", tuple(rows)),)
    name = f"{task.tasks[0]}-costs"
    return texts.Table(name, "Costs", "", tuple(columns), parts)


def _cells(costs: dict[Any, float]) -> list[str]:
    """Formats costs of a method by name."""
    units = {name: _MEGA if name.startswith("bytes") else 1.0 for name in costs}
    return [number(float(costs[name]) / units[name]) for name in costs]


def number(value: float) -> str:
    """Formats a number of any size."""
    if math.isnan(value):
        return "–"
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"

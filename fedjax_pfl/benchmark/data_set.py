"""Tables of one data set: results, differences, costs and searches."""

import math
from typing import Any

import pandas as pd

from fedjax_pfl.benchmark import differences, finished, kinds, ranking, tables
from fedjax_pfl.report import tables as texts
from fedjax_pfl.results import paired

__all__ = ["command", "costs", "results", "searches", "versus"]

_SHARES = {
    "worse_than_fedavg": "worse than FedAvg",
    "worse_than_local": "worse than Local",
    "better_than_local": "better than Local",
}
_COSTS = {
    "rounds": "rounds",
    "bytes": "MB",
    "gradients": "gradients",
    "virtual_seconds": "virtual seconds",
}
_ROUNDS = f"rounds{finished.TO_TARGET}"


def command(task: tables.Tables) -> str:
    """Returns the line that repeats a data set, or with --only one of its methods."""
    line = str(task.searches["command"].iloc[0]).rpartition(" --only ")[0]
    if not line or "--tune-budget" in line or task.outdated:
        return line
    # The budget would otherwise follow from the methods, and --only has fewer.
    return f"{line} --tune-budget {task.searches['budget'].max():.0f}gradients"


def results(task: tables.Tables, places: list[ranking.Place]) -> texts.Table:
    """Returns the table of results, in the order of places."""
    scores = task.scores
    shares = {n: t for n, t in _SHARES.items() if scores[n].notna().any()}
    has_unseen, has_hybrid = (
        bool(scores[name].notna().any()) for name in ("unseen", "hybrid")
    )
    columns = ["method", "kind", "group", task.metric, "worst 10 %"]
    columns += ["hybrid"] * has_hybrid + [*shares.values()]
    columns += ["unseen clients"] * has_unseen
    adapted = scores.groupby("method", sort=False)["unseen_model"].first()
    means = scores.groupby("method", sort=False).mean(numeric_only=True)
    kind_of, rows = kinds.of_methods(task), []
    # Starts of learning are controls, not competitors, so they have no place.
    controls = scores[scores["method"].isin(task.starts)]
    controls = [
        ranking.Place(str(name), rows.set_index("seed")["value"], 0, "control")
        for name, rows in controls.groupby("method", sort=False)
    ]
    for place in [*places, *controls]:
        row = means.loc[place.method].to_dict()
        cells = [
            place.method,
            kind_of[place.method],
            str(place.group) if place.group else place.why_not,
            _percent_with_spread(100 * place.values),
            _percent(row["worst"]),
            *([_percent(row["hybrid"])] * has_hybrid),
            *(_percent(row[name]) for name in shares),
            *([_unseen(row["unseen"], adapted[place.method])] * has_unseen),
        ]
        rows.append(tuple(cells))
    return _table(task, "Result", columns, rows, 2)


def versus(
    task: tables.Tables, places: list[ranking.Place], reference: str
) -> texts.Table:
    """Returns the table of differences to a reference and to the best method."""
    _, gaps = differences.of_task(task, places)
    chances, best = differences.p_values(gaps), places[0]
    columns = ["method", f"minus {reference}", "p", "below the best"]
    rows = []
    for place in places:
        gap = paired.interval(100 * place.values, 100 * best.values)
        is_last = place is best or math.isnan(gap.mean)
        cells = ["–", "–"]
        if place.method in gaps:
            p = chances[place.method]
            text = "< 0.001" if p < 0.001 else f"{p:.3f}"
            cells = [str(gaps[place.method]), text]
        rows.append((place.method, *cells, "–" if is_last else gap.text("+.2f")))
    return _table(task, "Differences", columns, rows)


def costs(task: tables.Tables, places: list[ranking.Place]) -> texts.Table | None:
    """Returns the table of costs of one data set, in the order of places, or None."""
    by_method = task.scores.groupby("method", sort=False)
    # Costs until the target are NaN for seeds that never reached it, and means over the
    # others.
    means, counts = by_method.mean(numeric_only=True), by_method.count()
    totals, until = (
        [f"{n}{end}" for n in names if counts[f"{n}{end}"].any()]
        for names, end in ((finished.COSTS, ""), (tuple(_COSTS), finished.TO_TARGET))
    )
    # Columns that no method has are left out.
    if not totals:
        return None
    is_early = task.scores[_ROUNDS] <= task.scores["first_evaluation"]
    early_counts = is_early.groupby(task.scores["method"]).sum()
    columns = ["method", *(_COSTS[name] for name in totals)]
    columns += ["reached"] * bool(until)
    columns += [f"{_COSTS[n.removesuffix(finished.TO_TARGET)]} to it" for n in until]
    rows = []
    for place in places:
        name = place.method
        cells = _costs(means[totals].loc[name].to_dict())
        if until:
            came, seeds = counts.loc[name, _ROUNDS], counts.loc[name, "seed"]
            cells.append(f"{came} of {seeds}")
            spent = _costs(means[until].loc[name].to_dict())
            # A training that was there at its first evaluation reached it at an unknown
            # time before.
            if came and early_counts[name] == came:
                spent = ["at once"] * len(spent)
            elif early_counts[name]:
                spent = [f"≤ {cell}" if cell != "–" else cell for cell in spent]
            cells += spent
        rows.append((name, *cells))
    return _table(task, "Costs", columns, rows)


def searches(task: tables.Tables, places: list[ranking.Place]) -> texts.Table:
    """Returns the table of searches, in the order of places."""
    columns = ["method", "best setting", "fields searched", "tried", "gradients"]
    columns += ["median setting", "failed", "repeat with"]
    by_method = task.searches.set_index("method")
    rows = []
    for place in places:
        row = by_method.loc[place.method].to_dict()
        below = 100 * (row["median"] - row["best"])
        cells = [
            row["settings"] or "–",
            str(int(row["fields"])),
            str(int(row["tried"])),
            _number(row["spent"]),
            "–" if math.isnan(below) else f"{below:+.1f}",
            f"{100 * row['failed']:.0f} %",
            f"--only {str(row['command']).rpartition(' --only ')[2]}",
        ]
        rows.append((place.method, *cells))
    caption = ""
    if task.learned:
        caption = (
            "Settings of learned rows are points of a path, whose gradients are"
            " counted, too."
        )
    return _table(task, "Searches", columns, rows, 2, caption)


def _table(
    task: tables.Tables,
    title: str,
    columns: list[str],
    rows: list[tuple[str, ...]],
    num_texts: int = 1,
    caption: str = "",
) -> texts.Table:
    """Returns a table of one part."""
    name = f"{task.tasks[0]}-{title.lower()}"
    return texts.of_rows(name, title, caption, columns, rows, num_texts)


def _costs(costs: dict[Any, float]) -> list[str]:
    """Formats costs of a method by name."""
    # Bytes are in megabytes.
    units = {name: 1e6 if name.startswith("bytes") else 1.0 for name in costs}
    return [_number(float(value) / units[name]) for name, value in costs.items()]


def _number(value: float) -> str:
    """Formats a number of any size."""
    if math.isnan(value):
        return "–"
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _unseen(value: float, model: str) -> str:
    """Formats the value of clients that never trained, and their adaptation."""
    rule = " (own rule)" if "own rule" in model else ""
    return f"{_percent(value)}{rule}"


def _percent(value: float) -> str:
    """Formats a share."""
    return "–" if math.isnan(value) else f"{100 * value:.1f}"


def _percent_with_spread(values: pd.Series) -> str:
    """Formats a mean with its standard deviation."""
    if values.isna().all():
        return "–"
    spread = f" ± {values.std():.2f}" if values.count() > 1 else ""
    return f"{values.mean():.2f}{spread}"

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
_UNITS = {"bytes": 1e6}  # those of MB
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
        mean = means.loc[place.method].to_dict()
        row = {
            "method": place.method,
            "kind": kind_of[place.method],
            "group": str(place.group) if place.group else place.why_not,
            task.metric: _percent_with_spread(100 * place.values),
            "worst 10 %": _percent(mean["worst"]),
        }
        if has_hybrid:
            row["hybrid"] = _percent(mean["hybrid"])
        row |= {title: _percent(mean[name]) for name, title in shares.items()}
        if has_unseen:
            row["unseen clients"] = _unseen(mean["unseen"], adapted[place.method])
        rows.append(row)
    return _table(task, "Result", rows, 2)


def versus(
    task: tables.Tables, places: list[ranking.Place], reference: str
) -> texts.Table:
    """Returns the table of differences to a reference and to the best method."""
    _, gaps = differences.of_task(task, places)
    chances, best = differences.p_values(gaps), places[0]
    rows = []
    for place in places:
        below = paired.interval(100 * place.values, 100 * best.values)
        is_last = place is best or math.isnan(below.mean)
        gap = p = "–"
        if place.method in gaps:
            gap, chance = str(gaps[place.method]), chances[place.method]
            p = "< 0.001" if chance < 0.001 else f"{chance:.3f}"
        row = {"method": place.method, f"minus {reference}": gap, "p": p}
        rows.append(row | {"below the best": "–" if is_last else below.text("+.2f")})
    return _table(task, "Differences", rows)


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
    rows = []
    for place in places:
        name = place.method
        row = {"method": name} | _costs(means[totals].loc[name].to_dict())
        if until:
            came, seeds = counts.loc[name, _ROUNDS], counts.loc[name, "seed"]
            row["reached"] = f"{came} of {seeds}"
            for title, cell in _costs(means[until].loc[name].to_dict()).items():
                # A training that was there at its first evaluation reached it at an
                # unknown time before.
                if came and early_counts[name] == came:
                    cell = "at once"
                elif early_counts[name] and cell != "–":
                    cell = f"≤ {cell}"
                row[title] = cell
        rows.append(row)
    return _table(task, "Costs", rows)


def searches(task: tables.Tables, places: list[ranking.Place]) -> texts.Table:
    """Returns the table of searches, in the order of places."""
    by_method = task.searches.set_index("method")
    rows = []
    for place in places:
        search = by_method.loc[place.method].to_dict()
        below = 100 * (search["median"] - search["best"])
        row = {
            "method": place.method,
            "best setting": search["settings"] or "–",
            "fields searched": str(int(search["fields"])),
            "tried": str(int(search["tried"])),
            "gradients": texts.number(search["spent"]),
            "median setting": "–" if math.isnan(below) else f"{below:+.1f}",
            "failed": f"{100 * search['failed']:.0f} %",
            "repeat with": f"--only {str(search['command']).rpartition(' --only ')[2]}",
        }
        rows.append(row)
    caption = ""
    if task.learned:
        caption = (
            "Settings of learned rows are points of a path, whose gradients are"
            " counted, too."
        )
    return _table(task, "Searches", rows, 2, caption)


def _table(
    task: tables.Tables,
    title: str,
    rows: list[dict[str, str]],
    num_texts: int = 1,
    caption: str = "",
) -> texts.Table:
    """Returns a table of one part, of cells by column."""
    name, cells = f"{task.tasks[0]}-{title.lower()}", [tuple(r.values()) for r in rows]
    return texts.of_rows(name, title, caption, rows[0], cells, num_texts)


def _costs(costs: dict[Any, float]) -> dict[str, str]:
    """Formats costs of a method, by the titles of their columns."""
    cells = {}
    for column, value in costs.items():
        name = column.removesuffix(finished.TO_TARGET)
        title = _COSTS[name] if column == name else f"{_COSTS[name]} to it"
        cells[title] = texts.number(float(value) / _UNITS.get(name, 1))
    return cells


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

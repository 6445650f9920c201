"""Ranking: groups by paired tests on one data set, and ranks over several."""

import dataclasses
import math
from collections.abc import Collection, Mapping

import numpy as np
import pandas as pd

from fedjax_pfl.benchmark import tables
from fedjax_pfl.results import paired

__all__ = [
    "Place",
    "Ranks",
    "complete",
    "counted",
    "leaders",
    "marked",
    "over_tasks",
    "places",
    "rising",
]

LEVEL = 0.05
SHARE = 2 / 3
"""Share of all methods that must be trained on a data set for it to count."""
RISE = 0.005
"""Gain of a validation curve in a tenth of the rounds that means no convergence."""
RISING = "not converged"


@dataclasses.dataclass(frozen=True)
class Place:
    """A method's place on one data set."""

    method: str
    values: pd.Series  # by seed; NaN if the training diverged
    group: int  # from 1; 0 if it is not ranked
    why_not: str  # reason if it is not ranked, else empty

    @property
    def mean(self) -> float:
        """Mean over the seeds that did not diverge."""
        return float(self.values.mean())


def _values_of(task: tables.Tables, column: str = "value") -> dict[str, pd.Series]:
    """Returns a column's numbers by seed, for every method of one data set."""
    by_seed = task.scores.set_index("seed")
    groups = by_seed.groupby("method", sort=False)[column]
    return {str(m): values for m, values in groups if m not in task.starts}


def _why_not(task: tables.Tables) -> dict[str, str]:
    """Returns the reasons of the methods of one data set that are not ranked."""
    rises, why = _values_of(task, "rise"), {}
    for method, numbers in _values_of(task).items():
        lost = int(numbers.isna().sum())
        if lost:
            why[method] = f"diverged for {lost} of {len(numbers)} seeds"
        # The validation curve, mean over seeds, still gained more than half a point in
        # a tenth of the rounds.
        elif rises[method].mean() > RISE:
            why[method] = RISING
    return why


def complete(
    all_tasks: tables.Tables, column: str = "value", *, starts: bool = False
) -> dict[str, pd.DataFrame]:
    """Returns a column, seeds by data sets, for the methods that count."""
    by_method = {}
    for method, rows in all_tasks.scores.groupby("method", sort=False):
        if method in all_tasks.starts and not starts:
            continue
        # Trained on all data sets and diverged in no seed, even if not converged:
        # leaving these out would let a result decide who is compared.
        if rows["value"].notna().all() and rows["task"].nunique() == len(
            all_tasks.tasks
        ):
            table = rows.pivot(index="seed", columns="task", values=column)
            by_method[str(method)] = table[all_tasks.tasks]
    return by_method


def rising(all_tasks: tables.Tables) -> dict[str, list[str]]:
    """Returns the methods that had not converged, with the data sets."""
    data_sets: dict[str, list[str]] = {}
    for name in all_tasks.tasks:
        for method, why in _why_not(all_tasks.of_tasks(name)).items():
            if why == RISING:
                data_sets.setdefault(method, []).append(name)
    return data_sets


def marked(method: str, rising: Collection[str]) -> str:
    """Returns the name of a method, with a dagger if it had not converged somewhere."""
    return f"{method} †" if method in rising else method


def places(task: tables.Tables) -> list[Place]:
    """Ranks the methods of one data set by their mean, the best first."""
    values, why = _values_of(task), _why_not(task)
    groups = leaders({name: values[name] for name in values if name not in why})
    # Methods that are not ranked come last.
    order = sorted(values, key=lambda n: (n in why, -_key(values[n])))
    return [Place(n, values[n], groups.get(n, 0), why.get(n, "")) for n in order]


def _key(values: pd.Series) -> float:
    """Mean for sorting; missing ones last."""
    mean = float(values.mean())
    return -math.inf if math.isnan(mean) else mean


def leaders(values: Mapping[str, pd.Series]) -> dict[str, int]:
    """Groups methods that are not clearly worse than the best of the group."""
    names = sorted(values, key=lambda name: -_key(values[name]))
    groups: dict[str, int] = {}
    number = 0
    while names:
        number += 1
        best, *rivals = names
        # The best method against all others, by paired tests at five percent, corrected
        # by Holm's method; the next group begins with the best remaining method.
        gaps = [paired.interval(values[best], values[name]) for name in rivals]
        chances = paired.holm([gap.p_value for gap in gaps])
        near = [n for n, chance in zip(rivals, chances, strict=True) if chance >= LEVEL]
        groups |= dict.fromkeys([best, *near], number)
        names = [name for name in rivals if name not in near]
    return groups


@dataclasses.dataclass(frozen=True)
class Ranks:
    """Mean ranks over data sets."""

    means: pd.Series  # of every `complete` method, 1 is best
    tasks: list[str]
    distance: float  # Nemenyi's critical difference at five percent
    p_value: float  # of Friedman's test that all methods are alike


def counted(all_tasks: tables.Tables) -> tables.Tables:
    """Returns the rows of the data sets for findings."""
    outdated = all_tasks.outdated
    current = [name for name in all_tasks.tasks if name not in outdated]
    # Never mixed: the larger set counts, of equal ones the current data sets.
    sets = [_with_most_methods(all_tasks.of_tasks(*n)) for n in (current, outdated)]
    return max(sets, key=lambda rows: len(rows.tasks))


def _with_most_methods(rows: tables.Tables) -> tables.Tables:
    """Returns the rows of the data sets on which most methods were trained."""
    if len(rows.tasks) < 2:
        return rows
    # With any score: the rule must not depend on results.
    minimum = SHARE * rows.scores["method"].nunique()
    methods = rows.scores.groupby("task")["method"].nunique()
    return rows.of_tasks(*(name for name in rows.tasks if methods[name] >= minimum))


def over_tasks(shared: tables.Tables) -> Ranks | None:
    """Compares methods by their ranks over data sets (Demsar, 2006)."""
    values = complete(shared)
    if len(shared.tasks) < 2 or len(values) < 3:
        return None
    from scipy import stats

    table = pd.DataFrame({method: rows.mean() for method, rows in values.items()}).T
    ranks = table.rank(ascending=False).mean(axis=1).sort_values(kind="stable")
    count, num_tasks = table.shape
    # The studentized range with infinite degrees of freedom, by number of methods.
    quantile = stats.studentized_range.ppf(1 - LEVEL, count, np.inf) / math.sqrt(2)
    # CD = q sqrt(k (k + 1) / (6 N)) with k methods on N data sets.
    distance = float(quantile * math.sqrt(count * (count + 1) / (6 * num_tasks)))
    test = stats.friedmanchisquare(*table.to_numpy())
    return Ranks(ranks, shared.tasks, distance, float(test.pvalue))

"""Ranking: groups by paired tests on one data set, and ranks over several."""

import dataclasses
import math
from collections.abc import Mapping

import numpy as np
import pandas as pd

from fedjax_pfl.benchmark import tables
from fedjax_pfl.results import paired

__all__ = [
    "Place",
    "Ranks",
    "compared",
    "leaders",
    "over_tasks",
    "places",
    "ranked",
]

LEVEL = 0.05
SHARE = 2 / 3
"""Of all methods, which a data set has to rank to be compared with others."""
RISE = 0.005
"""Gain of a validation curve in a tenth, above which it has not converged."""


@dataclasses.dataclass(frozen=True)
class Place:
    """A method's place on one data set.

    Attributes:
      method: its name.
      values: one number per seed; NaN where the training diverged.
      group: number of its group, from 1; 0 if it is not ranked.
      why_not: why it is not ranked, else empty.
    """

    method: str
    values: pd.Series
    group: int
    why_not: str

    @property
    def mean(self) -> float:
        """Mean over the seeds that did not diverge."""
        return float(self.values.mean())


def _values_of(task: tables.Tables, column: str = "value") -> dict[str, pd.Series]:
    """Returns a column's numbers by seed, for every method of one data set."""
    by_seed = task.scores.set_index("seed")
    groups = by_seed.groupby("method", sort=False)[column]
    return {str(method): values for method, values in groups}


def _why_not(task: tables.Tables) -> dict[str, str]:
    """Returns why methods of one data set are not ranked, of those that are not."""
    rises, why = _values_of(task, "rise"), {}
    for method, numbers in _values_of(task).items():
        lost = int(numbers.isna().sum())
        if lost:
            why[method] = f"diverged for {lost} of {len(numbers)} seeds"
        elif rises[method].mean() > RISE:
            why[method] = "not converged"
    return why


def ranked(task: tables.Tables, column: str = "value") -> dict[str, pd.Series]:
    """Returns a column by seed, of the methods that `places` ranks on one data set."""
    why = _why_not(task)
    return {m: v for m, v in _values_of(task, column).items() if m not in why}


def places(task: tables.Tables) -> list[Place]:
    """Ranks the methods of one data set by their mean, the best first.

    A method is not ranked if one of its trainings diverged, or if it had not converged:
    its validation curve, mean over seeds, still gained more than half a point in a
    tenth of the rounds. These come last.

    Args:
      task: tables of one data set.

    Returns:
      The places; groups are those of `leaders`.
    """
    values, why = _values_of(task), _why_not(task)
    groups = leaders(ranked(task))
    order = sorted(values, key=lambda n: (n in why, -_key(values[n])))
    return [Place(n, values[n], groups.get(n, 0), why.get(n, "")) for n in order]


def _key(values: pd.Series) -> float:
    """Mean for sorting; missing ones last."""
    mean = float(values.mean())
    return -math.inf if math.isnan(mean) else mean


def leaders(values: Mapping[str, pd.Series]) -> dict[str, int]:
    """Groups methods that cannot be told from the best of them.

    The best method is compared with all others by paired tests at five percent,
    corrected by Holm's method for their number; those that are not clearly below it
    are its group. The next group begins with the best method that is left.

    Args:
      values: numbers by seed, more is better, by method.

    Returns:
      The number of every method's group, from 1.
    """
    left = sorted(values, key=lambda name: -_key(values[name]))
    groups: dict[str, int] = {}
    number = 0
    while left:
        number += 1
        best, *others = left
        gaps = [paired.interval(values[best], values[name]) for name in others]
        chances = paired.holm([gap.p_value for gap in gaps])
        near = [n for n, chance in zip(others, chances, strict=True) if chance >= LEVEL]
        groups |= dict.fromkeys([best, *near], number)
        left = [name for name in others if name not in near]
    return groups


@dataclasses.dataclass(frozen=True)
class Ranks:
    """Mean ranks over data sets.

    Attributes:
      means: mean rank, 1 is best, of every method that is ranked on all of them.
      elsewhere: of every other method, the data sets on which it is not ranked.
      tasks: names of the data sets.
      distance: Nemenyi's critical difference at five percent: mean ranks that are
        nearer cannot be told apart.
      p_value: of Friedman's test that all methods are alike.
    """

    means: pd.Series
    elsewhere: dict[str, list[str]]
    tasks: list[str]
    distance: float
    p_value: float

    @property
    def num_tasks(self) -> int:
        """Number of data sets."""
        return len(self.tasks)


def compared(all_tasks: tables.Tables) -> tables.Tables:
    """Returns the rows of the data sets on which two thirds of all methods are ranked.

    What is said of all data sets is of these: where few were trained, or have
    converged, nothing could be said of the rest. A single data set is all there is.
    """
    if len(all_tasks.tasks) == 1:
        return all_tasks
    least = SHARE * all_tasks.scores["method"].nunique()
    names = (
        name
        for name in all_tasks.tasks
        if len(ranked(all_tasks.of_tasks(name))) >= least
    )
    return all_tasks.of_tasks(*names)


def over_tasks(all_tasks: tables.Tables) -> Ranks | None:
    """Compares methods by their ranks over data sets (Demsar, 2006).

    Args:
      all_tasks: tables of all data sets, of which those that are `compared` count.

    Returns:
      The ranks, by mean; None with fewer than two data sets or three methods that are
      ranked on all of them.
    """
    shared = compared(all_tasks)
    names = shared.tasks
    means = {
        task: {m: float(v.mean()) for m, v in ranked(shared.of_tasks(task)).items()}
        for task in names
    }
    methods = dict.fromkeys(shared.scores["method"])
    lacks = {m: [task for task in names if m not in means[task]] for m in methods}
    common = [method for method in methods if not lacks[method]]
    if len(names) < 2 or len(common) < 3:
        return None
    from scipy import stats

    table = pd.DataFrame({task: pd.Series(means[task])[common] for task in names})
    ranks = table.rank(ascending=False).mean(axis=1).sort_values(kind="stable")
    count = len(common)
    # The range of infinitely precise means, by the number of methods.
    quantile = stats.studentized_range.ppf(1 - LEVEL, count, np.inf) / math.sqrt(2)
    distance = float(quantile * math.sqrt(count * (count + 1) / (6 * len(names))))
    test = stats.friedmanchisquare(*(table.loc[m].to_numpy() for m in common))
    elsewhere = {method: lacking for method, lacking in lacks.items() if lacking}
    return Ranks(ranks, elsewhere, names, distance, float(test.pvalue))

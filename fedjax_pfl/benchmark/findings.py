"""Sentences on a benchmark: findings, each with its interval."""

from collections.abc import Iterator, Mapping

import numpy as np
import pandas as pd

from fedjax_pfl.benchmark import finished, ranking, tables
from fedjax_pfl.results import paired

__all__ = ["sentences"]

_FINE_TUNED = "FedAvg fine-tuned"
_POINTS = "+.2f"
_NAMED = 3  # most methods that a finding names
_TO_TARGET = f"virtual_seconds{finished.TO_TARGET}"


def sentences(all_tasks: tables.Tables) -> list[str]:
    """Returns what is found, of the methods that are ranked on all data sets.

    Data sets that rank few of the methods have no part in it.

    Means over data sets are taken seed by seed; intervals are over seeds, or over
    methods where the sentence says so, and hold for these data sets.
    """
    shared = ranking.compared(all_tasks)
    if not shared.tasks:
        return []
    over = _over(shared.tasks, len(all_tasks.tasks))
    makers = (_against_fine_tuning, _harm, _settings, _sooner, _learning)
    return [text for make in makers for text in make(shared, over)]


def _over(names: list[str], count: int) -> str:
    """Says over what means are: all data sets, or those that are compared."""
    if len(names) == 1:
        return "on this data set" if count == 1 else f"on {names[0]}"
    of_all = "" if len(names) == count else f" of {count}"
    return f"in the mean over {len(names)}{of_all} data sets"


def _means(all_tasks: tables.Tables, column: str) -> dict[str, pd.Series]:
    """Returns a column by seed, mean over data sets, of methods ranked on all."""
    by_task = [
        ranking.ranked(all_tasks.of_tasks(name), column) for name in all_tasks.tasks
    ]
    common = [m for m in by_task[0] if all(m in values for values in by_task)]
    return {m: sum(values[m] for values in by_task) / len(by_task) for m in common}


def _of_methods(all_tasks: tables.Tables, column: str) -> dict[str, pd.Series]:
    """Returns `_means` without the rows that are methods once more."""
    means = _means(all_tasks, column)
    return {m: v for m, v in means.items() if m not in all_tasks.learned}


def _against_fine_tuning(all_tasks: tables.Tables, over: str) -> Iterator[str]:
    """Says how many methods beat the cheapest way to a personal model."""
    means = _of_methods(all_tasks, "value")
    if _FINE_TUNED not in means or len(means) < 2:
        return
    reference = 100 * means.pop(_FINE_TUNED)
    gaps = {m: paired.interval(100 * v, reference) for m, v in means.items()}
    chances = paired.holm([gap.p_value for gap in gaps.values()])
    clear = {
        name: gap.mean
        for (name, gap), chance in zip(gaps.items(), chances, strict=True)
        if chance < ranking.LEVEL
    }
    better = [name for name, mean in clear.items() if mean > 0]
    worse = len(clear) - len(better)
    named = f" ({', '.join(better)})" if 0 < len(better) <= _NAMED else ""
    best = max(gaps, key=lambda name: gaps[name].mean)
    yield (
        f"Of {len(gaps)} methods {len(better) or 'none'}{named}"
        f" {'is' if len(better) == 1 else 'are'} clearly better than a fine-tuned"
        f" FedAvg {over}, and {worse or 'none'} clearly worse, corrected for so many"
        f" comparisons; the largest difference is {best}'s, by itself"
        f" {gaps[best].text(_POINTS)} points."
    )


def _harm(all_tasks: tables.Tables, over: str) -> Iterator[str]:
    """Says how many clients would do better alone."""
    shares = _of_methods(all_tasks, "worse_than_local")
    shares = {m: 100 * v for m, v in shares.items() if v.notna().all()}
    if "FedAvg" not in shares or len(shares) < 2:
        return
    fewest = min(shares.keys() - {"FedAvg"}, key=lambda name: shares[name].mean())
    yield (
        "FedAvg's global model serves"
        f" {_share(shares['FedAvg'])} of the clients worse than training alone does,"
        f" {over}; with {fewest}, which harms fewest, it is {_share(shares[fewest])}."
    )


def _share(values: pd.Series) -> str:
    """Formats a mean share with its interval, within 0 and 100."""
    found = paired.of_mean(values)
    low, high = found.mean - found.margin, found.mean + found.margin
    return f"{found.mean:.1f} % [{max(low, 0):.1f}, {min(high, 100):.1f}]"


def _settings(all_tasks: tables.Tables, over: str) -> Iterator[str]:
    """Says whether the choice of settings or of a method matters more."""
    rows = all_tasks.searches.dropna(subset=["best", "median"])
    rows = rows[~rows["method"].isin(all_tasks.learned)]
    if rows.empty:
        return
    loss = 100 * (rows["best"] - rows["median"])
    spread = paired.of_mean(loss.groupby(rows["method"]).mean())
    scores = all_tasks.scores[all_tasks.scores["method"].isin(rows["method"])]
    means = 100 * scores.groupby(["task", "method"])["value"].mean()
    quartiles = _quartiles(means)
    word = "more than" if spread.mean > quartiles else "less than"
    if abs(spread.mean - quartiles) <= spread.margin:
        word = "as much as"
    yield (
        f"Settings matter {word} methods: at the first rung the median setting of"
        f" a method is {spread.text('.1f')} points below its best one (interval over"
        " methods), while between the upper and the lower quartile of tuned methods lie"
        f" {quartiles:.1f} points, {over}."
    )


def _sooner(all_tasks: tables.Tables, over: str) -> Iterator[str]:
    """Says who is as good as FedAvg in the least virtual time, of those who always are.

    Ratios are geometric means: their logarithms are paired by seed.
    """
    times = {
        method: np.log(seconds)
        for method, seconds in _of_methods(all_tasks, _TO_TARGET).items()
        if seconds.gt(0).all()
    }
    if finished.TARGET not in times or len(times) < 2:
        return
    reference = times.pop(finished.TARGET)
    gaps = {m: paired.interval(values, reference) for m, values in times.items()}
    first = min(gaps, key=lambda name: gaps[name].mean)
    gap = gaps[first]
    ratio, low, high = np.exp([gap.mean, gap.mean - gap.margin, gap.mean + gap.margin])
    yield (
        f"FedAvg's last {all_tasks.metric} on validation data is reached soonest, in"
        f" virtual time, by {first}: in {ratio:.2f} [{low:.2f}, {high:.2f}] of the time"
        f" that FedAvg takes until it is first there, {over}."
    )


def _learning(all_tasks: tables.Tables, over: str) -> Iterator[str]:
    """Says what learning the fields reaches beside searching them."""
    means = _means(all_tasks, "value")
    gaps = {
        method: paired.interval(100 * means[row], 100 * means[method])
        for row, method in all_tasks.learned.items()
        if row in means and method in means
    }
    if gaps:
        found = ", ".join(f"{m} {gap.text(_POINTS)}" for m, gap in gaps.items())
        yield (
            "Fields that are learned along derivatives beside those that are searched"
            " with the same number of client-steps, in points of"
            f" {all_tasks.metric} {over}: {found}."
        )


def _quartiles(means: pd.Series) -> float:
    """Returns the distance of the quartiles over methods, mean over data sets."""
    distances: Mapping[str, float] = {
        str(task): float(np.subtract(*np.nanpercentile(values, [75, 25])))
        for task, values in means.groupby(level="task")
    }
    return float(np.mean(list(distances.values())))

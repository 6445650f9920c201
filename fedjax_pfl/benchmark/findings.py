"""Sentences on a benchmark: findings, each with its interval."""

import dataclasses
from collections.abc import Iterator, Mapping

import numpy as np
import pandas as pd

from fedjax_pfl.benchmark import differences, finished, kinds, ranking, tables
from fedjax_pfl.results import paired

__all__ = ["rule", "sentences"]

_NAMED = 5  # most methods that a finding names
_ROUNDS, _TIME = (f"{n}{finished.TO_TARGET}" for n in ("rounds", "virtual_seconds"))
_OF_LOCAL = ("worse_than_local", "better_than_local")
_TRAINED = (kinds.PERSONAL, kinds.GLOBAL)


def sentences(all_tasks: tables.Tables) -> list[str]:
    """Returns findings over the data sets that count."""
    shared = ranking.counted(all_tasks)
    if not shared.tasks:
        return []
    over = _over(shared.tasks, len(all_tasks.tasks))
    # Means over data sets are taken seed by seed; each difference has an interval over
    # seeds and one over data sets.
    makers = (_against_fine_tuning, _harm, _sooner, _learning)
    return [text for make in makers for text in make(shared, over)]


def rule(all_tasks: tables.Tables) -> str:
    """Describes the data sets and methods that count in findings."""
    shared, parts = ranking.counted(all_tasks), []
    if len(all_tasks.tasks) > 1:
        parts.append(
            "Findings, mean ranks and the column mean are over the data sets on which"
            " at least two thirds of all methods were trained, whatever these reached."
        )
    absent = [name for name in all_tasks.tasks if name not in shared.tasks]
    if absent:
        parts.append(f"Without: {', '.join(absent)}.")
    if shared.outdated:
        parts.append(
            "Most data sets have searches with narrower ranges and budgets in local"
            " steps, so findings are of these until the others are as many."
        )
    elif all_tasks.outdated:
        parts.append("Data sets that are to be trained again have no part in them.")
    parts.append(
        "A method counts if it was trained everywhere and diverged in no seed; one that"
        " had not converged counts with the value that it had reached, marked †, since"
        " leaving it out would let a result decide who is compared."
    )
    complete = ranking.complete(shared)
    methods = dict.fromkeys(shared.scores["method"])
    absentees = [m for m in methods if m not in complete and m not in shared.starts]
    if absentees:
        parts.append(f"Missing: {', '.join(absentees)}.")
    return " ".join(parts)


def _over(names: list[str], count: int) -> str:
    """Names the data sets of means: all, or the ones that count."""
    if len(names) == 1:
        return "on this data set" if count == 1 else f"on {names[0]}"
    of_all = "" if len(names) == count else f" of {count}"
    return f"in the mean over {len(names)}{of_all} data sets"


def _methods(shared: tables.Tables, column: str = "value") -> dict[str, pd.DataFrame]:
    """Returns a column of the methods that count, without rows with learned fields."""
    values = ranking.complete(shared, column)
    return {m: v for m, v in values.items() if m not in shared.learned}


def _against_fine_tuning(shared: tables.Tables, over: str) -> Iterator[str]:
    """Yields comparisons of each kind of methods with the simplest personal model."""
    values, reference = _methods(shared), differences.reference(shared)
    if reference is None or len(values) < 2:
        return
    gaps = differences.gaps_to(values, reference)
    kind_of, rising = kinds.of_methods(shared), ranking.rising(shared)
    noun = "FedAvg" if reference == "FedAvg" else "a fine-tuned FedAvg"
    trained = [name for name in gaps if kind_of[name] in _TRAINED]
    is_single = len(shared.tasks) == 1
    judged = "corrected" if is_single else "by the wider of two intervals, corrected"
    better, worse = _by_kind(shared, gaps)
    yield (
        f"Clearly better than {noun}, {over}, {judged} for {len(gaps)} comparisons:"
        f" {better}. Clearly worse: {worse}."
    )
    if trained:
        best = max(trained, key=lambda name: gaps[name].mean)
        yield (
            f"The largest difference to {noun} has {ranking.marked(best, rising)},"
            f" {over}: {gaps[best]} points."
        )
    if not is_single:
        by_seed = {m: dataclasses.replace(gap, tasks=None) for m, gap in gaps.items()}
        better, worse = _by_kind(shared, by_seed)
        yield (
            "By intervals over seeds alone, which hold for these data sets only:"
            f" clearly better {better}; clearly worse {worse}."
        )


def _by_kind(
    shared: tables.Tables, gaps: Mapping[str, differences.Gap]
) -> tuple[str, str]:
    """Counts by kind the methods that are clearly better, and clearly worse."""
    is_better, kind_of = differences.verdicts(gaps), kinds.of_methods(shared)
    rising = ranking.rising(shared)
    by_kind = {k: [n for n in gaps if kind_of[n] == k] for k in kinds.KINDS}

    def counted(sign: bool) -> str:
        if sign not in is_better.values():
            return f"no method of {len(gaps)}"
        counts = []
        for kind, names in by_kind.items():
            clear = [name for name in names if is_better.get(name) is sign]
            text = ", ".join(ranking.marked(name, rising) for name in clear)
            text = f" ({text})" if 0 < len(clear) <= _NAMED else ""
            noun = kinds.plural(kind, len(names))
            counts += [f"{len(clear)} of {len(names)} {noun}{text}"] * bool(names)
        return ", ".join(counts)

    return counted(True), counted(False)


def _harm(shared: tables.Tables, over: str) -> Iterator[str]:
    """Yields shares of clients that lose and gain, compared with training alone."""
    worse, better = (
        {
            m: 100 * v
            for m, v in _methods(shared, name).items()
            if v.notna().all(axis=None)
        }
        for name in _OF_LOCAL
    )
    kind_of, copies = kinds.of_methods(shared), kinds.copies(shared)
    # References and methods that equal Local somewhere cannot be the least harmful.
    names = [m for m in worse if kind_of[m] in _TRAINED and m not in copies]
    methods = [name for name in names if name != "FedAvg"]
    if "FedAvg" not in names or not methods:
        return
    fewest = min(methods, key=lambda name: np.nanmean(worse[name].to_numpy()))

    def clients(name: str) -> str:
        gains = f" and better for {_share(better[name])}" if name in better else ""
        return f"{_share(worse[name])} of the clients{gains}"

    yield (
        "FedAvg's global model is worse than training alone for"
        f" {clients('FedAvg')}, {over}; {fewest}, the method with the fewest such"
        f" clients, for {clients(fewest)}."
    )


def _share(table: pd.DataFrame) -> str:
    """Formats a mean share with its interval over seeds, within 0 and 100."""
    share = paired.of_mean(table.mean(axis=1))
    low, high = share.mean - share.margin, share.mean + share.margin
    return f"{share.mean:.1f} % [{max(low, 0):.1f}, {min(high, 100):.1f}]"


def _sooner(shared: tables.Tables, over: str) -> Iterator[str]:
    """Yields the method that is as good as FedAvg in the least virtual time."""
    starts = shared.scores.groupby("task")["first_evaluation"].max()
    rounds, times = _methods(shared, _ROUNDS), _methods(shared, _TIME)
    # Only methods that reach this in every seed compete. If one of them reaches it at
    # its first evaluation, the time is unknown and there is no finding.
    times = {m: v for m, v in times.items() if v.notna().all(axis=None)}
    is_early = [(rounds[m] <= starts[shared.tasks]).any(axis=None) for m in times]
    if any(is_early) or finished.TARGET not in times or len(times) < 2:
        return
    # Ratios are geometric means: their logarithms are paired by seed.
    logs = {method: np.log(table).mean(axis=1) for method, table in times.items()}
    reference = logs.pop(finished.TARGET)
    gaps = {m: paired.interval(values, reference) for m, values in logs.items()}
    soonest = min(gaps, key=lambda name: gaps[name].mean)
    gap = gaps[soonest]
    ratio, low, high = np.exp([gap.mean, gap.mean - gap.margin, gap.mean + gap.margin])
    yield (
        f"FedAvg's last {shared.metric} on validation data is reached soonest, in"
        f" virtual time, by {soonest}: in {ratio:.2f} [{low:.2f}, {high:.2f}] of the"
        f" time that FedAvg takes until it is first there, {over}."
    )


def _learning(shared: tables.Tables, over: str) -> Iterator[str]:
    """Yields the differences of learned to searched fields, and to their start."""
    values = ranking.complete(shared, starts=True)
    starts = {method: row for row, method in shared.starts.items()}
    controls = {
        "fields searched at the same budget": lambda method: method,
        "the middle of the ranges, where learning starts": starts.get,
    }
    for words, control in controls.items():
        pairs = {m: (row, control(m)) for row, m in shared.learned.items()}
        gaps = {
            m: differences.gaps_to({a: values[a], b: values[b]}, b)[a]
            for m, (a, b) in pairs.items()
            if a in values and b in values
        }
        if gaps:
            numbers = ", ".join(f"{method} {gap}" for method, gap in gaps.items())
            yield (
                f"Fields learned along derivatives minus {words}, in points of"
                f" {shared.metric} {over}: {numbers}."
            )

"""Differences of methods to a fine-tuned FedAvg, paired by seed and by data set."""

import dataclasses
from collections.abc import Mapping, Sequence

import pandas as pd

from fedjax_pfl.benchmark import ranking, tables
from fedjax_pfl.results import paired

__all__ = [
    "REFERENCES",
    "Gap",
    "gaps_to",
    "of_task",
    "p_values",
    "reference",
    "verdicts",
]

REFERENCES = ("FedAvg fine-tuned", "FedAvg")
"""Reference methods of all comparisons, in order of preference."""


@dataclasses.dataclass(frozen=True)
class Gap:
    """A mean difference with its uncertainty over seeds and over data sets."""

    seeds: paired.Interval  # interval over seeds, of means over data sets
    tasks: paired.Interval | None  # over data sets; None for one

    @property
    def mean(self) -> float:
        """Mean difference."""
        return self.seeds.mean

    @property
    def wider(self) -> paired.Interval:
        """The wider interval, which determines the verdict."""
        intervals = [i for i in (self.seeds, self.tasks) if i is not None]
        return max(intervals, key=lambda interval: interval.margin)

    def __str__(self) -> str:
        if self.tasks is None:
            return self.seeds.text("+.2f")
        ends = (
            f"over {name} [{i.mean - i.margin:+.2f}, {i.mean + i.margin:+.2f}]"
            for name, i in (("seeds", self.seeds), ("data sets", self.tasks))
        )
        return f"{self.mean:+.2f} ({', '.join(ends)})"


def reference(all_tasks: tables.Tables) -> str | None:
    """Returns the reference method, or None."""
    complete = ranking.complete(all_tasks)
    return next((name for name in REFERENCES if name in complete), None)


def gaps_to(values: Mapping[str, pd.DataFrame], name: str) -> dict[str, Gap]:
    """Returns the differences of all other methods to one, in points."""
    gaps = {}
    for method, table in values.items():
        if method == name:
            continue
        gap = 100 * (table - values[name])
        gaps[method] = Gap(
            # A seed that diverged on one data set is lost.
            seeds=paired.of_mean(gap.mean(axis=1, skipna=False)),
            tasks=paired.of_mean(gap.mean()) if len(gap.columns) > 1 else None,
        )
    return gaps


def p_values(gaps: Mapping[str, Gap]) -> dict[str, float]:
    """Returns p-values by the wider interval, corrected for their number."""
    # A difference must hold for other seeds and for other data sets.
    corrected = paired.holm([gap.wider.p_value for gap in gaps.values()])
    return dict(zip(gaps, corrected, strict=True))


def verdicts(gaps: Mapping[str, Gap]) -> dict[str, bool]:
    """Returns whether methods are better, for methods that clearly differ."""
    chances = p_values(gaps)
    return {m: bool(g.mean > 0) for m, g in gaps.items() if chances[m] < ranking.LEVEL}


def of_task(
    task: tables.Tables, places: Sequence[ranking.Place]
) -> tuple[str, dict[str, Gap]]:
    """Returns the reference, or else the best method, and differences in points."""
    name = reference(task) or places[0].method
    return name, gaps_to(
        {place.method: place.values.to_frame() for place in places}, name
    )

"""Texts of cards, with numbers that are expressions over the kept runs.

A text is a Jinja template. It may call

    gap(better, worse, runs="...")   differences of two sides, a `Numbers`
    value(side, runs="...")          values of a side, a `Numbers`
    rounds(run), seeds(run)          of a kept run

Sides have the names of the card's `sides`, and `runs` is a pattern of names. `where`
selects environments by their fields, `fields` adds fields to a side, `data` selects
other test data, and `measure` another measure of a side.
Printing a `Numbers` gives its mean, or its range if its values differ.
"""

import dataclasses
import fnmatch
from collections.abc import Mapping, Sequence
from typing import Any

from experiments import texts
from experiments.cards import scale
from experiments.cards.runs import Run, Side
from fedjax_pfl.core import checks
from fedjax_pfl.results import paired

__all__ = ["Numbers", "fill"]


@dataclasses.dataclass(frozen=True)
class Numbers:
    """One number per run and environment, in percent."""

    values: Sequence[float]  # the numbers, at least one
    signed: bool = False  # whether they are differences, printed with their sign

    @property
    def mean(self) -> str:
        """Their mean."""
        return self._text(sum(self.values) / len(self.values))

    @property
    def low(self) -> str:
        """The smallest."""
        return self._text(min(self.values))

    @property
    def high(self) -> str:
        """The largest."""
        return self._text(max(self.values))

    @property
    def size(self) -> str:
        """The largest without its sign."""
        return f"{max(map(abs, self.values)):.1f}"

    def __str__(self) -> str:
        if self.low == self.high:
            return self.mean
        return f"{self.low} to {self.high}"

    def _text(self, value: float) -> str:
        return f"{value:+.1f}" if self.signed else f"{value:.1f}"


def fill(text: str, runs: Mapping[str, Run], sides: Mapping[str, Side]) -> str:
    """Returns a template's text with numbers of the runs; checks that they exist."""

    def chosen(pattern: str, where: Mapping[str, Any]) -> list[Run]:
        names = [name for name in runs if fnmatch.fnmatch(name, pattern)]
        parts = [part for n in names for _, part in runs[n].environments(where)]
        if not parts:
            raise checks.InputError(f"Expected kept runs '{pattern}', there are none.")
        return parts

    def side_of(name: str, fields: Mapping[str, Any]) -> Side:
        checks.known(name, sides, "side of the card")
        side = sides[name]
        where = {**side.where, **fields.get("fields", {})}
        return dataclasses.replace(
            side, where=where, data=fields.get("data", side.data)
        )

    def value(name: str, *, runs: str, where: Any = None, **fields: Any) -> Numbers:
        side, measure = side_of(name, fields), fields.get("measure", "accuracy")
        series = [run.values(side, measure) for run in chosen(runs, where or {})]
        return _numbers([v.mean() for v in series if v is not None], name, runs)

    def gap(
        better: str, worse: str, *, runs: str, where: Any = None, **fields: Any
    ) -> Numbers:
        better_side, worse_side = side_of(better, fields), side_of(worse, fields)
        gaps = []
        for run in chosen(runs, where or {}):
            pair = (run.values(better_side), run.values(worse_side))
            if pair[0] is not None and pair[1] is not None:
                gaps.append(paired.interval(*pair).mean)
        numbers = _numbers(gaps, f"{better} and {worse}", runs)
        return dataclasses.replace(numbers, signed=True)

    def rounds(name: str) -> int:
        return scale.rounds_of(runs[name].command)

    def seeds(name: str) -> int:
        return int(runs[name].rows["seed"].nunique())

    return texts.rendered(text, gap=gap, value=value, rounds=rounds, seeds=seeds)


def _numbers(values: Sequence[float], names: str, runs: str) -> Numbers:
    """Returns the numbers that are not NaN, at least one."""
    finite_values = [float(value) for value in values if value == value]
    if not finite_values:
        raise checks.InputError(f"Expected values of {names} in runs '{runs}'.")
    return Numbers(finite_values)

"""The rule for verdicts on claims, from paired differences.

A claim is that the difference is above zero. Its verdict is the first that applies:

* `not comparable`: it is the paper's, and the run is below the paper's scale.
* `undecided`: fewer than five pairs of seeds did not diverge.
* `equal`: the difference lies within `delta`, by two one-sided tests.
* `undecided`: it is smaller than differences between repetitions of a run.
* `holds`, `does not hold`: it is above, or below, zero, by the paired test.
* `undecided`: in all other cases.

Tests are Student's, at five percent, corrected by Holm's method for the number of
claims of a table, separately for tests of equality and of difference.
"""

import dataclasses
from collections.abc import Sequence

from fedjax_pfl.results import paired

__all__ = ["LEVEL", "MIN_PAIRS", "Rule", "explain", "verdicts"]

LEVEL, MIN_PAIRS = 0.05, 5


@dataclasses.dataclass(frozen=True)
class Rule:
    """Limits of a card, in percent of accuracy (or of annualized return)."""

    delta: float = 0.0  # bound of differences that count as equal; 0 for none
    tolerance: float = 0.0  # largest difference between a run and its repetition


def verdicts(
    gaps: Sequence[paired.Interval], rule: Rule, comparable: Sequence[bool]
) -> list[str]:
    """Returns a verdict per paired difference, each claimed to be above zero."""
    indices = [
        k
        for k, (gap, is_comparable) in enumerate(zip(gaps, comparable, strict=True))
        if is_comparable and gap.pairs >= MIN_PAIRS
    ]
    # Two one-sided tests: the size of the difference is below delta.
    equality_tests = [gaps[k].beyond(rule.delta - abs(gaps[k].mean)) for k in indices]
    equality_tests = paired.holm(equality_tests)
    difference_tests = paired.holm([gaps[k].p_value for k in indices])
    equality_p = dict(zip(indices, equality_tests, strict=True))
    difference_p = dict(zip(indices, difference_tests, strict=True))

    def verdict(k: int) -> str:
        if not comparable[k]:
            return "not comparable"
        if k not in difference_p:
            return "undecided"
        if equality_p[k] < LEVEL:
            return "equal"
        if abs(gaps[k].mean) < rule.tolerance or not difference_p[k] < LEVEL:
            return "undecided"
        return "holds" if gaps[k].mean > 0 else "does not hold"

    return [verdict(k) for k in range(len(gaps))]


def explain(rule: Rule) -> str:
    """Returns the rule in a paragraph."""
    delta = f" Within {rule.delta:g} points two sides are equal." if rule.delta else ""
    limit = (
        f" Closer than {rule.tolerance:g} points, by which repeated runs differ,"
        " nothing is decided."
        if rule.tolerance
        else ""
    )
    return (
        f"A verdict wants at least {MIN_PAIRS} pairs of seeds and a test at"
        f" {LEVEL:.0%}, corrected by Holm's method for the number of claims of its"
        f" table.{delta}{limit} Runs below the paper's scale are not comparable:"
        " they decide our own claims only."
    )

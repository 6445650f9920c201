"""The rule for verdicts: what a paired difference says of a claim.

A claim is that the difference is above zero. Its verdict is the first of these:

* `not comparable`: it is the paper's, and the run is below the paper's scale.
* `undecided`: fewer than five pairs of seeds are left.
* `equal`: the difference lies within `delta`, by two one-sided tests.
* `undecided`: it is closer to zero than a repetition of the run may differ.
* `holds`, `does not hold`: it is above, or below, zero, by the paired test.
* `undecided`: else.

Tests are Student's, at five percent, corrected by Holm's method for the number of
claims of a table, those of equality and those of difference each among themselves.
"""

import dataclasses
from collections.abc import Sequence

from fedjax_pfl.results import paired

__all__ = ["DECIDED", "LEVEL", "MIN_PAIRS", "Rule", "explain", "verdicts"]

LEVEL, MIN_PAIRS = 0.05, 5
DECIDED = ("holds", "equal", "does not hold")


@dataclasses.dataclass(frozen=True)
class Rule:
    """Limits of a card, in percent of accuracy (or of annualized return).

    Attributes:
      delta: differences that are within it are equal; 0 for none.
      tolerance: largest difference between a run and its repetition.
    """

    delta: float = 0.0
    tolerance: float = 0.0


def verdicts(
    gaps: Sequence[paired.Interval], rule: Rule, comparable: Sequence[bool]
) -> list[str]:
    """Judges the claims of one table.

    Args:
      gaps: paired differences, claimed to be above zero.
      rule: limits of the card.
      comparable: whether each claim is one that its run may decide.

    Returns:
      A verdict per claim.
    """
    judged = [
        k
        for k, (gap, may) in enumerate(zip(gaps, comparable, strict=True))
        if may and gap.pairs >= MIN_PAIRS
    ]
    # Two one-sided tests: the size of the difference is below delta.
    outside = [gaps[k].beyond(rule.delta - abs(gaps[k].mean)) for k in judged]
    outside = paired.holm(outside)
    no_difference = paired.holm([gaps[k].p_value for k in judged])
    equal = dict(zip(judged, outside, strict=True))
    apart = dict(zip(judged, no_difference, strict=True))

    def verdict(k: int) -> str:
        if not comparable[k]:
            return "not comparable"
        if k not in apart:
            return "undecided"
        if equal[k] < LEVEL:
            return "equal"
        if abs(gaps[k].mean) < rule.tolerance or not apart[k] < LEVEL:
            return "undecided"
        return "holds" if gaps[k].mean > 0 else "does not hold"

    return [verdict(k) for k in range(len(gaps))]


def explain(rule: Rule) -> str:
    """Says the rule in a paragraph."""
    equal = f" Within {rule.delta:g} points two sides are equal." if rule.delta else ""
    close = (
        f" Closer than {rule.tolerance:g} points, by which repeated runs differ,"
        " nothing is decided."
        if rule.tolerance
        else ""
    )
    return (
        f"A verdict wants at least {MIN_PAIRS} pairs of seeds and a test at"
        f" {LEVEL:.0%}, corrected by Holm's method for the number of claims of its"
        f" table.{equal}{close} Runs below the paper's scale are not comparable:"
        " they decide our own claims only."
    )

"""Headline claims of papers, each with its verdict in one line."""

import dataclasses
import itertools
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal

import numpy as np
import pandas as pd

from experiments.cards import claims, verdicts
from experiments.cards.runs import Run
from fedjax_pfl.core import checks
from fedjax_pfl.results import paired

__all__ = ["Headline", "Outcome", "judge", "of"]

_WORDS = {
    "holds": "reproduces",
    "equal": "does not (equal)",
    "does not hold": "does not",
}


@dataclasses.dataclass(frozen=True)
class Headline:
    """Central claim of a paper."""

    text: str  # the claim in words; it begins with `ours` if no paper makes it
    printed: str  # the paper's number, or an empty text
    claims: Sequence[claims.Claim]  # its claims about single runs
    reason: str  # why ours differs, or the meaning of the number, in a sentence
    # The tested quantity. `mean`: the side's difference to the mean of the others, mean
    # over environments; `relative`: the difference in percent of the others; `best`:
    # whether the side is above the best other side in every environment; `every`:
    # whether every single claim holds; `trend`: whether every slope over `steps`
    # successive claims is above zero; `equal`: whether all sides are equal.
    of: Literal["mean", "relative", "best", "every", "trend", "equal"] = "every"
    gap: float | None = None  # the paper's number, for `mean` and `relative`
    steps: int = 1  # number of claims per slope


@dataclasses.dataclass(frozen=True)
class Outcome:
    """Verdict of our runs on a headline."""

    verdict: str  # `reproduces`, `does not`, `does not (equal)` or `open`
    ours: str  # mean difference, with its interval or its range over single claims
    counts: str  # numbers of single claims by verdict, in words; empty for a mean


def of(method: str, by_key: Mapping[str, Sequence[claims.Claim]]) -> list[Headline]:
    """Returns the headlines in `texts/<method>.toml`, with the claims of their keys."""
    file = Path(__file__).parent / "texts" / f"{method}.toml"
    fields = tomllib.loads(file.read_text("utf-8"))
    for key in by_key:
        checks.known(key, fields, "headline")
    return [
        Headline(**{"printed": "", "claims": by_key.get(key, ())} | row)
        for key, row in fields.items()
    ]


def judge(headline: Headline, runs: Mapping[str, Run], rule: verdicts.Rule) -> Outcome:
    """Judges a headline."""
    decisions = itertools.chain(*claims.decide(headline.claims, runs, rule))
    words = Counter(decision.verdict for decision in decisions)
    counts = ", ".join(f"{count} {name}" for name, count in words.most_common())
    evidence = list(itertools.chain(*(claims.gaps(c, runs) for c in headline.claims)))
    comparable = [e for e in evidence if e.is_comparable]
    # A mean has one test, over seeds. A mean that is equal to zero does not reproduce
    # the claim, and neither does a mean below zero with an interval that excludes the
    # paper's number. In the other cases Holm's correction is for the tests of the
    # headline. It reproduces if all comparable claims hold. It does not if one claim
    # does not hold, or if all that do not hold are equal. Otherwise it is open. A claim
    # of equal sides reproduces if all comparable sides are equal.
    if headline.of in ("mean", "relative"):
        verdict, summary = _mean_verdict(headline, comparable, rule)
        return Outcome(verdict, summary or _range(evidence), "" if summary else counts)
    if headline.of in ("trend", "best"):
        if headline.of == "trend":
            limits, gaps = verdicts.Rule(), list(_slopes(comparable, headline.steps))
            summary = " a step"
        else:
            limits, gaps = rule, [_gap(row, "best") for row in _rows(comparable)]
            summary = " to the best of them"
        words = Counter(verdicts.verdicts(gaps, limits, [True] * len(gaps)))
        counts = ", ".join(f"{count} {name}" for name, count in words.most_common())
        means = [gap.mean for gap in gaps]
        summary = _spread(means, "+.1f") + summary if means else _range(evidence)
        return Outcome(_verdict(words), summary, counts)
    # Claims below the paper's scale count neither for nor against the headline.
    words.pop("not comparable", None)
    if headline.of == "equal":
        words["holds"], words["equal"] = words["equal"], 0
    verdict = _verdict(words) if comparable else "open"
    return Outcome(verdict, _range(comparable or evidence, comparable), counts)


def _mean_verdict(
    headline: Headline, evidence: Sequence[claims.Evidence], rule: verdicts.Rule
) -> tuple[str, str]:
    """Returns verdict and text of a mean over environments; no text without pairs."""
    gap, is_relative = _gap(evidence, headline.of), headline.of == "relative"
    if not gap.pairs:
        return "open", ""
    (word,) = verdicts.verdicts([gap], verdicts.Rule() if is_relative else rule, [True])
    verdict = _WORDS.get(word, "open")
    is_excluded = headline.gap is not None and gap.mean + gap.margin < headline.gap
    if verdict == "open" and gap.mean <= 0 and is_excluded:
        verdict = "does not"
    if is_relative:
        return verdict, gap.text("+.0f").replace(" [", " % [")
    text = str(gap)
    if any(len(row) > 1 for row in _rows(evidence)):
        text += f"; best: {_gap(evidence, 'best')}"
    return verdict, text


def _verdict(words: Counter) -> str:
    """Returns the verdict of a headline that needs all single claims to hold."""
    if words["does not hold"]:
        return "does not"
    if words and words["holds"] == words.total():
        return "reproduces"
    if words["equal"] and words["holds"] + words["equal"] == words.total():
        return "does not (equal)"
    return "open"


def _rows(evidence: Sequence[claims.Evidence]) -> list[list[claims.Evidence]]:
    """Groups evidence with enough seeds on one side in one environment."""
    rows: dict[tuple[str, str, str], list[claims.Evidence]] = {}
    for part in evidence:
        if part.differences.count() >= verdicts.MIN_PAIRS:
            key = part.claim.run, str(part.claim.better), part.where
            rows.setdefault(key, []).append(part)
    return list(rows.values())


def _gap(evidence: Sequence[claims.Evidence], of: str) -> paired.Interval:
    """Returns the mean over environments of a side's differences to other sides."""
    differences = []
    for row in _rows(evidence):
        if of == "best":
            # The best of the others by its mean over seeds, which favors them.
            differences.append(min((e.differences for e in row), key=pd.Series.mean))
            continue
        mean = pd.concat([e.differences for e in row], axis=1).mean(axis=1)
        if of == "relative":
            mean = 100 * mean / pd.concat([e.theirs for e in row], axis=1).mean(axis=1)
        differences.append(mean)
    if not differences:
        return paired.of_mean(pd.Series(dtype=float))
    return paired.of_mean(pd.concat(differences, axis=1, join="inner").mean(axis=1))


def _slopes(
    evidence: Sequence[claims.Evidence], steps: int
) -> Iterator[paired.Interval]:
    """Yields least-squares slopes of values, from their successive differences."""
    # The slope of n + 1 values at even distances is the mean of their n differences
    # with weights k (n + 1 - k).
    place = np.arange(1, steps + 1)
    weights = place * (steps + 1 - place)
    for start in range(0, len(evidence) - steps + 1, steps):
        chain = [e.differences for e in evidence[start : start + steps]]
        rises = pd.concat(chain, axis=1, join="inner")
        yield paired.of_mean((rises * weights).sum(axis=1) / weights.sum())


def _range(
    evidence: Sequence[claims.Evidence], comparable: Sequence[claims.Evidence] = ()
) -> str:
    """Returns the mean, the smallest and the largest difference."""
    means = [e.differences.mean() for e in evidence if e.differences.count()]
    if not means:
        return "–"
    text = _spread(means, "+.1f" if evidence[0].is_accuracy else "+.3f")
    return text if comparable else f"{text}, at reduced scale"


def _spread(means: Sequence[float], form: str) -> str:
    """Formats the mean of numbers, with the smallest and the largest."""
    text = f"{sum(means) / len(means):{form}}"
    if len(means) > 1:
        text += f" ({min(means):{form}} to {max(means):{form}})"
    return text

"""Headline claims of papers: what reproduces, in one line each."""

import dataclasses
import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Literal

import pandas as pd

from experiments.cards import claims, verdicts
from experiments.cards.runs import Run
from fedjax_pfl.results import paired

__all__ = ["Headline", "Outcome", "judge"]

_WORDS = {"holds": "reproduces", "equal": "equal", "does not hold": "does not"}


@dataclasses.dataclass(frozen=True)
class Headline:
    """Claim that a paper leads with.

    Attributes:
      text: the claim in words.
      printed: the paper's number for it, or nothing.
      claims: what it says of single runs.
      reason: why ours differs, or what the number means, in one sentence.
      of: whether it is about the `mean` of the single claims' differences, wants
        `every` one of them to hold, or says that all sides are `equal`.
    """

    text: str
    printed: str
    claims: Sequence[claims.Claim]
    reason: str
    of: Literal["mean", "every", "equal"] = "every"


@dataclasses.dataclass(frozen=True)
class Outcome:
    """Verdict of our runs on a headline.

    Attributes:
      verdict: `reproduces`, `equal`, `does not` or `open`.
      ours: mean difference, with its interval or its range over single claims.
      counts: how many single claims have which verdict, in words.
    """

    verdict: str
    ours: str
    counts: str


def judge(headline: Headline, runs: Mapping[str, Run], rule: verdicts.Rule) -> Outcome:
    """Judges a headline.

    Of a mean, seeds are the repetitions: differences are averaged over those single
    claims that have enough of them, then judged like any other. Of every claim, it
    reproduces if all comparable ones hold, is equal if all hold or are equal, does not
    reproduce if one does not hold; else it is open. Sides that are said to be equal
    reproduce if all comparable ones are.
    """
    decisions = itertools.chain(*claims.decide(headline.claims, runs, rule))
    words = Counter(decision.verdict for decision in decisions)
    counts = ", ".join(f"{count} {name}" for name, count in words.most_common())
    evidence = list(itertools.chain(*(claims.gaps(c, runs) for c in headline.claims)))
    comparable = [e for e in evidence if e.is_comparable]
    if headline.of == "mean":
        pooled = _pooled([e.differences for e in comparable])
        gap = paired.interval(pooled, 0 * pooled)
        (word,) = verdicts.verdicts([gap], rule, [True])
        if gap.pairs:
            return Outcome(_WORDS.get(word, "open"), str(gap), counts)
        return Outcome("open", _range(evidence), counts)
    words.pop("not comparable", None)
    if headline.of == "equal":
        words["holds"], words["equal"] = words["equal"], 0
    if words["does not hold"]:
        verdict = "does not"
    elif comparable and words["holds"] == words.total():
        verdict = "reproduces"
    elif comparable and words["holds"] + words["equal"] == words.total():
        verdict = "equal"
    else:
        verdict = "open"
    return Outcome(verdict, _range(comparable or evidence, comparable), counts)


def _pooled(differences: Sequence[pd.Series]) -> pd.Series:
    """Returns means over claims by seed, of the claims that have enough seeds."""
    enough = [d.dropna() for d in differences if d.count() >= verdicts.MIN_PAIRS]
    if not enough:
        return pd.Series(dtype=float)
    return pd.concat(enough, axis=1, join="inner").mean(axis=1)


def _range(
    evidence: Sequence[claims.Evidence], comparable: Sequence[claims.Evidence] = ()
) -> str:
    """Returns the mean of differences, and the smallest and the largest."""
    means = [e.differences.mean() for e in evidence if e.differences.count()]
    if not means:
        return "–"
    form = "+.1f" if evidence[0].is_accuracy else "+.3f"
    text = f"{sum(means) / len(means):{form}}"
    if len(means) > 1:
        text += f" ({min(means):{form}} to {max(means):{form}})"
    return text if comparable else f"{text}, at reduced scale"

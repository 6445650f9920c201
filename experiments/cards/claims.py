"""Claims of papers, and what committed runs say of them."""

import dataclasses
import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import pandas as pd

from experiments.cards import markdown, scale, verdicts
from experiments.cards.runs import Run, Side
from fedjax_pfl.results import paired

__all__ = [
    "Claim",
    "Decision",
    "Drawing",
    "Evidence",
    "decide",
    "gaps",
    "lines",
    "not_run",
    "of",
    "of_figures",
    "sentence_not_run",
]


@dataclasses.dataclass(frozen=True)
class Claim:
    """Claim that one side is better in the last round, on the mean over clients.

    Attributes:
      text: the claim in words; it begins with `ours` where no paper makes it.
      run: name of the run that decides it.
      better: the side claimed to be better.
      worse: the other side.
      across: whether the sides are of different environments of the run, which their
        fields name, and not compared in each.
      measure: `accuracy`, or one of `runs.LOSSES` or `runs.SPREADS`, of which less is
        better.
      only: values of environments in which it is claimed, by field.
      worse_run: name of the run of the other side, where that is not `run`; both then
        have one environment.
    """

    text: str
    run: str
    better: Side
    worse: Side
    across: bool = False
    measure: str = "accuracy"
    only: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    worse_run: str | None = None

    @property
    def is_ours(self) -> bool:
        """Returns whether no paper makes it, so that runs of any scale decide it."""
        return self.text.startswith("ours")


@dataclasses.dataclass(frozen=True)
class Decision:
    """Verdict of a run on a claim in one environment.

    Attributes:
      where: the environment.
      difference: its interval in words, or which side is missing.
      verdict: of `verdicts.verdicts`, or `not run`.
    """

    where: str
    difference: str
    verdict: str

    @property
    def is_missing(self) -> bool:
        """Returns whether there is no run that could decide."""
        return self.verdict == "not run" and not self.difference


@dataclasses.dataclass(frozen=True)
class Evidence:
    """Evidence of runs on a claim in one environment.

    Attributes:
      claim: the claim.
      where: the environment.
      ours: values of the side claimed to be better by seed; NaN where it diverged.
      theirs: values of the other side.
      is_comparable: whether the runs may decide the claim.
    """

    claim: Claim
    where: str
    ours: pd.Series
    theirs: pd.Series
    is_comparable: bool

    @property
    def is_accuracy(self) -> bool:
        """Returns whether values are accuracies; of other measures less is better."""
        return self.claim.measure == "accuracy"

    @property
    def differences(self) -> pd.Series:
        """Differences by seed, claimed to be above zero; NaN where a side diverged."""
        differences = self.ours.sub(self.theirs)
        return differences if self.is_accuracy else -differences

    @property
    def gap(self) -> paired.Interval:
        """Mean difference and its interval."""
        return paired.interval(self.differences, 0 * self.differences)


@dataclasses.dataclass(frozen=True)
class Drawing:
    """Figure of the paper.

    Attributes:
      number: what the paper calls it.
      text: what it shows.
      run: name of the run that draws ours.
      claims: what it is said to show.
    """

    number: str
    text: str
    run: str
    claims: Sequence[Claim]


def of(
    run: str, subject: str, pairs: Iterable[tuple[str, Side, Side]], **fields: Any
) -> list[Claim]:
    """Returns a claim per pair of sides.

    Args:
      run: name of the run that decides them.
      subject: how their texts begin.
      pairs: the rest of the text, the side claimed to be better, and the other side.
      **fields: further fields of the claims.
    """
    return [Claim(f"{subject}: {text}", run, *pair, **fields) for text, *pair in pairs]


def decide(
    claims: Sequence[Claim], runs: Mapping[str, Run], rule: verdicts.Rule
) -> list[list[Decision]]:
    """Returns the verdicts on the claims of one table.

    Args:
      claims: the claims, for whose number verdicts are corrected.
      runs: by name.
      rule: limits of the card; those of accuracies do not hold for other measures.

    Returns:
      A decision per claim and environment.
    """
    evidence = [list(_evidence(claim, runs)) for claim in claims]
    known = [e for parts in evidence for e in parts if isinstance(e, Evidence)]
    words: dict[int, str] = {}
    for is_accuracy in (True, False):
        own = [e for e in known if e.is_accuracy is is_accuracy]
        judged = verdicts.verdicts(
            [e.gap for e in own],
            rule if is_accuracy else verdicts.Rule(),
            [e.is_comparable for e in own],
        )
        words |= {id(e): word for e, word in zip(own, judged, strict=True)}
    return [
        [
            Decision(part.where, str(part.gap), words[id(part)])
            if isinstance(part, Evidence)
            else part
            for part in parts
        ]
        for parts in evidence
    ]


def gaps(claim: Claim, runs: Mapping[str, Run]) -> list[Evidence]:
    """Returns what runs measured of a claim, by environments that have both sides."""
    return [part for part in _evidence(claim, runs) if isinstance(part, Evidence)]


def _evidence(claim: Claim, runs: Mapping[str, Run]) -> Iterator[Evidence | Decision]:
    """Yields what was measured of a claim, or why it was not, by environment."""
    names = (claim.run, claim.worse_run or claim.run)
    missing = [name for name in names if name not in runs]
    if missing:
        yield Decision(f"run `{missing[0]}`", "", "not run")
        return
    if claim.worse_run is None:
        run = other = scale.best(runs, claim.run, (claim.better, claim.worse))
    else:
        run = scale.best(runs, claim.run, [claim.better])
        other = scale.best(runs, claim.worse_run, [claim.worse])
    if claim.across or other is not run:
        parts = [("all of these", run, other)]
    else:
        parts = [(title, part, part) for title, part in run.environments(claim.only)]
    is_comparable = claim.is_ours or all(
        scale.of(part).is_comparable for part in (run, other)
    )
    for title, *pair in parts:
        sides = (claim.better, claim.worse)
        values = [
            part.values(side, claim.measure)
            for part, side in zip(pair, sides, strict=True)
        ]
        lacking = [s for s, v in zip(sides, values, strict=True) if v is None]
        if lacking:
            yield Decision(title, f"no {lacking[0]}", "not run")
            continue
        yield Evidence(claim, title, *values, is_comparable)


def lines(
    claims: Sequence[Claim],
    runs: Mapping[str, Run],
    rule: verdicts.Rule,
    wide: tuple[str, ...] = (),
) -> Iterator[str]:
    """Yields a line per claim and environment; what was not run in one sentence.

    Args:
      claims: to be decided.
      runs: by name.
      rule: limits of the card.
      wide: starts of the names of runs whose claims have a table of their own, with a
        column per environment.

    Yields:
      Lines of Markdown.
    """
    if not claims:
        return
    yield from (
        "## Claims",
        "",
        f"{verdicts.explain(rule)} Differences of accuracies are in percent; those of"
        " losses are turned so that above zero is better. Of several settings of a"
        " side, that with the best mean accuracy on validation data counts, of those"
        " that diverged with the fewest seeds.",
    )
    by_run: dict[str, list[Claim]] = {}
    for claim in claims:
        is_wide = wide and claim.run in runs and claim.run.startswith(wide)
        by_run.setdefault(claim.run if is_wide else "", []).append(claim)
    others = by_run.pop("", [])
    for run, own in by_run.items():
        decisions = decide(own, runs, rule)
        by_text = {c.text: d for c, d in zip(own, decisions, strict=True)}
        yield from ("", f"### Claims about {run}", "", *_wide(by_text))
    rows, missing = [], {}
    for claim, decisions in zip(others, decide(others, runs, rule), strict=True):
        for decision in decisions:
            if decision.is_missing:
                missing[decision.where] = None
            else:
                rows.append((claim.text, *dataclasses.astuple(decision)))
    if rows or not by_run:
        header = ("claim", *(field.name for field in dataclasses.fields(Decision)))
        yield from ("", *markdown.table(header, rows))
    if missing:
        yield from ("", f"Claims that were not decided lack {', '.join(missing)}.")


def _wide(decisions: Mapping[str, Sequence[Decision]]) -> Iterator[str]:
    """Returns a table of a run's claims with one column per environment."""
    wheres = dict.fromkeys(d.where for row in decisions.values() for d in row)
    rows = []
    for text, row in decisions.items():
        cells = {d.where: f"{d.difference}: {d.verdict}" for d in row}
        rows.append([text, *(cells.get(where, "") for where in wheres)])
    return markdown.table(["claim", *wheres], rows)


def of_figures(
    figures: Sequence[Drawing],
    runs: Mapping[str, Run],
    rule: verdicts.Rule,
    reasons: Mapping[str, str],
) -> Iterator[str]:
    """Yields a line per figure, with how many of its claims hold.

    Args:
      figures: figures of the paper.
      runs: by name.
      rule: limits of the card.
      reasons: why runs were not run, by a part of their names.

    Yields:
      Lines of Markdown.
    """
    if not figures:
        return
    yield from (
        "## Figures",
        "",
        "The verdict counts what the figure is said to show, by environment; ours are"
        " below, under the name of the run.",
        "",
    )
    rows = []
    for figure in figures:
        if figure.run in runs:
            decisions = itertools.chain(*decide(figure.claims, runs, rule))
            counts = Counter(d.verdict for d in decisions).most_common()
            verdict = ", ".join(f"{name} {count}" for name, count in counts)
            command = runs[figure.run].command
        else:
            verdict, command = not_run(figure.run, reasons)
        cells = (figure.number, figure.text, figure.run, verdict, f"`{command}`")
        rows.append(cells)
    header = ("figure", "shows", "run", "verdict", "command")
    yield from (*markdown.table(header, rows), "")


def not_run(preset: str, reasons: Mapping[str, str]) -> tuple[str, str]:
    """Returns the verdict on a preset that was not run, and the command that would."""
    texts = (text for part, text in reasons.items() if part in preset)
    verdict = f"not run: {next(texts, 'not yet run here')}"
    return verdict, f"python -m experiments.sweep --preset {preset} --data-dir DIR"


def sentence_not_run(preset: str, reasons: Mapping[str, str]) -> str:
    """Returns verdict and command of `not_run` as a sentence."""
    verdict, command = not_run(preset, reasons)
    return f"{verdict[0].upper()}{verdict[1:]}. Command: `{command}`"

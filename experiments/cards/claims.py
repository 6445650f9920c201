"""Claims of papers, and the verdicts of committed runs."""

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
    """Claim that one side is better in the last round, on the mean over clients."""

    text: str  # the claim in words; it begins with `ours` if no paper makes it
    run: str  # name of the run that decides it
    better: Side  # the side claimed to be better
    worse: Side  # the other side
    # Whether the sides are in different environments of the run, named by their fields,
    # instead of compared in each environment.
    across: bool = False
    measure: str = "accuracy"  # or of `runs.LOSSES` or `SPREADS`: better if small
    # Values by field; restricts the claim to some environments.
    only: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    worse_run: str | None = None  # of the other side, if not `run`; one environment

    @property
    def is_ours(self) -> bool:
        """Returns whether the claim is ours: runs of any scale then decide it."""
        return self.text.startswith("ours")


@dataclasses.dataclass(frozen=True)
class Decision:
    """Verdict of a run on a claim in one environment."""

    where: str  # the environment
    difference: str  # its interval in words, or the missing side
    verdict: str  # a word of `verdicts.verdicts`, or `not run`

    @property
    def is_missing(self) -> bool:
        """Returns whether the deciding run is missing."""
        return self.verdict == "not run" and not self.difference


@dataclasses.dataclass(frozen=True)
class Evidence:
    """Evidence of runs on a claim in one environment."""

    claim: Claim
    where: str  # the environment
    ours: pd.Series  # by seed, of the side claimed to be better; NaN if it diverged
    theirs: pd.Series  # values of the other side
    is_comparable: bool  # whether the runs may decide the claim

    @property
    def is_accuracy(self) -> bool:
        """Returns whether values are accuracies; other measures are better if small."""
        return self.claim.measure == "accuracy"

    @property
    def differences(self) -> pd.Series:
        """Differences by seed, claimed to be above zero; NaN if a side diverged."""
        differences = self.ours.sub(self.theirs)
        return differences if self.is_accuracy else -differences

    @property
    def gap(self) -> paired.Interval:
        """Mean difference and its interval."""
        return paired.interval(self.differences, 0 * self.differences)


@dataclasses.dataclass(frozen=True)
class Drawing:
    """Figure of the paper."""

    number: str  # its number in the paper
    text: str  # its content
    run: str  # name of the run that draws ours
    claims: Sequence[Claim]  # the claims that it should show


def of(
    run: str, subject: str, pairs: Iterable[tuple[str, Side, Side]], **fields: Any
) -> list[Claim]:
    """Returns a claim per pair of sides, better and worse, with a text."""
    return [Claim(f"{subject}: {text}", run, *pair, **fields) for text, *pair in pairs]


def decide(
    claims: Sequence[Claim], runs: Mapping[str, Run], rule: verdicts.Rule
) -> list[list[Decision]]:
    """Returns the verdicts on the claims of one table, by claim and environment."""
    evidence = [list(_evidence(claim, runs)) for claim in claims]
    pieces = [e for parts in evidence for e in parts if isinstance(e, Evidence)]
    words: dict[int, str] = {}
    # The rule's limits are in percent, so other measures are decided without them.
    for is_accuracy in (True, False):
        group = [e for e in pieces if e.is_accuracy is is_accuracy]
        outcomes = verdicts.verdicts(
            [e.gap for e in group],
            rule if is_accuracy else verdicts.Rule(),
            [e.is_comparable for e in group],
        )
        words |= {id(e): word for e, word in zip(group, outcomes, strict=True)}
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
    """Returns the evidence on a claim, by environments that have both sides."""
    return [part for part in _evidence(claim, runs) if isinstance(part, Evidence)]


def _evidence(claim: Claim, runs: Mapping[str, Run]) -> Iterator[Evidence | Decision]:
    """Yields the evidence on a claim, or a missing decision, by environment."""
    names = (claim.run, claim.worse_run or claim.run)
    absent_runs = [name for name in names if name not in runs]
    if absent_runs:
        yield Decision(f"run `{absent_runs[0]}`", "", "not run")
        return
    # The largest run may lack some methods: both sides need one run that has them.
    if claim.worse_run is None:
        run = worse_run = scale.best(runs, claim.run, (claim.better, claim.worse))
    else:
        run = scale.best(runs, claim.run, [claim.better])
        worse_run = scale.best(runs, claim.worse_run, [claim.worse])
    if claim.across or worse_run is not run:
        parts = [("all of these", run, worse_run)]
    else:
        parts = [(title, part, part) for title, part in run.environments(claim.only)]
    is_comparable = claim.is_ours or all(
        scale.of(part).is_comparable for part in (run, worse_run)
    )
    for title, *pair in parts:
        sides = (claim.better, claim.worse)
        values = [
            part.values(side, claim.measure)
            for part, side in zip(pair, sides, strict=True)
        ]
        absent_sides = [s for s, v in zip(sides, values, strict=True) if v is None]
        if absent_sides:
            yield Decision(title, f"no {absent_sides[0]}", "not run")
            continue
        yield Evidence(claim, title, *values, is_comparable)


def lines(
    claims: Sequence[Claim],
    runs: Mapping[str, Run],
    rule: verdicts.Rule,
    wide: tuple[str, ...] = (),
) -> Iterator[str]:
    """Yields a line per claim and environment, and a sentence about missing runs."""
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
    # Verdicts are corrected for the claims of their table, so each decides its own.
    by_run: dict[str, list[Claim]] = {}
    for claim in claims:
        # Runs with many environments get a table of their own, with a column for each.
        is_wide = wide and claim.run in runs and claim.run.startswith(wide)
        by_run.setdefault(claim.run if is_wide else "", []).append(claim)
    table = by_run.pop("", [])
    for run, run_claims in by_run.items():
        decisions = decide(run_claims, runs, rule)
        by_text = {c.text: d for c, d in zip(run_claims, decisions, strict=True)}
        yield from ("", f"### Claims about {run}", "", *_wide(by_text))
    rows, absent_runs = [], {}
    for claim, decisions in zip(table, decide(table, runs, rule), strict=True):
        for decision in decisions:
            if decision.is_missing:
                absent_runs[decision.where] = None
            else:
                rows.append((claim.text, *dataclasses.astuple(decision)))
    if rows or not by_run:
        header = ("claim", *(field.name for field in dataclasses.fields(Decision)))
        yield from ("", *markdown.table(header, rows))
    if absent_runs:
        yield from ("", f"Claims that were not decided lack {', '.join(absent_runs)}.")


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
    """Yields a line per figure, with the counts of its claims' verdicts."""
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
    """Returns the verdict on a preset that was not run, and its command."""
    texts = (text for part, text in reasons.items() if part in preset)
    verdict = f"not run: {next(texts, 'not yet run here')}"
    return verdict, f"python -m experiments.sweep --preset {preset} --data-dir DIR"


def sentence_not_run(preset: str, reasons: Mapping[str, str]) -> str:
    """Returns verdict and command of `not_run` as a sentence."""
    verdict, command = not_run(preset, reasons)
    return f"{verdict[0].upper()}{verdict[1:]}. Command: `{command}`"

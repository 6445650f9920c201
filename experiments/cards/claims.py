"""Claims of papers, and what committed runs say of them."""

import dataclasses
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from experiments.cards import markdown
from experiments.cards.runs import Run, Side
from fedjax_pfl.results import paired

__all__ = [
    "Claim",
    "Decision",
    "Drawing",
    "decide",
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
      text: the claim in words.
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


@dataclasses.dataclass(frozen=True)
class Decision:
    """Verdict of a run on a claim in one environment.

    Attributes:
      where: the environment.
      difference: its interval in words.
      verdict: of the interval, or `not run`.
      command: what made the run.
    """

    where: str
    difference: str
    verdict: str
    command: str


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


def decide(claim: Claim, runs: Mapping[str, Run]) -> Iterator[Decision]:
    """Yields the verdicts of the runs on a claim, environment by environment."""
    names = (claim.run, claim.worse_run or claim.run)
    missing = [name for name in names if name not in runs]
    if missing:
        yield Decision(f"run `{missing[0]}`", "", "not run", "")
        return
    run, other = (runs[name] for name in names)
    command = f"`{run.command}`"
    if claim.across or other is not run:
        parts = [("all of these", run, other)]
    else:
        parts = [(title, part, part) for title, part in run.environments(claim.only)]
    for title, *pair in parts:
        sides = (claim.better, claim.worse)
        values = [
            part.values(side, claim.measure)
            for part, side in zip(pair, sides, strict=True)
        ]
        lacking = [s for s, v in zip(sides, values, strict=True) if v is None]
        if lacking:
            yield Decision(title, f"no {lacking[0]}", "not run", command)
            continue
        if claim.measure != "accuracy":
            values.reverse()  # less is better
        interval = paired.interval(*values)
        yield Decision(title, str(interval), interval.verdict, command)


def lines(
    claims: Sequence[Claim], runs: Mapping[str, Run], wide: tuple[str, ...] = ()
) -> Iterator[str]:
    """Yields a line per claim and environment; what was not run in one sentence.

    Args:
      claims: to be decided.
      runs: by name.
      wide: starts of the names of runs whose claims have a column per environment.

    Yields:
      Lines of Markdown.
    """
    if not claims:
        return
    yield from (
        "## Claims",
        "",
        "A claim holds if the whole interval is above zero, does not hold if it is"
        " below, and is undecided otherwise. Differences of accuracies are in percent;"
        " those of losses are turned so that above zero is better. Of several settings"
        " of a side, that with the best mean accuracy on validation data counts, of"
        " those that diverged with the fewest seeds.",
    )
    by_run: dict[str, dict[str, list[Decision]]] = {}
    rows, missing = [], {}
    for claim in claims:
        decisions = list(decide(claim, runs))
        missing |= {d.where: None for d in decisions if not d.command}
        if wide and claim.run in runs and claim.run.startswith(wide):
            by_run.setdefault(claim.run, {})[claim.text] = decisions
        else:
            decided = [d for d in decisions if d.command]
            rows += [(claim.text, *dataclasses.astuple(d)) for d in decided]
    for run, decisions in by_run.items():
        yield from ("", f"### Claims about {run}", "", *_wide(decisions))
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
    reasons: Mapping[str, str],
) -> Iterator[str]:
    """Yields a line per figure, with how many of its claims hold.

    Args:
      figures: figures of the paper.
      runs: by name.
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
            verdicts = (d.verdict for c in figure.claims for d in decide(c, runs))
            counts = Counter(verdicts).most_common()
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

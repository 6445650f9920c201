"""Claims of papers, and what committed runs say of them."""

import dataclasses
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from experiments.cards.runs import Run, Side
from fedjax_pfl.results import paired

__all__ = [
    "Claim",
    "Decision",
    "Drawing",
    "decide",
    "lines",
    "not_run",
    "of_figures",
    "sentence_not_run",
]


@dataclasses.dataclass(frozen=True)
class Claim:
    """That one side is better in the last round, on the mean over clients.

    Attributes:
      text: the claim in words.
      run: name of the run that decides it.
      better: the side claimed to be better.
      worse: the other side.
      across: whether the sides are of different environments of the run, which their
        fields name, and not compared in each.
      measure: `accuracy`, or one of `card_runs.LOSSES` or `SPREADS`, of which less is
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
    """A figure of the paper.

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


def decide(claim: Claim, runs: Mapping[str, Run]) -> Iterator[Decision]:
    """Decides a claim by the runs, environment by environment."""
    run, other = runs.get(claim.run), runs.get(claim.worse_run or claim.run)
    if run is None or other is None:
        missing = claim.run if run is None else claim.worse_run
        yield Decision(f"run `{missing}`", "", "not run", "")
        return
    command = f"`{run.command}`"
    if other is not run:
        whole = [("all of these", run, other)]
    elif claim.across:
        whole = [("all of these", run, run)]
    else:
        whole = [(title, part, part) for title, part in run.environments(claim.only)]
    for title, *parts in whole:
        sides = (claim.better, claim.worse)
        values = [
            part.values(side, claim.measure)
            for part, side in zip(parts, sides, strict=True)
        ]
        lacking = [s for s, v in zip(sides, values, strict=True) if v is None]
        if lacking:
            yield Decision(title, f"no {lacking[0]}", "not run", command)
            continue
        if claim.measure != "accuracy":
            values.reverse()  # less is better
        found = paired.interval(*values)
        yield Decision(title, str(found), found.verdict, command)


def lines(
    claims: Sequence[Claim], runs: Mapping[str, Run], wide: tuple[str, ...] = ()
) -> Iterator[str]:
    """Writes a line per claim and environment; what was not run in one sentence.

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
    decided = [(claim, list(decide(claim, runs))) for claim in claims]
    tables: dict[str, dict[str, list[Decision]]] = {}
    rows = []
    for claim, decisions in decided:
        if wide and claim.run in runs and claim.run.startswith(wide):
            tables.setdefault(claim.run, {})[claim.text] = decisions
            continue
        rows += [(claim.text, *dataclasses.astuple(d)) for d in decisions if d.command]
    for run, table in tables.items():
        yield from _wide(run, table)
    if rows or not tables:
        yield from ("", "| claim | where | difference | verdict | command |")
        yield "|---|---|---|---|---|"
        yield from (f"| {' | '.join(row)} |" for row in rows)
    missing = dict.fromkeys(
        d.where for _, decisions in decided for d in decisions if not d.command
    )
    if missing:
        yield from ("", f"Claims that were not decided lack {', '.join(missing)}.")


def _wide(run: str, decisions: Mapping[str, Sequence[Decision]]) -> Iterator[str]:
    """Writes a table of a run's claims with one column per environment."""
    wheres = dict.fromkeys(d.where for row in decisions.values() for d in row)
    yield from ("", f"### Claims about {run}", "")
    yield f"| claim | {' | '.join(wheres)} |"
    yield "|---" * (len(wheres) + 1) + "|"
    for text, row in decisions.items():
        cells = {d.where: f"{d.difference}: {d.verdict}" for d in row}
        yield f"| {text} | {' | '.join(cells.get(w, '') for w in wheres)} |"


def of_figures(
    figures: Sequence[Drawing],
    runs: Mapping[str, Run],
    reasons: Mapping[str, str],
) -> Iterator[str]:
    """Markdown: a line per figure, with how many of its claims hold.

    Args:
      figures: figures of the paper.
      runs: by name.
      reasons: why runs were not run, by a part of their names.
    """
    if not figures:
        return
    yield from (
        "## Figures",
        "",
        "The verdict counts what the figure is said to show, by environment; ours are"
        " below, under the name of the run.",
        "",
        "| figure | shows | run | verdict | command |",
        "|---|---|---|---|---|",
    )
    for figure in figures:
        run = runs.get(figure.run)
        if run is None:
            verdict, command = not_run(figure.run, reasons)
        else:
            verdict, command = _tally(figure.claims, runs), run.command
        cells = (figure.number, figure.text, figure.run, verdict, f"`{command}`")
        yield f"| {' | '.join(cells)} |"
    yield ""


def not_run(preset: str, reasons: Mapping[str, str]) -> tuple[str, str]:
    """Returns the verdict on a preset that was not run, and the command that would."""
    found = (text for part, text in reasons.items() if part in preset)
    verdict = f"not run: {next(found, 'not yet run here')}"
    return verdict, f"python -m experiments.sweep --preset {preset} --data-dir DIR"


def sentence_not_run(preset: str, reasons: Mapping[str, str]) -> str:
    """Returns the same as a sentence with the command."""
    verdict, command = not_run(preset, reasons)
    return f"{verdict[0].upper()}{verdict[1:]}. Command: `{command}`"


def _tally(claims: Sequence[Claim], runs: Mapping[str, Run]) -> str:
    """Counts how often claims hold."""
    found = Counter(d.verdict for claim in claims for d in decide(claim, runs))
    return ", ".join(f"{verdict} {count}" for verdict, count in found.most_common())

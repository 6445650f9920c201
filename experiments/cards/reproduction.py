"""The page of reproduced claims: headlines, coverage, and missing runs."""

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import pandas as pd

from experiments import texts
from experiments.cards import headlines, markdown, scale, tables, verdicts
from experiments.cards.pages import Card
from experiments.cards.runs import Run

__all__ = ["cells", "lacking", "render"]

Kept = Mapping[str, Mapping[str, Run]]
"""Kept runs by method, then by name."""

_REACHABLE = 7 * 24 * 60  # minutes of one core
_NO_DATA = {  # part of a preset's name -> missing data of the paper
    "cifar100": "the whole of CIFAR-100",
    "femnist": "the original FEMNIST",
    "sentiment": "the original Sent140",
}


def render(cards: Mapping[str, Card], kept: Kept, plans: pd.DataFrame) -> str:
    """Returns the page of all cards, with the planned times of missing runs."""
    # Headlines, then how much of each paper was run, then what is missing.
    return texts.page(
        "reproduction",
        min_pairs=verdicts.MIN_PAIRS,
        headlines={
            card.title: "\n".join(_headlines(card, kept[card.method]))
            for card in cards.values()
        },
        **_coverage(cards, kept),
        **_lacking(cards, kept, plans),
    )


def cells(cards: Iterable[Card], kept: Kept) -> Iterator[tuple[str, tables.Cell]]:
    """Yields the printed numbers of all tables, with the titles of their cards."""
    for card in cards:
        for table in card.printed:
            for cell in table.cells(kept[card.method]):
                yield card.title, cell


def lacking(card: Card, runs: Mapping[str, Run]) -> list[str]:
    """Returns the presets of a card that were not run completely."""
    claims = itertools.chain(card.claims, *(h.claims for h in card.headlines))
    claims = itertools.chain(claims, *(figure.claims for figure in card.figures))
    names = [claim.run for claim in claims if not claim.is_ours]
    names += [figure.run for figure in card.figures]
    names += [cell.run for table in card.printed for cell in table.cells(runs)]
    return sorted(name for name in dict.fromkeys(names) if not _is_made(runs.get(name)))


def _is_made(run: Run | None) -> bool:
    """Returns whether a run is its unchanged preset, with all rounds and seeds."""
    if run is None:
        return False
    experiment = scale.preset_of(run.command)
    is_whole = scale.rounds_of(run.command) >= experiment.num_rounds
    has_seeds = run.rows["seed"].nunique() >= len(experiment.seeds)
    return is_whole and has_seeds and "--set" not in run.command


def _headlines(card: Card, runs: Mapping[str, Run]) -> Iterator[str]:
    """Yields a line per headline."""
    rows = []
    for headline in card.headlines:
        outcome = headlines.judge(headline, runs, card.rule)
        verdict = f"**{outcome.verdict}**"
        numbers = (headline.printed or "–", outcome.ours)
        rows.append((headline.text, verdict, *numbers, headline.reason))
    link = f"[{card.title}](cards/{card.method}.md)"
    return markdown.table((link, "verdict", "paper", "ours", "reason"), rows)


def _coverage(cards: Mapping[str, Card], kept: Kept) -> dict[str, Any]:
    """Returns the numbers of printed values and figures by the scale of our runs."""
    counts: dict[str, Counter] = {}
    for title, cell in cells(cards.values(), kept):
        counts.setdefault(f"{title}, {cell.table}", Counter())[cell.level] += 1
    drawings: dict[tuple[str, int], Counter] = {}
    for card in cards.values():
        for figure in card.figures:
            level = scale.of(kept[card.method].get(figure.run)).level
            key = card.title, int(figure.number)
            drawings.setdefault(key, Counter())[level] += 1
    return {
        "total": sum(counts.values(), Counter()),
        "tables": _count_table("table", counts, tables.LEVELS),
        "figures": _count_table("figure", _figure_rows(drawings), scale.LEVELS),
    }


def _figure_rows(drawings: Mapping[tuple[str, int], Counter]) -> dict[str, Counter]:
    """Joins successive figures of one paper that were run at the same scales."""
    rows: dict[str, Counter] = {}

    def counts(item: tuple[tuple[str, int], Counter]) -> tuple[str, list]:
        (title, _), count = item
        return title, sorted(count.items())

    for (title, _), group in itertools.groupby(drawings.items(), counts):
        numbers, counters = zip(*((key[1], count) for key, count in group), strict=True)
        low, high = numbers[0], numbers[-1]
        which = f"figures {low} to {high}" if high > low else f"figure {low}"
        rows[f"{title}, {which}"] = sum(counters, Counter())
    return rows


def _count_table(
    heading: str, counts: Mapping[str, Counter], levels: Sequence[str]
) -> str:
    """Returns a line per table or figure, and a line of totals."""
    rows = [
        (name, *(str(count[level] or "") for level in levels))
        for name, count in counts.items()
    ]
    total = sum(counts.values(), Counter())
    rows.append(("all", *(str(total[level]) for level in levels)))
    return "\n".join(markdown.table((heading, *levels), rows))


def _lacking(
    cards: Mapping[str, Card], kept: Kept, plans: pd.DataFrame
) -> dict[str, Any]:
    """Returns the presets that were not run completely, with reasons and times."""
    times = plans.set_index("preset")
    near_rows, far_rows, total = [], [], 0.0
    for card in cards.values():
        runs = kept[card.method]
        for name in lacking(card, runs):
            reason = scale.of(runs.get(name)).reason or "not run"
            full_runs = [run for run in scale.parts(runs, name) if _is_made(run)]
            methods = sorted({m for run in full_runs for m in run.rows["algorithm"]})
            reason += f"; whole of {', '.join(methods)}" if methods else ""
            data_reasons = [text for part, text in _NO_DATA.items() if part in name]
            reason += f"; {data_reasons[0]} is not at hand" if data_reasons else ""
            minutes = times["minutes"].get(name)
            time = "not planned" if minutes is None else f"{minutes:,.0f}"
            twin = "" if minutes is None else times["like"][name]
            # Time does not help without the data, and is unknown without a plan.
            is_far = bool(data_reasons) or minutes is None or minutes > _REACHABLE
            (far_rows if is_far else near_rows).append((name, reason, time, twin))
            total += 0 if is_far else minutes
    header = ("preset", "now", "minutes", "like")
    return {
        "machines": " and ".join(sorted(set(plans["machine"]))) or "no machine",
        "hours": f"{_REACHABLE / 60:,.0f}",
        "minutes": f"{total:,.0f}",
        "near": near_rows,
        "near_table": "\n".join(markdown.table(header, near_rows)),
        "far": far_rows,
        "far_table": "\n".join(markdown.table(header, far_rows)),
    }

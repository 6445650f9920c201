"""Tables of cards: a paper's printed numbers and ours, and accuracies by a field."""

import dataclasses
import itertools
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import ClassVar

import pandas as pd
from scipy import special

from experiments.cards import claims, markdown, scale, verdicts
from experiments.cards import runs as card_runs

__all__ = ["LEVELS", "Cell", "Column", "Parts", "Printed", "Table", "by_field"]

FOLDER = Path(__file__).parents[1] / "printed"

Runs = Mapping[str, card_runs.Run]


LEVELS = (*scale.LEVELS, "diverged")
"""Scales, and the level of runs in which all seeds diverged."""


@dataclasses.dataclass(frozen=True)
class Cell:
    """Printed number of a paper."""

    table: str  # title of its table
    run: str  # name of our run
    level: str  # our level, one of `LEVELS`


@dataclasses.dataclass(frozen=True)
class Column:
    """Column of a printed table."""

    title: str  # its heading
    # Compared side of our runs; the file of printed numbers has its algorithm, and the
    # first word of its model.
    side: card_runs.Side
    bound: card_runs.Side | None = None  # another side, shown in parentheses


@dataclasses.dataclass(frozen=True)
class Table:
    """Table of a paper, compared with our runs."""

    title: str  # heading
    note: ClassVar[str]

    def body(
        self, runs: Runs, rule: verdicts.Rule, reasons: Mapping[str, str]
    ) -> Iterator[str]:
        """Yields the Markdown of the table without its heading and note."""
        raise NotImplementedError

    def summary(self, runs: Runs, rule: verdicts.Rule) -> Iterator[str]:
        """Yields the lines that a card shows of the table; none for most."""
        return iter(())

    def cells(self, runs: Runs) -> Iterator[Cell]:
        """Yields the printed numbers of the table, each once."""
        raise NotImplementedError

    def cell(
        self, name: str, run: card_runs.Run | None, values: pd.Series | None
    ) -> Cell:
        """Returns a printed number with the level of a run's values."""
        level = scale.of(None if values is None else run).level
        if values is not None and values.count() == 0:
            level = "diverged"
        return Cell(self.title, name, level)


@dataclasses.dataclass(frozen=True)
class Parts(Table):
    """Table with one part per run."""

    runs: Mapping[str, str]  # headings of its parts by the names of their runs

    def body(
        self, runs: Runs, rule: verdicts.Rule, reasons: Mapping[str, str]
    ) -> Iterator[str]:
        """Yields the parts, or the reason for a missing run."""
        for name, heading in self.runs.items():
            yield from ("", f"### {self.title}: {heading}", "")
            if name not in runs:
                yield claims.sentence_not_run(name, reasons)
            yield from self.part(name, runs)

    def part(self, name: str, runs: Runs) -> Iterator[str]:
        """Yields the part of a preset's runs, which may be missing."""
        raise NotImplementedError


@dataclasses.dataclass(frozen=True)
class Printed(Table):
    """Table of a paper, compared row by row with our runs of the same name."""

    file: str  # in `experiments/printed`: row, algorithm, model, mean, std
    run: str  # name of the run of a row, with `{row}` for the row's name
    columns: Sequence[Column]  # compared columns
    orders: Sequence[Sequence[int]]  # of columns; neighbors have the paper's order
    seeds: int  # repetitions behind a number of the paper
    note = (
        "Percent: the paper's mean ± standard deviation → ours; ≈ where the 95 %"
        " interval of their difference, from the standard errors of both, has zero in"
        " it. Differences of neighbors are claimed to have the paper's sign, also"
        " where that is not the one of most rows (turned)."
    )

    def body(
        self, runs: Runs, rule: verdicts.Rule, reasons: Mapping[str, str]
    ) -> Iterator[str]:
        """Yields one line per row of the table."""
        titles = [column.title for column in self.columns]
        gaps = [f"{titles[a]} − {titles[b]}" for a, b in self._neighbors]
        decisions = self._neighbor_decisions(runs, rule)
        rows = []
        for row, numbers in self._rows:
            name, run = self.run.format(row=row), self._run(row, runs)
            pairs = [self._printed(numbers, column) for column in self.columns]
            cells = [
                self._compared(column, *printed, run)
                for column, printed in zip(self.columns, pairs, strict=True)
            ]
            for is_turned, decision in decisions[row]:
                word = "turned " if is_turned else ""
                text = f"{word}{decision.difference}: {decision.verdict}"
                cells.append("" if decision.is_missing else text)
            level = scale.of(run).level
            if run is None:
                level, _ = claims.not_run(name, reasons)
            rows.append([row, *cells, level])
        yield from ("", *markdown.table(["row", *titles, *gaps, "scale"], rows))

    def summary(self, runs: Runs, rule: verdicts.Rule) -> Iterator[str]:
        """Yields a line per data set: scales, distances to the paper, and verdicts."""
        decisions = self._neighbor_decisions(runs, rule)
        titles = [column.title for column in self.columns]
        groups: dict[str, list[tuple[str, pd.DataFrame]]] = {}
        for row, numbers in self._rows:
            groups.setdefault(row.partition("_")[0], []).append((row, numbers))
        lines = []
        for name, rows in groups.items():
            levels = Counter(scale.of(self._run(row, runs)).level for row, _ in rows)
            words = Counter(d.verdict for row, _ in rows for _, d in decisions[row])
            comparable = [
                (self._run(row, runs), numbers)
                for row, numbers in rows
                if scale.of(self._run(row, runs)).is_comparable
            ]
            distances = [self._distance(column, comparable) for column in self.columns]
            lines.append([name, _count_text(levels), *distances, _count_text(words)])
        header = ["rows", "scale", *titles, "orders of neighbors"]
        yield from markdown.table(header, lines)

    def cells(self, runs: Runs) -> Iterator[Cell]:
        """Yields a cell per row and column."""
        for row, _ in self._rows:
            name, run = self.run.format(row=row), self._run(row, runs)
            for column in self.columns:
                values = None if run is None else run.values(column.side)
                yield self.cell(name, runs.get(name), values)

    def _run(self, row: str, runs: Runs) -> card_runs.Run | None:
        """Returns the run of a row."""
        return runs.get(self.run.format(row=row))

    @property
    def _rows(self) -> list[tuple[str, pd.DataFrame]]:
        """Printed numbers by row."""
        groups = pd.read_csv(FOLDER / self.file).groupby("row", sort=False)
        return [(str(row), numbers) for row, numbers in groups]

    @property
    def _neighbors(self) -> list[tuple[int, int]]:
        """Pairs of columns with a claimed order, the usually better one first."""
        return [pair for order in self.orders for pair in itertools.pairwise(order)]

    def _neighbor_decisions(
        self, runs: Runs, rule: verdicts.Rule
    ) -> dict[str, list[tuple[bool, claims.Decision]]]:
        """Decides all orders of neighbors, by row; True if the paper's is turned."""
        pairs, is_turned = [], []
        for row, numbers in self._rows:
            means = [self._printed(numbers, column)[0] for column in self.columns]
            for a, b in self._neighbors:
                is_turned.append(means[a] < means[b])
                # Claimed in the order that the paper prints in this row, even if most
                # rows have the other.
                better, worse = (b, a) if is_turned[-1] else (a, b)
                sides = (self.columns[better].side, self.columns[worse].side)
                pairs.append(claims.Claim(row, self.run.format(row=row), *sides))
        by_row: dict[str, list[tuple[bool, claims.Decision]]] = {}
        decisions = claims.decide(pairs, runs, rule)
        for claim, turned, (decision,) in zip(pairs, is_turned, decisions, strict=True):
            by_row.setdefault(claim.text, []).append((turned, decision))
        return by_row

    def _compared(
        self, column: Column, mean: float, std: float, run: card_runs.Run | None
    ) -> str:
        """Returns the paper's number and ours."""
        paper_text = f"{mean:.2f} ± {std:.2f}"
        values = None if run is None else run.values(column.side)
        if run is None or values is None:
            return paper_text
        if values.isna().any():
            return f"{paper_text} → {_mean(values)}"
        bound = run.values(column.bound) if column.bound else None
        bound_text = "" if bound is None else f" ({bound.mean():.2f})"
        mark = " ≈" if _agree(mean, std, self.seeds, values) else ""
        return f"{paper_text} → {markdown.mean_and_std(values)}{bound_text}{mark}"

    def _distance(
        self,
        column: Column,
        rows: Sequence[tuple[card_runs.Run | None, pd.DataFrame]],
    ) -> str:
        """Returns our mean minus the paper's, over rows, and the number that agree."""
        gaps, num_close = [], 0
        for run, numbers in rows:
            mean, std = self._printed(numbers, column)
            values = None if run is None else run.values(column.side)
            if values is not None and values.count():
                gaps.append(values.mean() - mean)
                num_close += _agree(mean, std, self.seeds, values)
        if not gaps:
            return ""
        return f"{sum(gaps) / len(gaps):+.1f} ({num_close} of {len(gaps)} ≈)"

    def _printed(self, printed: pd.DataFrame, column: Column) -> tuple[float, float]:
        """Returns the printed mean and standard deviation in percent."""
        is_column = printed["algorithm"] == column.side.algorithm
        is_column &= printed["model"] == column.side.model.partition(" ")[0]
        ((mean, std),) = printed.loc[is_column, ["mean", "std"]].to_numpy().tolist()
        return 100 * mean, 100 * std


def _agree(mean: float, std: float, seeds: int, values: pd.Series) -> bool:
    """Returns whether the interval of the difference of two means has zero in it."""
    count = int(values.count())
    if count < 2:
        return False
    # The degrees of freedom are Welch's; one number of ours has no interval.
    paper, runs = std**2 / seeds, float(values.var()) / count
    spread = paper**2 / (seeds - 1) + runs**2 / (count - 1)
    if not spread > 0:
        return bool(values.mean() == mean)
    width = special.stdtrit((paper + runs) ** 2 / spread, 0.975)
    return bool(abs(values.mean() - mean) <= width * math.sqrt(paper + runs))


def _count_text(counts: Counter) -> str:
    """Returns counts in words, the largest first."""
    return ", ".join(f"{name} {count}" for name, count in counts.most_common())


def _mean(values: pd.Series) -> str:
    """Returns mean and standard deviation over seeds, unless some diverged."""
    nans = int(values.isna().sum())
    return f"diverged in {nans}" if nans else markdown.mean_and_std(values)


def by_field(run: card_runs.Run, *fields: str) -> Iterator[str]:
    """Yields Markdown: a run's accuracies with one column per value of some fields."""
    keys = [name for name in run.environment if name not in fields]
    copies = {f"algorithm.{card_runs.short(name)}" for name in fields}  # in algorithms
    axes = tuple(name for name in run.fields if name not in (copies | set(fields)))
    table = run.rows if len(fields) > 1 else run.rows.sort_values(fields[0])
    # A row's column is the first of the fields that is not missing.
    columns = _heads(table, fields)
    heads = columns.unique()
    for values, part in run.rows.groupby(keys, sort=False, dropna=False):
        title = card_runs.title(dict(zip(keys, values, strict=True)))
        rows = []
        part = dataclasses.replace(run, rows=part, fields=axes)
        for name, model, setting in part.models():
            cells = (setting[columns.loc[setting.index] == head] for head in heads)
            series = [card_runs.by_seed(cell, card_runs.DATA[0]) for cell in cells]
            rows.append([name, model, *("" if v.empty else _mean(v) for v in series)])
        header = ["algorithm", "model", *heads]
        yield from (f"{title}:", "", *markdown.table(header, rows), "")


def _heads(rows: pd.DataFrame, fields: Sequence[str]) -> pd.Series:
    """Returns the heading of every row's column."""
    if len(fields) == 1:
        name = card_runs.short(fields[0])
        return rows[fields[0]].map(lambda value: f"{name} = {value:g}")
    heads = pd.Series(None, rows.index, dtype=object)
    for name in fields:
        heads = heads.fillna(rows[name]) if name in rows else heads
    return heads.fillna("none")

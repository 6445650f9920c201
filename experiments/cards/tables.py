"""Tables of cards: a paper's printed numbers beside ours, and accuracies by a field."""

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
"""Scales, and where all seeds diverged."""


@dataclasses.dataclass(frozen=True)
class Cell:
    """Printed number of a paper.

    Attributes:
      table: title of its table.
      run: name of the run that has ours.
      level: one of `LEVELS`, at which we have it.
    """

    table: str
    run: str
    level: str


@dataclasses.dataclass(frozen=True)
class Column:
    """Column of a printed table.

    Attributes:
      title: its heading.
      side: what of our runs is compared with it; the file of printed numbers has its
        algorithm, and the first word of its model.
      bound: what else of ours is shown in parentheses, or None.
    """

    title: str
    side: card_runs.Side
    bound: card_runs.Side | None = None


@dataclasses.dataclass(frozen=True)
class Table:
    """Table of a paper beside our runs.

    Attributes:
      title: heading.
    """

    title: str
    note: ClassVar[str]

    def body(
        self, runs: Runs, rule: verdicts.Rule, reasons: Mapping[str, str]
    ) -> Iterator[str]:
        """Yields the table without its heading and note.

        Args:
          runs: by name.
          rule: limits of the card.
          reasons: why runs were not run, by a part of their names.

        Yields:
          Lines of Markdown.
        """
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
        """Returns a printed number of which a run has some values."""
        level = scale.of(None if values is None else run).level
        if values is not None and values.count() == 0:
            level = "diverged"
        return Cell(self.title, name, level)


@dataclasses.dataclass(frozen=True)
class Parts(Table):
    """Table with one part per run.

    Attributes:
      runs: headings of its parts by the names of their runs.
    """

    runs: Mapping[str, str]

    def body(
        self, runs: Runs, rule: verdicts.Rule, reasons: Mapping[str, str]
    ) -> Iterator[str]:
        """Yields the parts, or why a run was not run."""
        for name, heading in self.runs.items():
            yield from ("", f"### {self.title}: {heading}", "")
            if name not in runs:
                yield claims.sentence_not_run(name, reasons)
            yield from self.part(name, runs)

    def part(self, name: str, runs: Runs) -> Iterator[str]:
        """Yields the part of the runs of a preset, of which there may be none."""
        raise NotImplementedError


@dataclasses.dataclass(frozen=True)
class Printed(Table):
    """Table of a paper, row by row beside our runs of the same name.

    Attributes:
      file: in `experiments/printed`: row, algorithm, model, mean, std of accuracies.
      run: name of the run of a row, with `{row}` for the row's name.
      columns: what is compared.
      orders: columns, by number, of which neighbors are claimed to be ordered as the
        paper has them.
      seeds: repetitions behind a number of the paper.
    """

    file: str
    run: str
    columns: Sequence[Column]
    orders: Sequence[Sequence[int]]
    seeds: int
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
        judged = self._judged(runs, rule)
        rows = []
        for row, numbers in self._rows:
            name, run = self.run.format(row=row), self._run(row, runs)
            theirs = [self._theirs(numbers, column) for column in self.columns]
            cells = [
                self._compared(column, *printed, run)
                for column, printed in zip(self.columns, theirs, strict=True)
            ]
            for is_turned, decision in judged[row]:
                turned = "turned " if is_turned else ""
                shown = f"{turned}{decision.difference}: {decision.verdict}"
                cells.append("" if decision.is_missing else shown)
            level = scale.of(run).level
            if run is None:
                level, _ = claims.not_run(name, reasons)
            rows.append([row, *cells, level])
        yield from ("", *markdown.table(["row", *titles, *gaps, "scale"], rows))

    def summary(self, runs: Runs, rule: verdicts.Rule) -> Iterator[str]:
        """Yields a line per data set: scales, distances to the paper, and verdicts."""
        judged = self._judged(runs, rule)
        titles = [column.title for column in self.columns]
        groups: dict[str, list[tuple[str, pd.DataFrame]]] = {}
        for row, numbers in self._rows:
            groups.setdefault(row.partition("_")[0], []).append((row, numbers))
        lines = []
        for name, rows in groups.items():
            levels = Counter(scale.of(self._run(row, runs)).level for row, _ in rows)
            words = Counter(d.verdict for row, _ in rows for _, d in judged[row])
            comparable = [
                (self._run(row, runs), numbers)
                for row, numbers in rows
                if scale.of(self._run(row, runs)).is_comparable
            ]
            distances = [self._distance(column, comparable) for column in self.columns]
            lines.append([name, _counted(levels), *distances, _counted(words)])
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
        printed = pd.read_csv(FOLDER / self.file)
        groups = printed.groupby("row", sort=False)
        return [(str(row), numbers) for row, numbers in groups]

    @property
    def _neighbors(self) -> list[tuple[int, int]]:
        """Columns whose order is claimed, the one that is mostly better first."""
        return [pair for order in self.orders for pair in itertools.pairwise(order)]

    def _judged(
        self, runs: Runs, rule: verdicts.Rule
    ) -> dict[str, list[tuple[bool, claims.Decision]]]:
        """Decides all orders of neighbors, by row; True where the paper's is turned."""
        pairs, is_turned = [], []
        for row, numbers in self._rows:
            means = [self._theirs(numbers, column)[0] for column in self.columns]
            for a, b in self._neighbors:
                is_turned.append(means[a] < means[b])
                first, second = (b, a) if is_turned[-1] else (a, b)
                sides = (self.columns[first].side, self.columns[second].side)
                pairs.append(claims.Claim(row, self.run.format(row=row), *sides))
        judged: dict[str, list[tuple[bool, claims.Decision]]] = {}
        decisions = claims.decide(pairs, runs, rule)
        for claim, turned, (decision,) in zip(pairs, is_turned, decisions, strict=True):
            judged.setdefault(claim.text, []).append((turned, decision))
        return judged

    def _compared(
        self, column: Column, mean: float, std: float, run: card_runs.Run | None
    ) -> str:
        """Returns the paper's number and ours."""
        theirs = f"{mean:.2f} ± {std:.2f}"
        values = None if run is None else run.values(column.side)
        if run is None or values is None:
            return theirs
        lost = int(values.isna().sum())
        if lost:
            return f"{theirs} → diverged in {lost}"
        bound = run.values(column.bound) if column.bound else None
        shown = "" if bound is None else f" ({bound.mean():.2f})"
        near = " ≈" if _agree(mean, std, self.seeds, values) else ""
        return f"{theirs} → {markdown.mean_and_std(values)}{shown}{near}"

    def _distance(
        self,
        column: Column,
        rows: Sequence[tuple[card_runs.Run | None, pd.DataFrame]],
    ) -> str:
        """Returns the mean of ours minus the paper's over rows, and how many agree."""
        gaps, near = [], 0
        for run, numbers in rows:
            mean, std = self._theirs(numbers, column)
            values = None if run is None else run.values(column.side)
            if values is not None and values.count():
                gaps.append(values.mean() - mean)
                near += _agree(mean, std, self.seeds, values)
        if not gaps:
            return ""
        return f"{sum(gaps) / len(gaps):+.1f} ({near} of {len(gaps)} ≈)"

    def _theirs(self, printed: pd.DataFrame, column: Column) -> tuple[float, float]:
        """Returns the printed mean and standard deviation in percent."""
        is_column = printed["algorithm"] == column.side.algorithm
        is_column &= printed["model"] == column.side.model.partition(" ")[0]
        ((mean, std),) = printed.loc[is_column, ["mean", "std"]].to_numpy().tolist()
        return 100 * mean, 100 * std


def _agree(mean: float, std: float, seeds: int, values: pd.Series) -> bool:
    """Returns whether the interval of the difference of two means has zero in it.

    The degrees of freedom are Welch's; one number of ours has no interval.
    """
    count = int(values.count())
    if count < 2:
        return False
    theirs, ours = std**2 / seeds, float(values.var()) / count
    spread = theirs**2 / (seeds - 1) + ours**2 / (count - 1)
    if not spread > 0:
        return bool(values.mean() == mean)
    width = special.stdtrit((theirs + ours) ** 2 / spread, 0.975)
    return bool(abs(values.mean() - mean) <= width * math.sqrt(theirs + ours))


def _counted(counts: Counter) -> str:
    """Returns how often there is what."""
    return ", ".join(f"{name} {count}" for name, count in counts.most_common())


def _mean(values: pd.Series) -> str:
    """Returns mean and standard deviation over seeds, unless some diverged."""
    lost = int(values.isna().sum())
    return f"diverged in {lost}" if lost else markdown.mean_and_std(values)


def by_field(run: card_runs.Run, *fields: str) -> Iterator[str]:
    """Yields accuracies of a run with one column per value of some fields.

    Args:
      run: the run.
      *fields: parts of its environments; a column has the first that is given.

    Yields:
      Lines of Markdown.
    """
    others = [name for name in run.environment if name not in fields]
    own = {f"algorithm.{card_runs.short(name)}" for name in fields}  # what it is told
    kept = tuple(name for name in run.fields if name not in (own | set(fields)))
    ordered = run.rows if len(fields) > 1 else run.rows.sort_values(fields[0])
    columns = _heads(ordered, fields)
    heads = columns.unique()
    for values, part in run.rows.groupby(others, sort=False, dropna=False):
        title = card_runs.title(dict(zip(others, values, strict=True)))
        rows = []
        part = dataclasses.replace(run, rows=part, fields=kept)
        for name, model, setting in part.models():
            at = (setting[columns.loc[setting.index] == head] for head in heads)
            tested = [card_runs.by_seed(cell, card_runs.DATA[0]) for cell in at]
            rows.append([name, model, *("" if v.empty else _mean(v) for v in tested)])
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

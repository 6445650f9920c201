"""Tables of cards: a paper's printed numbers beside ours, and accuracies by a field."""

import dataclasses
import itertools
import math
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import ClassVar

import pandas as pd

from experiments.cards import claims, markdown
from experiments.cards import runs as card_runs
from fedjax_pfl.results import paired

__all__ = ["Column", "Parts", "Printed", "Table", "by_field", "rounds_of"]

FOLDER = Path(__file__).parents[1] / "printed"


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
        self, runs: Mapping[str, card_runs.Run], reasons: Mapping[str, str]
    ) -> Iterator[str]:
        """Yields the table without its heading and note.

        Args:
          runs: by name.
          reasons: why runs were not run, by a part of their names.

        Yields:
          Lines of Markdown.
        """
        raise NotImplementedError


@dataclasses.dataclass(frozen=True)
class Parts(Table):
    """Table with one part per run.

    Attributes:
      runs: headings of its parts by the names of their runs.
    """

    runs: Mapping[str, str]

    def body(
        self, runs: Mapping[str, card_runs.Run], reasons: Mapping[str, str]
    ) -> Iterator[str]:
        """Yields the parts, or why a run was not run."""
        for name, heading in self.runs.items():
            yield from ("", f"### {self.title}: {heading}", "")
            if name not in runs:
                yield claims.sentence_not_run(name, reasons)
            yield from self.part(name, runs.get(name))

    def part(self, name: str, run: card_runs.Run | None) -> Iterator[str]:
        """Yields the part of a run; None if it was not run."""
        raise NotImplementedError


@dataclasses.dataclass(frozen=True)
class Printed(Table):
    """Table of a paper, row by row beside our runs of the same name.

    Attributes:
      file: in `experiments/printed`: row, algorithm, model, mean, std of accuracies.
      run: name of the run of a row, with `{row}` for the row's name.
      columns: what is compared.
      orders: columns, by number, that the paper orders from best to worst.
    """

    file: str
    run: str
    columns: Sequence[Column]
    orders: Sequence[Sequence[int]]
    note = (
        "Percent: the paper's mean ± standard deviation → ours. `holds`: every"
        " number of ours is within two standard deviations of the difference;"
        " `ordering holds`: the means of each group of columns are ordered as the"
        " paper's; else which pair is not (open: its interval decides nothing)."
    )

    def body(
        self, runs: Mapping[str, card_runs.Run], reasons: Mapping[str, str]
    ) -> Iterator[str]:
        """Yields one line per row of the table."""
        printed = pd.read_csv(FOLDER / self.file)
        titles = [column.title for column in self.columns]
        header = ["row", *titles, *self._gaps]
        header += ["seeds", "rounds", "verdict", "command"]
        rows = []
        for row, numbers in printed.groupby("row", sort=False):
            theirs = [self._theirs(numbers, column) for column in self.columns]
            shown = [f"{mean:.2f} ± {std:.2f}" for mean, std in theirs]
            name = self.run.format(row=row)
            if name in runs:
                cells = self._cells(theirs, shown, runs[name])
            else:
                verdict, command = claims.not_run(name, reasons)
                empty = [""] * (len(self._gaps) + 2)
                cells = [*shown, *empty, verdict, f"`{command}`"]
            rows.append([str(row), *cells])
        yield from ("", *markdown.table(header, rows))

    @property
    def _gaps(self) -> dict[str, tuple[int, int]]:
        """Neighbors in the orders by the heading of their gap, the better one first."""
        pairs = [pair for order in self.orders for pair in itertools.pairwise(order)]
        titles = [column.title for column in self.columns]
        return {f"{titles[a]} − {titles[b]}": (a, b) for a, b in pairs}

    def _cells(
        self,
        theirs: Sequence[tuple[float, float]],
        shown: Sequence[str],
        run: card_runs.Run,
    ) -> list[str]:
        """Returns all cells of a row but its name."""
        ours = [run.values(column.side) for column in self.columns]
        bounds = [run.values(c.bound) if c.bound else None for c in self.columns]
        cells = [
            f"{printed} → {_mean(values)}"
            + ("" if bound is None else f" ({bound.mean():.2f})")
            for printed, values, bound in zip(shown, ours, bounds, strict=True)
        ]
        gaps = {
            title: paired.interval(ours[better], ours[worse])
            for title, (better, worse) in self._gaps.items()
        }
        seeds, rounds = max(map(len, ours)), rounds_of(run.command)
        cells += [*map(str, gaps.values()), str(seeds), str(rounds)]
        return [*cells, self._verdict(theirs, ours, gaps), f"`{run.command}`"]

    def _theirs(self, printed: pd.DataFrame, column: Column) -> tuple[float, float]:
        """Returns the printed mean and standard deviation in percent."""
        is_column = printed["algorithm"] == column.side.algorithm
        is_column &= printed["model"] == column.side.model.partition(" ")[0]
        ((mean, std),) = printed.loc[is_column, ["mean", "std"]].to_numpy().tolist()
        return 100 * mean, 100 * std

    def _verdict(
        self,
        theirs: Sequence[tuple[float, float]],
        ours: Sequence[pd.Series],
        gaps: Mapping[str, paired.Interval],
    ) -> str:
        """Returns what the note explains."""
        if all(_agree(*printed, v) for printed, v in zip(theirs, ours, strict=True)):
            return "holds"
        wrong = []
        for title, (better, worse) in self._gaps.items():
            gap, is_ordered = gaps[title], theirs[better][0] > theirs[worse][0]
            if is_ordered and not gap.mean >= 0:
                is_open = " (open)" if gap.verdict == "undecided" else ""
                wrong.append(f"{title} is {gap.mean:+.2f}{is_open}")
        return f"fails: {'; '.join(wrong)}" if wrong else "ordering holds"


def _agree(mean: float, std: float, values: pd.Series) -> bool:
    """Tells whether two means differ by at most two standard deviations of one seed."""
    spread = float(values.std()) if len(values) > 1 else 0.0
    return abs(float(values.mean()) - mean) <= 2 * math.hypot(std, spread)


def _mean(values: pd.Series) -> str:
    """Returns mean and standard deviation over seeds, unless some diverged."""
    lost = int(values.isna().sum())
    return f"diverged in {lost}" if lost else markdown.mean_and_std(values)


def rounds_of(command: str) -> int:
    """Returns the rounds of a sweep's command: its option, or its preset's number."""
    import experiments.presets  # noqa: F401 (adds those of the papers)
    from fedjax_pfl.command import presets

    words = shlex.split(command)
    if "--rounds" in words:
        return int(words[words.index("--rounds") + 1])
    return presets.get(words[words.index("--preset") + 1]).num_rounds


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

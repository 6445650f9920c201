"""Tables of cards: a paper's printed numbers beside ours, and accuracies by a field."""

import dataclasses
import itertools
import math
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pandas as pd

from experiments.cards import claims
from experiments.cards import runs as card_runs
from fedjax_pfl.results import paired

__all__ = ["Column", "Printed", "by_field", "rounds_of"]

FOLDER = Path(__file__).parents[1] / "printed"


@dataclasses.dataclass(frozen=True)
class Column:
    """One column of a printed table.

    Attributes:
      title: its heading.
      algorithm: its algorithm in the file of printed numbers.
      model: its model there.
      side: what of our runs is compared with it.
      bound: what else of ours is shown in parentheses, or None.
    """

    title: str
    algorithm: str
    model: str
    side: card_runs.Side
    bound: card_runs.Side | None = None


@dataclasses.dataclass(frozen=True)
class Printed:
    """A table of a paper, row by row beside our runs of the same name.

    Attributes:
      title: heading.
      file: in `experiments/printed`: row, algorithm, model, mean, std of accuracies.
      run: name of the run of a row, with `{row}` for the row's name.
      columns: what is compared.
      orders: columns, by number, that the paper orders from best to worst.
    """

    title: str
    file: str
    run: str
    columns: Sequence[Column]
    orders: Sequence[Sequence[int]]

    def lines(
        self, runs: Mapping[str, card_runs.Run], reasons: Mapping[str, str]
    ) -> Iterator[str]:
        """Markdown: one line per row of the table.

        Args:
          runs: by name.
          reasons: why runs were not run, by a part of their names.
        """
        table = pd.read_csv(FOLDER / self.file)
        yield from (f"## {self.title}", "")
        yield (
            "Percent: the paper's mean ± standard deviation → ours. `holds`: every"
            " number of ours is within two standard deviations of the difference;"
            " `ordering holds`: the means of each group of columns are ordered as the"
            " paper's; else which pair is not (open: its interval decides nothing)."
        )
        titles = [column.title for column in self.columns]
        gaps = [f"{self._gap(*pair)}" for pair in self._pairs()]
        header = ["row", *titles, *gaps, "seeds", "rounds", "verdict", "command"]
        yield from ("", f"| {' | '.join(header)} |", "|---" * len(header) + "|")
        for row, printed in table.groupby("row", sort=False):
            run = runs.get(self.run.format(row=row))
            if run is None:
                cells = self._not_run(str(row), printed, reasons)
            else:
                cells = self._cells(printed, run)
            yield f"| {row} | {' | '.join(cells)} |"
        yield ""

    def _pairs(self) -> list[tuple[int, int]]:
        """Neighbors in the orders, the better one first."""
        return [pair for order in self.orders for pair in itertools.pairwise(order)]

    def _gap(self, better: int, worse: int) -> str:
        return f"{self.columns[better].title} − {self.columns[worse].title}"

    def _not_run(
        self, row: str, printed: pd.DataFrame, reasons: Mapping[str, str]
    ) -> list[str]:
        """Cells of a row without a run: the paper's numbers, and why."""
        theirs = [self._theirs(printed, column) for column in self.columns]
        shown = [f"{mean:.2f} ± {std:.2f}" for mean, std in theirs]
        verdict, command = claims.not_run(self.run.format(row=row), reasons)
        return [*shown, *[""] * (len(self._pairs()) + 2), verdict, f"`{command}`"]

    def _cells(self, printed: pd.DataFrame, run: card_runs.Run) -> list[str]:
        """Returns all cells of a row but its name."""
        theirs = [self._theirs(printed, column) for column in self.columns]
        ours = [run.values(column.side) for column in self.columns]
        shown = [
            f"{mean:.2f} ± {std:.2f} → {_mean(values)}{_bound(run, column)}"
            for (mean, std), values, column in zip(
                theirs, ours, self.columns, strict=True
            )
        ]
        gaps = [paired.interval(ours[a], ours[b]) for a, b in self._pairs()]
        seeds = max(len(values) for values in ours)
        verdict = self._verdict(theirs, ours, gaps)
        rounds = str(rounds_of(run.command))
        return [
            *shown,
            *map(str, gaps),
            str(seeds),
            rounds,
            verdict,
            f"`{run.command}`",
        ]

    def _theirs(self, printed: pd.DataFrame, column: Column) -> tuple[float, float]:
        """Printed mean and standard deviation in percent."""
        is_column = printed["algorithm"] == column.algorithm
        is_column &= printed["model"] == column.model
        (found,) = printed.loc[is_column, ["mean", "std"]].to_numpy().tolist()
        return 100 * found[0], 100 * found[1]

    def _verdict(
        self,
        theirs: Sequence[tuple[float, float]],
        ours: Sequence[pd.Series],
        gaps: Sequence[paired.Interval],
    ) -> str:
        """See `lines`."""
        pairs = list(zip(theirs, ours, strict=True))
        if all(_agree(mean, std, values) for (mean, std), values in pairs):
            return "holds"
        wrong = [
            f"{self._gap(*pair)} is {gap.mean:+.2f}{_open(gap)}"
            for pair, gap in zip(self._pairs(), gaps, strict=True)
            if not gap.mean >= 0 and theirs[pair[0]][0] > theirs[pair[1]][0]
        ]
        return f"fails: {'; '.join(wrong)}" if wrong else "ordering holds"


def _open(gap: paired.Interval) -> str:
    """Returns the note on intervals that decide nothing."""
    return " (open)" if gap.verdict == "undecided" else ""


def _agree(mean: float, std: float, values: pd.Series) -> bool:
    """Whether two means differ by at most two standard deviations of one seed."""
    spread = float(values.std()) if len(values) > 1 else 0.0
    return abs(float(values.mean()) - mean) <= 2 * math.hypot(std, spread)


def _mean(values: pd.Series) -> str:
    """Mean and standard deviation over seeds."""
    good = values.dropna()
    if len(good) < len(values):
        return f"diverged in {len(values) - len(good)}"
    spread = f" ± {good.std():.2f}" if len(good) > 1 else ""
    return f"{good.mean():.2f}{spread}"


def _bound(run: card_runs.Run, column: Column) -> str:
    """Formats the bound in parentheses."""
    values = None if column.bound is None else run.values(column.bound)
    return "" if values is None else f" ({values.mean():.2f})"


def rounds_of(command: str) -> int:
    """Rounds of a sweep's command: its option, or its preset's number."""
    import experiments.presets  # noqa: F401 (adds those of the papers)
    from fedjax_pfl.command import presets

    words = shlex.split(command)
    if "--rounds" in words:
        return int(words[words.index("--rounds") + 1])
    return presets.get(words[words.index("--preset") + 1]).num_rounds


def by_field(run: card_runs.Run, *fields: str) -> Iterator[str]:
    """Markdown: accuracies of a run with one column per value of some fields.

    Args:
      run: the run.
      *fields: parts of its environments; a column has the first that is given.
    """
    others = [name for name in run.environment if name not in fields]
    own = {f"algorithm.{name.rpartition('.')[2]}" for name in fields}  # what it is told
    kept = tuple(name for name in run.fields if name not in (own | set(fields)))
    ordered = run.rows if len(fields) > 1 else run.rows.sort_values(fields[0])
    columns = _heads(ordered, fields)
    heads = columns.unique()
    for values, rows in run.rows.groupby(others, sort=False, dropna=False):
        named = dict(zip(others, values, strict=True))
        part = dataclasses.replace(run, rows=rows, fields=kept)
        yield from (f"{card_runs.title(named)}:", "")
        header = ["algorithm", "model", *heads]
        yield from (f"| {' | '.join(header)} |", "|---" * len(header) + "|")
        for name, setting in part.settings():
            for model, found in setting.groupby("model", sort=False):
                if model == "hybrid (oracle)":
                    continue  # a bound, not a method
                at = [found[columns.loc[found.index] == head] for head in heads]
                tested = (card_runs.by_seed(rows, card_runs.DATA[0]) for rows in at)
                cells = ["" if v.empty else _mean(v) for v in tested]
                yield f"| {name} | {model} | {' | '.join(cells)} |"
        yield ""


def _heads(rows: pd.DataFrame, fields: Sequence[str]) -> pd.Series:
    """Returns the heading of every row's column."""
    if len(fields) == 1:
        short = fields[0].rpartition(".")[2]
        return rows[fields[0]].map(lambda value: f"{short} = {value:g}")
    found = pd.Series(None, rows.index, dtype=object)
    for name in fields:
        found = found.fillna(rows[name]) if name in rows else found
    return found.fillna("none")

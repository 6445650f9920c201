"""Tables of papers with one row per method and one column per measure."""

import dataclasses
import itertools
from collections.abc import Iterator, Mapping, Sequence

import pandas as pd

from experiments.cards import markdown, scale, tables
from experiments.cards.runs import Run, Side

__all__ = ["Measure", "Method", "Methods"]


@dataclasses.dataclass(frozen=True)
class Measure:
    """Column of a table."""

    title: str  # heading
    key: str  # its name in the file of printed numbers
    model: str  # the evaluated model
    data: str  # the data of the evaluation


@dataclasses.dataclass(frozen=True)
class Method:
    """Row of a table."""

    key: str  # its name in the file of printed numbers
    algorithm: str  # our class
    # Values of its swept fields, as in `runs.Side`.
    where: Mapping[str, object] = dataclasses.field(default_factory=dict)
    why: str = ""  # why the paper's numbers and ours differ in meaning, or empty
    # Values instead of `where`, by names of runs that sweep other fields.
    by_run: Mapping[str, Mapping[str, object]] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Methods(tables.Parts):
    """Table of a paper, compared with ours method by method."""

    # In `experiments/printed`: table, run, method, metric, mean, std (fractions); its
    # tables are named by titles.
    file: str
    measures: Sequence[Measure]  # its columns
    methods: Sequence[Method]  # its rows
    note = (
        "Percent, mean (standard deviation over clients): the paper's → ours, the"
        " latter averaged over seeds."
    )

    def part(self, name: str, runs: tables.Runs) -> Iterator[str]:
        """Yields a line per method, from the largest run that has the method."""
        table, method_runs, rows = self._printed(name), [], []
        for method in self.methods:
            printed = table[table["method"] == method.key].set_index("metric")
            if len(printed):
                run = self._run(name, method, runs)
                method_runs.append(run)
                cells = [
                    self._cell(printed, method, m, name, run) for m in self.measures
                ]
                texts, seeds = zip(*cells, strict=True)
                rounds = "" if run is None else f"{scale.rounds_of(run.command)}"
                count = "" if run is None else str(max(seeds))
                rows.append([method.key, *texts, rounds, count, method.why])
        commands = [run.command for run in method_runs if run is not None]
        yield from (f"* `{command}`" for command in dict.fromkeys(commands))
        titles = [measure.title for measure in self.measures]
        header = ["method", *titles, "rounds", "seeds", "what differs"]
        yield from ("", *markdown.table(header, rows))

    def cells(self, runs: tables.Runs) -> Iterator[tables.Cell]:
        """Yields a cell per printed number."""
        for name in self.runs:
            printed = self._printed(name)
            for method, measure in itertools.product(self.methods, self.measures):
                is_cell = printed["method"] == method.key
                if (is_cell & (printed["metric"] == measure.key)).any():
                    run = self._run(name, method, runs)
                    side = self._side(method, measure, name)
                    values = None if run is None else run.values(side)
                    yield self.cell(name, run, values)

    def _run(self, name: str, method: Method, runs: tables.Runs) -> Run | None:
        """Returns the run that has the cells of a method."""
        table = self._printed(name)
        keys = set(table[table["method"] == method.key]["metric"])
        sides = [self._side(method, m, name) for m in self.measures if m.key in keys]
        return scale.best(runs, name, sides)

    def _printed(self, name: str) -> pd.DataFrame:
        """Returns the paper's numbers in the part of a run."""
        table = pd.read_csv(tables.FOLDER / self.file)
        return table[(table["table"] == self.title) & (table["run"] == name)]

    def _side(self, method: Method, measure: Measure, name: str) -> Side:
        """Returns the side of a run that a cell shows."""
        where = method.by_run.get(name, method.where)
        return Side(method.algorithm, measure.model, where, measure.data)

    def _cell(
        self,
        printed: pd.DataFrame,
        method: Method,
        measure: Measure,
        name: str,
        run: Run | None,
    ) -> tuple[str, int]:
        """Returns the paper's number and ours, and the number of our seeds."""
        paper_text = "–"
        if measure.key in printed.index:
            mean, std = printed.loc[measure.key, ["mean", "std"]]
            paper_text = _mean_cell(100 * mean, 100 * std)
        if run is None:
            return paper_text, 0
        side = self._side(method, measure, name)
        values = run.values(side)
        if values is None or values.empty:
            return f"{paper_text} → –", 0
        nans = int(values.isna().sum())
        if nans:
            return f"{paper_text} → diverged in {nans}", len(values)
        spread = run.values(side, "client spread")
        std = float("nan") if spread is None else 100 * spread.mean()
        return f"{paper_text} → {_mean_cell(values.mean(), std)}", len(values)


def _mean_cell(mean: float, std: float) -> str:
    """Returns a mean with its deviation, if that is not NaN."""
    return f"{mean:.1f}" if std != std else f"{mean:.1f} ({std:.1f})"

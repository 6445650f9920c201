"""Committed runs, as method cards read them, and sides of comparisons in them."""

import dataclasses
import functools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from fedjax_pfl.figures import selection

__all__ = [
    "BESIDE",
    "DATA",
    "LOSSES",
    "REPORTS",
    "SPREADS",
    "WIDER",
    "Run",
    "Side",
    "by_seed",
    "is_beside",
    "is_headline",
    "is_loss",
    "is_spread",
    "title",
]

DATA = ("own test", "own validation")
WIDER = ("own + others' test", "everybody's test")
"""What models may be judged on besides."""
LOSSES = {
    "loss variance": ("variance", "own test"),
    "training loss": ("mean", "own training"),
}
"""What is known of losses besides accuracies: statistic over clients, and data."""
SPREADS = {"client spread": "std", "angle": "angle"}
"""Statistics of accuracies over clients: their standard deviation, and the angle, in
degrees, between them and equal ones."""
HEADLINES = ("accuracy", "annualized_return")
"""What results are about, in the runs of one card the same; shown in percent."""
BESIDE = (
    *("sharpe", "max_drawdown", "turnover"),
    *("uniform_annualized_return", "uniform_sharpe"),
    *("hold_annualized_return", "hold_sharpe"),
)
"""What is known of portfolios besides, as means over clients."""
_POINT = ("algorithm", "dataset", "partition", "seed")
_VALUE = ("model", "population", "data", "metric", "stat", "when", "value", "status")
"""Starts of the names of fields that make a method, not its environment."""
REPORTS = {"clipped": "clipped", "coverage": "trained"}  # reports -> column's title


@dataclasses.dataclass(frozen=True)
class Side:
    """One side of a comparison.

    Attributes:
      algorithm: class name, as in the tables.
      model: `personal`, `global` or another predictor.
      where: values of the algorithm's swept fields, None for a missing one; of several
        settings that remain, the best on validation data is taken.
      data: what it is judged on.
    """

    algorithm: str
    model: str
    where: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    data: str = DATA[0]

    def __str__(self) -> str:
        given = {n: v for n, v in self.where.items() if v is not None}
        fields = [f"{n.rpartition('.')[2]} = {v}" for n, v in given.items()]
        judged = [] if self.data == DATA[0] else [f"on {self.data}"]
        return " ".join([self.algorithm, self.model, *fields, *judged])


@dataclasses.dataclass(frozen=True)
class Run:
    """One committed run: accuracies or returns of the last round on all data.

    `rows` also has the columns of `REPORTS` that were reported, those of `LOSSES`,
    `SPREADS` and `BESIDE` that were kept, and `untrained`, that of clients never
    selected, where there are any.
    """

    name: str
    command: str
    rows: pd.DataFrame
    fields: tuple[str, ...]
    figures: tuple[str, ...]

    @classmethod
    def read(cls, folder: Path) -> "Run":
        """Reads a run's directory."""
        from fedjax_pfl.core import checks

        try:
            command = (folder / "command.txt").read_text("utf-8").strip()
            table = pd.read_csv(folder / "summary.csv")
            has_reports = (folder / "reports.csv").is_file()
            reports = pd.read_csv(folder / "reports.csv") if has_reports else None
        except (UnicodeDecodeError, pd.errors.ParserError, pd.errors.EmptyDataError):
            raise checks.InputError(
                f"Expected a table and one line of text in '{folder}'."
            ) from None
        missing = [n for n in (*_POINT, *_VALUE) if n not in table]
        if missing or "\n" in command or not command:
            reason = f"no column {missing[0]}" if missing else "not one command"
            raise checks.InputError(
                f"Expected summary.csv of a result and command.txt with one line in"
                f" '{folder}', got {reason}."
            )
        is_shown = is_headline(table)
        is_whole = table["population"].isin(["all", "honest"])
        rows: Any = table[is_shown & is_whole]
        if rows[rows["data"] == "own test"].empty:
            raise checks.InputError(
                "Expected accuracies or returns on own test data in"
                f" '{folder}/summary.csv'."
            )
        fields = tuple(n for n in table if n not in (*_POINT, *_VALUE))
        names = [*_POINT, *fields, "model", "data"]
        rows = rows.drop_duplicates(names, keep="last")  # honest, where there is one
        point = [*_POINT, *fields]
        others = table[is_shown & (table["population"] == "never selected")]
        if not others.empty:
            others = others.rename(columns={"value": "untrained"})
            rows = rows.merge(others[[*names, "untrained"]], how="left", on=names)
        for name, stat in SPREADS.items():
            found = table[is_spread(table, stat) & is_whole]
            if len(found):
                found = found.drop_duplicates(names, keep="last")
                found = found.rename(columns={"value": name})[[*names, name]]
                rows = rows.merge(found, how="left", on=names)
        for name in BESIDE:
            found = table[is_beside(table, name) & is_whole]
            if len(found):
                found = found.drop_duplicates(names, keep="last")
                found = found.rename(columns={"value": name})[[*names, name]]
                rows = rows.merge(found, how="left", on=names)
        for name in LOSSES:
            found = table[is_loss(table, name) & is_whole]
            if len(found):
                of_model = [*point, "model"]
                found = found.drop_duplicates(of_model, keep="last")
                found = found.rename(columns={"value": name})[[*of_model, name]]
                rows = rows.merge(found, how="left", on=of_model)
        if reports is not None:
            lacking = [n for n in (*point, "name", "value") if n not in reports]
            if lacking:
                raise checks.InputError(
                    f"Expected reports.csv of a result in '{folder}', got no column"
                    f" {lacking[0]}."
                )
            for name in REPORTS:
                found = reports[reports["name"] == name]
                found = found.rename(columns={"value": name})[[*point, name]]
                rows = rows.merge(found, how="left", on=point) if len(found) else rows
        return cls(
            name=folder.name,
            command=command,
            rows=rows,
            fields=fields,
            figures=tuple(sorted(path.name for path in folder.glob("*.png"))),
        )

    @property
    def environment(self) -> list[str]:
        """Columns that are not chosen by anybody."""
        return [
            "dataset",
            "partition",
            *(f for f in self.fields if not f.startswith(selection.TUNED)),
        ]

    def environments(
        self, only: Mapping[str, Any] | None = None
    ) -> Iterator[tuple[str, "Run"]]:
        """The run by data set, partition and fields of neither; with a title.

        Args:
          only: values by field, of environments that are wanted; None for all.

        Raises:
          InputError: if the run has no such field.
        """
        for field in only or {}:
            if field not in self.environment:
                from fedjax_pfl.core import checks

                raise checks.InputError(
                    f"Expected a field of run '{self.name}'"
                    f" ({', '.join(self.environment)}), got '{field}'."
                )
        for named, part in self._environments:
            if all(named[field] == value for field, value in (only or {}).items()):
                yield title(named), part

    @functools.cached_property
    def _environments(self) -> list[tuple[dict[str, Any], "Run"]]:
        """Values by column, and the run where they hold."""
        columns = self.environment
        return [
            (
                dict(zip(columns, values, strict=True)),
                dataclasses.replace(self, rows=rows),
            )
            for values, rows in self.rows.groupby(columns, sort=False, dropna=False)
        ]

    def settings(self) -> Iterator[tuple[str, pd.DataFrame]]:
        """Rows of every algorithm with one setting of its own fields; with a name."""
        own = [f for f in self.fields if f.startswith(selection.TUNED)]
        for values, rows in self.rows.groupby(
            ["algorithm", *own], sort=False, dropna=False
        ):
            named = zip(own, values[1:], strict=True)
            fields = [f"{n.rpartition('.')[2]} = {v}" for n, v in named if v == v]
            yield ", ".join([values[0], *fields]), rows

    def values(self, side: Side, measure: str = "accuracy") -> pd.Series | None:
        """One side by seed: accuracy in percent, or a measure; None if it lacks."""
        key = (side.algorithm, side.model, *side.where.items())
        if key not in self._taken:
            self._taken[key] = self._best(side)
        best = self._taken[key]
        return None if best is None else by_seed(best, side.data, measure)

    @functools.cached_property
    def _taken(self) -> dict[tuple[Any, ...], pd.DataFrame | None]:
        """The settings of sides that were asked for: cards ask for most many times."""
        return {}

    def _best(self, side: Side) -> pd.DataFrame | None:
        """The rows of the best setting on validation data; None if there is none.

        One that diverges with fewer seeds is better, whatever the others' mean.
        """
        found = self._settings_of(side)
        if len(found) < 2:
            return found[0] if found else None
        if not _is_decided(found):
            from fedjax_pfl.core import checks

            raise checks.InputError(
                f"Expected validation accuracies to choose among {len(found)} settings"
                f" of {side} in run '{self.name}'."
            )
        return max(found, key=_score)

    def is_decided(self, side: Side) -> bool:
        """Whether a side has one setting, or validation data to choose among more."""
        return _is_decided(self._settings_of(side))

    @functools.cached_property
    def _of_models(self) -> dict[Any, pd.DataFrame]:
        """Rows by algorithm and model."""
        return dict(iter(self.rows.groupby(["algorithm", "model"], sort=False)))

    def _settings_of(self, side: Side) -> list[pd.DataFrame]:
        """The rows of every setting of a side."""
        rows = self._of_models.get((side.algorithm, side.model))
        if rows is None:
            return []
        is_side = np.ones(len(rows), bool)
        for name, value in side.where.items():
            if name not in rows:
                is_side &= value is None
                continue
            column = rows[name]
            is_side &= (column.isna() if value is None else column == value).to_numpy()
        chosen = dataclasses.replace(self, rows=rows[is_side])
        return [setting for _, setting in chosen.settings()]


def _score(setting: pd.DataFrame) -> tuple[int, float]:
    """Seeds that did not diverge, then their mean accuracy on validation data."""
    found = by_seed(setting, DATA[1]).dropna()
    return len(found), found.mean() if len(found) else -np.inf


def _is_decided(settings: Sequence[pd.DataFrame]) -> bool:
    """Whether there is nothing to choose, or something to choose by."""
    return len(settings) < 2 or any((s["data"] == DATA[1]).any() for s in settings)


def title(environment: Mapping[str, Any]) -> str:
    """An environment in words: data set, partition, and other fields by name."""
    given = [(name, value) for name, value in environment.items() if not pd.isna(value)]
    named = [str(value) for name, value in given if name in ("dataset", "partition")]
    fields = [(n, v) for n, v in given if n not in ("dataset", "partition")]
    shown = [f"{name.rpartition('.')[2]} = {value}" for name, value in fields]
    return ", ".join([*named, *shown])


def by_seed(rows: pd.DataFrame, data: str, measure: str = "accuracy") -> pd.Series:
    """Accuracies in percent, or losses, by seed; NaN where a training diverged."""
    name = "value" if measure == "accuracy" else measure
    is_chosen = (rows["data"] == data).to_numpy()
    found = rows[name].to_numpy()[is_chosen] if name in rows else np.nan
    index = pd.Index(rows["seed"].to_numpy()[is_chosen], name="seed")
    values = pd.Series(found, index).sort_index()
    return 100 * values if measure == "accuracy" else values


def is_headline(table: pd.DataFrame) -> pd.Series:
    """Rows of a result's table that are accuracies, or returns, of the last round."""
    return is_spread(table, "mean")


def is_beside(table: pd.DataFrame, name: str) -> pd.Series:
    """Rows of a result's table that are one of `BESIDE` in the last round."""
    found = (table["when"] == "last") & (table["metric"] == name)
    return found & (table["stat"] == "mean") & table["data"].isin(DATA)


def is_spread(table: pd.DataFrame, stat: str) -> pd.Series:
    """Rows of a result's table that are a statistic of those over clients."""
    found = (table["when"] == "last") & table["metric"].isin(HEADLINES)
    return found & (table["stat"] == stat) & table["data"].isin([*DATA, *WIDER])


def is_loss(table: pd.DataFrame, name: str) -> pd.Series:
    """Rows of a result's table that are one of `LOSSES` in the last round."""
    stat, data = LOSSES[name]
    found = (table["when"] == "last") & (table["metric"] == "loss")
    return found & (table["stat"] == stat) & (table["data"] == data)

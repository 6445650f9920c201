"""Kept runs, as method cards read them, and sides of comparisons in them."""

import dataclasses
import functools
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from experiments.cards import kept
from fedjax_pfl.core import checks
from fedjax_pfl.results import selection, summaries

__all__ = [
    "BESIDE",
    "DATA",
    "LOSSES",
    "MEASURES",
    "REPORTS",
    "SPREADS",
    "WIDER",
    "Run",
    "Side",
    "by_seed",
    "is_measure",
    "short",
    "title",
]

DATA = ("own test", "own validation")
WIDER = ("own + others' test", "everybody's test")
"""Data of other clients, for further evaluations of models."""
LOSSES = ("loss variance", "training loss")
SPREADS = ("client spread", "angle")
BESIDE = (
    *("sharpe", "max_drawdown", "turnover"),
    *("uniform_annualized_return", "uniform_sharpe"),
    *("hold_annualized_return", "hold_sharpe"),
)
"""Measures of portfolios other than their return, as means over clients."""
_HEADLINES = ("accuracy", "annualized_return")
MEASURES = {
    "value": (_HEADLINES, "mean", (*DATA, *WIDER)),
    "client spread": (_HEADLINES, "std", (*DATA, *WIDER)),
    "angle": (_HEADLINES, "angle", (*DATA, *WIDER)),  # degrees from equal accuracies
    **{name: ((name,), "mean", DATA) for name in BESIDE},
    "loss variance": (("loss",), "variance", ("own test",)),
    "training loss": (("loss",), "mean", ("own training",)),
}
"""Metrics, statistic over clients, and data of every measure that cards print."""
REPORTS = {"clipped": "clipped", "coverage": "trained"}  # reports -> column's title


@dataclasses.dataclass(frozen=True)
class Side:
    """Side of a comparison."""

    algorithm: str  # class name, as in the tables
    model: str  # `personal`, `global` or another predictor
    # Values of the algorithm's swept fields, None for a missing field; if several
    # settings remain, the best one on validation data counts.
    where: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    data: str = DATA[0]  # data of its evaluation

    def __str__(self) -> str:
        suffix = [] if self.data == DATA[0] else [f"on {self.data}"]
        return " ".join([self.algorithm, self.model, *_texts(self.where), *suffix])


@dataclasses.dataclass(frozen=True)
class Run:
    """Kept run: accuracies or returns of the last round on all data."""

    # `rows` also has a column for every other kept measure of `MEASURES` and report of
    # `REPORTS`, and, if any clients were never selected, `untrained`, the headline of
    # these clients.
    name: str
    command: str
    rows: pd.DataFrame
    fields: tuple[str, ...]

    @classmethod
    def read(cls, path: Path) -> "Run":
        """Reads the file of a run; checks that it has a headline on own test data."""
        try:
            file = kept.read(path)
        except (OSError, KeyError, ValueError) as error:
            raise checks.InputError(f"Cannot read '{path}' as a kept run.") from error
        rows = _in_columns(file.rows, file.point)
        if rows[rows["data"] == "own test"].empty:
            raise checks.InputError(
                f"Expected accuracies or returns on own test data in '{path}'."
            )
        names = [name for name in REPORTS if name in file.reports]
        if names:
            columns = file.reports[[*file.point, *names]]
            rows = rows.merge(columns, how="left", on=file.point)
        return cls(name=path.stem, command=file.command, rows=rows, fields=file.fields)

    @property
    def environment(self) -> list[str]:
        """Columns of the environment, which no method chooses."""
        fields = [f for f in self.fields if not f.startswith(summaries.METHOD_FIELDS)]
        return ["dataset", "partition", *fields]

    def environments(
        self, only: Mapping[str, Any] | None = None
    ) -> Iterator[tuple[str, "Run"]]:
        """Yields a title and the run's part for every environment with these values."""
        for field in only or {}:
            if field not in self.environment:
                raise checks.InputError(
                    f"Expected a field of run '{self.name}'"
                    f" ({', '.join(self.environment)}), got '{field}'."
                )
        for columns, part in self._environments:
            if all(columns[field] == value for field, value in (only or {}).items()):
                yield title(columns), part

    @functools.cached_property
    def _environments(self) -> list[tuple[dict[str, Any], "Run"]]:
        """Values by column, and the part of the run with these values."""
        columns = self.environment
        groups = self.rows.groupby(columns, sort=False, dropna=False)
        return [
            (dict(zip(columns, values, strict=True)), self._part(rows))
            for values, rows in groups
        ]

    def _part(self, rows: pd.DataFrame) -> "Run":
        """Returns the run with some of its rows."""
        return dataclasses.replace(self, rows=rows)

    def settings(self) -> Iterator[tuple[str, pd.DataFrame]]:
        """Yields a name and the rows for every setting of an algorithm."""
        names = [f for f in self.fields if f.startswith(summaries.METHOD_FIELDS)]
        groups = self.rows.groupby(["algorithm", *names], sort=False, dropna=False)
        for (algorithm, *values), rows in groups:
            fields = _texts(dict(zip(names, values, strict=True)))
            yield ", ".join([algorithm, *fields]), rows

    def models(self) -> Iterator[tuple[str, str, pd.DataFrame]]:
        """Yields both names and the rows for every setting and model."""
        for name, rows in self.settings():
            for model, model_rows in rows.groupby("model", sort=False):
                if model != "hybrid (oracle)":  # a bound, not a method
                    yield name, str(model), model_rows

    def values(self, side: Side, measure: str = "accuracy") -> pd.Series | None:
        """Returns a side's accuracy in percent or measure by seed; None if missing."""
        key = (side.algorithm, side.model, *side.where.items())
        if key not in self._best_of:
            self._best_of[key] = self._best(side)
        best = self._best_of[key]
        return None if best is None else by_seed(best, side.data, measure)

    @functools.cached_property
    def _best_of(self) -> dict[tuple[Any, ...], pd.DataFrame | None]:
        """Caches the best settings by side: cards use most of them many times."""
        return {}

    def _best(self, side: Side) -> pd.DataFrame | None:
        """Returns the rows of the best setting on validation data; None without one."""
        # A setting that diverges with fewer seeds is better, regardless of means. The
        # personal model chooses for a hybrid: validation data already chose between the
        # hybrid's models, so its validation values are biased.
        if side.model.startswith(selection.HYBRID):
            personal = self._best(dataclasses.replace(side, model="personal"))
            return None if personal is None else self._same_setting(side, personal)
        settings = self._settings_of(side)
        if not _is_decided(settings):
            raise checks.InputError(
                "Expected validation accuracies to choose among"
                f" {len(settings)} settings of {side} in run '{self.name}'."
            )
        if len(settings) < 2:
            return settings[0] if settings else None
        return max(settings, key=_score)

    def _same_setting(self, side: Side, table: pd.DataFrame) -> pd.DataFrame | None:
        """Returns the rows of a side with another model's setting."""
        names = [f for f in self.fields if f.startswith(summaries.METHOD_FIELDS)]
        setting = table[names].iloc[0]
        for rows in self._settings_of(side):
            if rows[names].iloc[0].equals(setting):
                return rows
        return None

    def is_decided(self, side: Side) -> bool:
        """Returns whether a side has one setting, or validation data for a choice."""
        return _is_decided(self._settings_of(side))

    @functools.cached_property
    def _model_rows(self) -> dict[Any, pd.DataFrame]:
        """Rows by algorithm and model."""
        return dict(iter(self.rows.groupby(["algorithm", "model"], sort=False)))

    def _settings_of(self, side: Side) -> list[pd.DataFrame]:
        """Returns the rows of every setting of a side."""
        rows = self._model_rows.get((side.algorithm, side.model))
        if rows is None:
            return []
        is_side = np.ones(len(rows), bool)
        for name, value in side.where.items():
            column = rows.get(name, pd.Series(np.nan, rows.index))
            is_side &= (column.isna() if value is None else column == value).to_numpy()
        return [setting for _, setting in self._part(rows[is_side]).settings()]


def _score(setting: pd.DataFrame) -> tuple[int, float]:
    """Returns the number of seeds without divergence, and their validation mean."""
    values = by_seed(setting, DATA[1]).dropna()
    return len(values), values.mean() if len(values) else -np.inf


def _is_decided(settings: list[pd.DataFrame]) -> bool:
    """Returns whether there is one setting, or validation data for a choice."""
    return len(settings) < 2 or any((s["data"] == DATA[1]).any() for s in settings)


def short(field: str) -> str:
    """Returns the last part of a dotted name."""
    return field.rpartition(".")[2]


def _texts(fields: Mapping[str, Any]) -> list[str]:
    """Returns fields with values as text, for example `lam = 1.0`."""
    return [f"{short(n)} = {v}" for n, v in fields.items() if not pd.isna(v)]


def title(environment: Mapping[str, Any]) -> str:
    """Returns an environment in words: data set, partition, and other fields."""
    names = ("dataset", "partition")
    parts = [environment.get(name) for name in names]
    fields = {n: v for n, v in environment.items() if n not in names}
    return ", ".join([*(str(v) for v in parts if not pd.isna(v)), *_texts(fields)])


def by_seed(rows: pd.DataFrame, data: str, measure: str = "accuracy") -> pd.Series:
    """Returns accuracies in percent, or losses, by seed; NaN if a seed diverged."""
    name = "value" if measure == "accuracy" else measure
    is_row = (rows["data"] == data).to_numpy()  # columns are faster than a frame
    numbers = rows[name].to_numpy()[is_row] if name in rows else np.nan
    index = pd.Index(rows["seed"].to_numpy()[is_row], name="seed")
    values = pd.Series(numbers, index).sort_index()
    return 100 * values if measure == "accuracy" else values


def is_measure(table: pd.DataFrame, name: str) -> pd.Series:
    """Returns a mask of a table's rows of one of `MEASURES` in the last round."""
    metrics, stat, data = MEASURES[name]
    is_row = (table["when"] == "last") & table["metric"].isin(metrics)
    return is_row & (table["stat"] == stat) & table["data"].isin(data)


def _in_columns(table: pd.DataFrame, point: list[str]) -> pd.DataFrame:
    """Returns the headline's rows, with a column for every other measure."""
    is_headline = is_measure(table, "value")
    is_whole = table["population"].isin(["all", "honest"])
    keys = [*point, "model", "data"]
    rows = table[is_headline & is_whole].drop_duplicates(keys, keep="last")  # honest
    masks = {"untrained": is_headline & (table["population"] == "never selected")}
    measure_names = [name for name in MEASURES if name != "value"]
    masks |= {name: is_measure(table, name) & is_whole for name in measure_names}
    for name, mask in masks.items():
        on = [*point, "model"] if name in LOSSES else keys
        measure = table[mask].drop_duplicates(on, keep="last")
        if len(measure):
            measure = measure.rename(columns={"value": name})[[*on, name]]
            rows = rows.merge(measure, how="left", on=on)
    return rows

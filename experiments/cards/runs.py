"""Kept runs, as method cards read them, and sides of comparisons in them."""

import dataclasses
import functools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from experiments.cards import kept
from fedjax_pfl.figures import selection

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
    "title",
]

DATA = ("own test", "own validation")
WIDER = ("own + others' test", "everybody's test")
"""Data of other clients, on which models may be judged besides."""
LOSSES = ("loss variance", "training loss")
SPREADS = ("client spread", "angle")
BESIDE = (
    *("sharpe", "max_drawdown", "turnover"),
    *("uniform_annualized_return", "uniform_sharpe"),
    *("hold_annualized_return", "hold_sharpe"),
)
"""Measures of portfolios besides their return, as means over clients."""
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
_POINT = ("algorithm", "dataset", "partition", "seed")
_VALUE = ("model", "population", "data", "metric", "stat", "when", "value", "status")


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
        fields = [
            f"{name.rpartition('.')[2]} = {value}"
            for name, value in self.where.items()
            if value is not None
        ]
        judged = [] if self.data == DATA[0] else [f"on {self.data}"]
        return " ".join([self.algorithm, self.model, *fields, *judged])


@dataclasses.dataclass(frozen=True)
class Run:
    """A kept run: accuracies or returns of the last round on all data.

    `rows` also has a column for every other measure of `MEASURES` and every report of
    `REPORTS` that was kept, and `untrained`, the headline of clients never selected,
    where there are any.
    """

    name: str
    command: str
    rows: pd.DataFrame
    fields: tuple[str, ...]

    @classmethod
    def read(cls, path: Path) -> "Run":
        """Reads the file of a run.

        Raises:
          InputError: if it is damaged, or has no headline on own test data.
        """
        from fedjax_pfl.core import checks

        try:
            command, table, reports = kept.read(path)
        except (OSError, KeyError, ValueError) as error:
            raise checks.InputError(f"Cannot read '{path}' as a kept run.") from error
        fields = tuple(n for n in table if n not in (*_POINT, *_VALUE))
        rows = _in_columns(table, [*_POINT, *fields])
        if rows[rows["data"] == "own test"].empty:
            raise checks.InputError(
                f"Expected accuracies or returns on own test data in '{path}'."
            )
        wanted = [name for name in REPORTS if name in reports]
        if wanted:
            point = [*_POINT, *fields]
            rows = rows.merge(reports[[*point, *wanted]], how="left", on=point)
        return cls(name=path.stem, command=command, rows=rows, fields=fields)

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
        """Returns the rows of every setting of a side."""
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
    """Returns whether there is nothing to choose, or something to choose by."""
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


def is_measure(table: pd.DataFrame, name: str) -> pd.Series:
    """Returns which rows of a table are one of `MEASURES` in the last round."""
    metrics, stat, data = MEASURES[name]
    chosen = (table["when"] == "last") & table["metric"].isin(metrics)
    return chosen & (table["stat"] == stat) & table["data"].isin(data)


def _in_columns(table: pd.DataFrame, point: list[str]) -> pd.DataFrame:
    """Returns the headline's rows, with a column for every other measure."""
    is_headline = is_measure(table, "value")
    is_whole = table["population"].isin(["all", "honest"])
    keys = [*point, "model", "data"]
    rows = table[is_headline & is_whole].drop_duplicates(keys, keep="last")  # honest
    masks = {"untrained": is_headline & (table["population"] == "never selected")}
    for name in MEASURES:
        if name != "value":
            masks[name] = is_measure(table, name) & is_whole
    for name, mask in masks.items():
        on = [*point, "model"] if name in LOSSES else keys
        measure = table[mask].drop_duplicates(on, keep="last")
        if len(measure):
            measure = measure.rename(columns={"value": name})[[*on, name]]
            rows = rows.merge(measure, how="left", on=on)
    return rows

"""Tables that compare methods, with differences paired by seed."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import pandas as pd

from fedjax_pfl import results
from fedjax_pfl.figures import selection
from fedjax_pfl.report import tables
from fedjax_pfl.results import metrics, paired

__all__ = ["Comparison", "Difference", "Environment", "Row", "compare", "to_table"]

_BOUND = "hybrid (oracle)"  # not a method
_VALIDATION = "own validation"
_FORM = "+.4f"  # as many digits as a result's summary has
_VERDICTS = {"holds": "better", "does not hold": "worse", "undecided": ""}


@dataclasses.dataclass(frozen=True)
class Difference:
    """A row minus another one.

    Attributes:
      text: the mean difference with its interval.
      verdict: `better` or `worse` where the interval excludes zero, else empty.
    """

    text: str
    verdict: str


@dataclasses.dataclass(frozen=True)
class Row:
    """One setting and model.

    Attributes:
      setting: the method with its settings.
      algorithm: its algorithm.
      model: what is judged.
      cells: one per measure, and how its trainings ended.
      differences: to every row of the environment; None for itself.
    """

    setting: str
    algorithm: str
    model: str
    cells: tuple[str, ...]
    differences: tuple[Difference | None, ...]


@dataclasses.dataclass(frozen=True)
class Environment:
    """Rows whose clients and data are the same.

    Attributes:
      title: what they have in common.
      rows: at least one.
      reference: number of the row that others are compared with at first.
    """

    title: str
    rows: tuple[Row, ...]
    reference: int


@dataclasses.dataclass(frozen=True)
class Comparison:
    """A table of methods.

    Attributes:
      name: of its files.
      title: heading.
      caption: which model, on whose data, when and with how many seeds.
      measures: titles of the cells of rows.
      environments: at least one.
      is_paired: whether rows are compared with each other.
    """

    name: str
    title: str
    caption: str
    measures: tuple[str, ...]
    environments: tuple[Environment, ...]
    is_paired: bool


def compare(
    result: results.Result,
    *,
    name: str,
    title: str,
    when: str,
    data: str,
    only_best: bool,
) -> Comparison | None:
    """Compares methods in one round on one kind of data.

    Args:
      result: what to compare.
      name: of the table's files.
      title: of the table.
      when: the round, as in a result's table.
      data: on which models are judged, as in a result's table.
      only_best: whether of an algorithm's settings only the one that is best on
        validation data is compared with others; else all are shown, not compared.

    Returns:
      The comparison; None where nothing was judged so.
    """
    points, metric = _points(result, when, data)
    if points.empty:
        return None
    if only_best:
        kept = selection.best_settings(result)
        points = points.merge(kept, on=list(kept.columns))
    summary = _Summary(result, when, data)
    names = selection.varying(points, selection.methods(result))
    environments = [
        _environment(result, rows, names, summary, metric, only_best)
        for rows in selection.groups(points, selection.environments(result))
    ]
    is_paired = only_best and any(len(e.rows) > 1 for e in environments)
    population = " and ".join(points["population"].unique())
    seeds = sorted(points["seed"].dropna().unique().tolist())
    caption = _caption(metric, population, data, when, seeds, is_paired)
    if not (points["status"] == "ok").all():
        caption += " Seeds that diverged do not count; status says how many did."
    return Comparison(
        name, title, caption, summary.measures, tuple(environments), is_paired
    )


def _points(result: results.Result, when: str, data: str) -> tuple[pd.DataFrame, str]:
    """Returns means over clients, one row per training and model; the metric."""
    table = result.table()
    is_shown = (table["when"] == when) & (table["data"] == data)
    rows = table[is_shown & (table["stat"] == "mean") & (table["model"] != _BOUND)]
    return selection.reported(result, rows)


class _Summary:
    """The rows of a result's summary by the columns that name them."""

    def __init__(self, result: results.Result, when: str, data: str):
        summary = result.summary(when, data)
        columns = list(summary.columns)
        first = columns.index("model") + 1
        self._keys = columns[:first]
        self.measures = tuple(name.replace("_", " ") for name in columns[first:])
        keys = map(_key, summary[self._keys].to_numpy())
        texts = summary[columns[first:]].to_numpy()
        self._rows = dict(zip(keys, texts, strict=True))

    def cells(self, row: pd.Series) -> tuple[str, ...]:
        """Returns the texts of a row."""
        return tuple(text or "–" for text in self._rows[_key(row[self._keys])])


def _key(values: Any) -> tuple[Any, ...]:
    """Returns values to look up; those that are missing are the same."""
    return tuple(None if pd.isna(value) else value for value in values)


def _environment(
    result: results.Result,
    points: pd.DataFrame,
    names: Sequence[str],
    summary: _Summary,
    metric: str,
    is_paired: bool,
) -> Environment:
    """Returns the rows of one environment."""
    columns = [*selection.methods(result), "model"]
    groups = list(selection.groups(points, columns))
    heads = [rows.iloc[0] for rows in groups]
    values = [rows.set_index("seed")["value"] for rows in groups]
    rows = [
        Row(
            setting=selection.label(head, names),
            algorithm=head["algorithm"],
            model=head["model"],
            cells=summary.cells(head),
            differences=_differences(values, k, metric) if is_paired else (),
        )
        for k, head in enumerate(heads)
    ]
    reference = _reference(result, heads, columns, metric) if is_paired else 0
    title = selection.title(heads[0], selection.environments(result))
    return Environment(title, tuple(rows), reference)


def _differences(
    values: Sequence[pd.Series], row: int, metric: str
) -> tuple[Difference | None, ...]:
    """Returns a row minus every other one, paired by seed."""
    found: list[Difference | None] = []
    for k, others in enumerate(values):
        if k == row:
            found.append(None)
            continue
        interval = paired.interval(values[row], others)
        better = interval
        if metrics.sign(metric) < 0:  # less is better
            better = dataclasses.replace(interval, mean=-interval.mean)
        found.append(Difference(interval.text(_FORM), _VERDICTS[better.verdict]))
    return tuple(found)


def _reference(
    result: results.Result,
    heads: Sequence[pd.Series],
    columns: Sequence[str],
    metric: str,
) -> int:
    """Picks the row that is best on validation data in the last round, or the first.

    Hybrids are not: they were chosen on these data, client by client.
    """
    judged, _ = _points(result, "last", _VALIDATION)
    judged = judged[judged["metric"] == metric]
    columns = [*selection.environments(result), *columns]
    means = {
        _key(rows[columns].iloc[0]): rows["value"].mean(skipna=False)
        for rows in selection.groups(judged, columns)
    }
    scores = [
        metrics.sign(metric) * means.get(_key(head[columns]), math.nan)
        for head in heads
    ]
    scores = [
        -math.inf if math.isnan(score) or "hybrid" in head["model"] else score
        for score, head in zip(scores, heads, strict=True)
    ]
    return scores.index(max(scores))


def _caption(
    metric: str,
    population: str,
    data: str,
    when: str,
    seeds: Sequence[int],
    is_paired: bool,
) -> str:
    """Describes which model, on whose data, when and with how many seeds."""
    rounds = {
        "last": "last round",
        "best (validation)": "round that is best on validation data",
    }[when]
    count = len(seeds)
    shown = ", ".join(map(str, seeds))
    shown_metric = metric.replace("_", " ")
    text = (
        f"The model that a row names × {population} clients × {data} data × {rounds}:"
        f" {shown_metric} is the mean over clients, worst 10 % the mean of the worst"
        " tenth of them, loss variance that of their losses."
    )
    if metrics.sign(metric) < 0:
        text += " Less is better."
    if not count:
        text += " One seed, which is not stored: no intervals, no spread over seeds."
    elif count > 1:
        text += f" Mean ± standard deviation over {count} seeds ({shown})."
    else:
        text += f" One seed ({shown}): no intervals, and no spread over seeds."
    if is_paired:
        text += (
            f" Differences are of {shown_metric}, row minus reference, paired by seed"
        )
        text += (
            ", with 95 % intervals of Student's t, not corrected for their number."
            if count > 1
            else "."
        )
    return text


def to_table(comparison: Comparison) -> tables.Table:
    """Tabulates a comparison with differences to each environment's reference."""
    columns = ["method", "model", *comparison.measures]
    place = 3  # beside what the difference is of
    parts = []
    for environment in comparison.environments:
        rows = []
        for row in environment.rows:
            cells = [row.setting, row.model, *row.cells]
            if comparison.is_paired:
                difference = row.differences[environment.reference]
                text = "reference" if difference is None else difference.text
                cells.insert(place, text)
            rows.append(tuple(cells))
        parts.append(tables.Part(environment.title, tuple(rows)))
    if comparison.is_paired:
        columns.insert(place, "difference")
    return tables.Table(
        name=comparison.name,
        title=comparison.title,
        caption=comparison.caption,
        columns=tuple(columns),
        parts=tuple(parts),
        num_texts=2,
    )

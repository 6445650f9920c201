"""Ranking of methods, with differences paired by seed."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import pandas as pd

from fedjax_pfl import results
from fedjax_pfl.results import metrics, paired, selection, summaries

__all__ = [
    "Comparison",
    "Difference",
    "Environment",
    "Row",
    "compare",
    "rank",
    "rows_of",
    "text_of",
    "titles_of",
]

_BOUND = "hybrid (oracle)"  # not a method
_REFERENCES = (("FedAvg", "global"), ("Local", "personal"))  # what all must beat
_DIFFERENCE = 3  # its column, beside the measure that it is of
_SHARES = "better / worse off"
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
      value: mean over seeds of the metric; NaN where all diverged.
      cells: one per measure, and how its trainings ended.
      differences: to every row of the environment; None for itself.
    """

    setting: str
    algorithm: str
    model: str
    value: float
    cells: tuple[str, ...]
    differences: tuple[Difference | None, ...]


@dataclasses.dataclass(frozen=True)
class Environment:
    """Rows whose clients and data are the same.

    Attributes:
      title: what they have in common.
      rows: at least one, the best first.
      reference: number of the row that others are compared with at first.
      conclusion: who is best, and by how much; empty where nothing is compared.
    """

    title: str
    rows: tuple[Row, ...]
    reference: int
    conclusion: str


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


def rank(result: results.Result) -> Comparison | None:
    """Compares the best settings of all methods in the last round on own test data.

    Args:
      result: what to compare.

    Returns:
      The comparison; None where nothing was judged on own test data.
    """
    return compare(
        result,
        name="headline",
        title="Methods",
        when="last",
        data=summaries.OWN_TEST,
    )


def compare(
    result: results.Result,
    *,
    name: str,
    title: str,
    when: str,
    data: str,
    only_best: bool = True,
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
    shares = _Shares(result, points, metric, only_best and when == "last")
    environments = [
        _environment(result, rows, names, summary, shares, metric, only_best)
        for rows in selection.groups(points, selection.environments(result))
    ]
    is_paired = only_best and any(len(e.rows) > 1 for e in environments)
    population = " and ".join(points["population"].unique())
    seeds = sorted(points["seed"].dropna().unique().tolist())
    caption = _caption(metric, population, data, when, seeds, is_paired)
    if shares.measures:
        caption += (
            f" {_SHARES.capitalize()}: share of clients, over all seeds, whose own test"
            f" {metric.replace('_', ' ')} is better and worse than with Local."
        )
    if not (points["status"] == "ok").all():
        caption += " Seeds that diverged do not count; status says how many did."
    measures = _with(summary.measures, shares.measures)
    return Comparison(name, title, caption, measures, tuple(environments), is_paired)


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


class _Shares:
    """Shares of clients that a model serves better, and worse, than Local does.

    Attributes:
      measures: title of their column, none where there is no Local.
    """

    def __init__(
        self, result: results.Result, points: pd.DataFrame, metric: str, is_wanted: bool
    ):
        is_local = (points["algorithm"] == "Local") & (points["model"] == "personal")
        is_own = (points["data"] == summaries.OWN_TEST).all()
        has_others = bool(points.loc[~is_local, "algorithm"].ne("Local").any())
        self.measures: tuple[str, ...] = ()
        if not (is_wanted and is_own and is_local.any() and has_others):
            return
        self.measures = (_SHARES,)
        self._environment = selection.environments(result)
        self._columns = [*self._environment, *selection.methods(result), "model"]
        clients, _ = selection.reported(result, result.clients(), metric)
        by_client = ["seed", "client"]
        self._values = {
            _key(rows[self._columns].iloc[0]): rows.set_index(by_client)["value"]
            for rows in selection.groups(clients, self._columns)
        }
        local = points[is_local].drop_duplicates(self._columns)
        self._local = {
            _key(row[self._environment]): self._values[_key(row[self._columns])]
            for _, row in local.iterrows()
        }
        self._sign = metrics.sign(metric)

    def cells(self, row: pd.Series) -> tuple[str, ...]:
        """Returns the text of a row, for example `62 % / 21 %`."""
        if not self.measures:
            return ()
        local = self._local.get(_key(row[self._environment]))
        if local is None or (row["algorithm"], row["model"]) == ("Local", "personal"):
            return ("–",)
        gap = self._sign * self._values[_key(row[self._columns])].sub(local).dropna()
        if gap.empty:
            return ("–",)
        return (f"{(gap > 0).mean():.0%} / {(gap < 0).mean():.0%}".replace("%", " %"),)


def _key(values: Any) -> tuple[Any, ...]:
    """Returns values to look up; those that are missing are the same."""
    return tuple(None if pd.isna(value) else value for value in values)


def _environment(
    result: results.Result,
    points: pd.DataFrame,
    names: Sequence[str],
    summary: _Summary,
    shares: _Shares,
    metric: str,
    is_paired: bool,
) -> Environment:
    """Returns the rows of one environment."""
    columns = [*selection.methods(result), "model"]
    groups = list(selection.groups(points, columns))
    means = [rows["value"].mean() for rows in groups]
    order = sorted(range(len(groups)), key=lambda k: metrics.score(metric, means[k]))
    order.reverse()
    groups, means = [groups[k] for k in order], [means[k] for k in order]
    heads = [rows.iloc[0] for rows in groups]
    values = [rows.set_index("seed")["value"] for rows in groups]
    rows = tuple(
        Row(
            setting=selection.label(head, names),
            algorithm=head["algorithm"],
            model=head["model"],
            value=float(mean),
            cells=_with(summary.cells(head), shares.cells(head)),
            differences=_differences(values, k, metric) if is_paired else (),
        )
        for k, (head, mean) in enumerate(zip(heads, means, strict=True))
    )
    reference = _reference(result, heads, columns, metric) if is_paired else 0
    conclusion = _conclusion(rows, reference, metric) if is_paired else ""
    title = selection.title(heads[0], selection.environments(result))
    return Environment(title, rows, reference, conclusion)


def _with(cells: tuple[str, ...], shares: tuple[str, ...]) -> tuple[str, ...]:
    """Inserts shares, or their title, before the status."""
    return (*cells[:-1], *shares, cells[-1])


def _conclusion(rows: Sequence[Row], reference: int, metric: str) -> str:
    """Says in a sentence which model is best, and how sure that is."""
    best = rows[0]
    rivals = [k for k, row in enumerate(rows) if row.algorithm != best.algorithm]
    if not rivals or math.isnan(best.value):
        return ""
    parts = []
    for k in dict.fromkeys([reference, rivals[0]]):
        difference = best.differences[k]
        if difference is not None:  # to itself, where it is the reference
            verb = "ahead of the" if difference.verdict else "not clearly ahead of the"
            parts.append(f"{verb} {_model_of(rows[k])} ({difference.text})")
    shown = metric.replace("_", " ")
    return (
        f"The {_model_of(best)} has the best mean {shown}, {best.value:.4f}:"
        f" {' and '.join(parts)}."
    )


def _model_of(row: Row) -> str:
    """Formats text, for example `personal model of Flame (lam = 1)`."""
    return f"{row.model.removesuffix(' (validation)')} model of {row.setting}"


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
    """Picks FedAvg, else Local, else the best on validation data, else the first row.

    Hybrids are never the best: they were chosen on these data, client by client.
    """
    names = [(head["algorithm"], head["model"]) for head in heads]
    for name in _REFERENCES:
        if name in names:
            return names.index(name)
    judged, _ = _points(result, "last", selection.VALIDATION)
    judged = judged[judged["metric"] == metric]
    columns = [*selection.environments(result), *columns]
    means = {
        _key(rows[columns].iloc[0]): rows["value"].mean(skipna=False)
        for rows in selection.groups(judged, columns)
    }
    scores = [
        metrics.score(metric, means.get(_key(head[columns]), math.nan))
        if not head["model"].startswith(selection.HYBRID)
        else -math.inf
        for head in heads
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
        f"The models of {population} clients on {data} data, {rounds}:"
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


def titles_of(compared: Comparison) -> tuple[str, ...]:
    """Returns the titles of the columns of `rows_of`."""
    titles = ("method", "model", *compared.measures)
    between = ("difference",) if compared.is_paired else ()
    return (*titles[:_DIFFERENCE], *between, *titles[_DIFFERENCE:])


def rows_of(compared: Comparison, environment: Environment) -> list[tuple[str, ...]]:
    """Returns the rows of an environment, with the differences to its reference."""
    rows = []
    for row in environment.rows:
        cells = [row.setting, row.model, *row.cells]
        if compared.is_paired:
            difference = row.differences[environment.reference]
            text = "reference" if difference is None else difference.text
            cells.insert(_DIFFERENCE, text)
        rows.append(tuple(cells))
    return rows


def text_of(compared: Comparison) -> str:
    """Formats a comparison as text: a star marks the best row of an environment."""
    lines = []
    for environment in compared.environments:
        rows = rows_of(compared, environment)
        star = "*" if compared.is_paired else ""
        table = [("", *titles_of(compared)), (star, *rows[0])]
        table += [("", *row) for row in rows[1:]]
        widths = [max(map(len, column)) for column in zip(*table, strict=True)]
        cells = [map(str.ljust, row, widths) for row in table]
        lines += [environment.title, *(" ".join(row).rstrip() for row in cells)]
        lines += [environment.conclusion, ""] if environment.conclusion else [""]
    return "\n".join(lines).rstrip()

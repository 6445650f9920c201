"""Ranking of methods, with differences paired by seed."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from fedjax_pfl import results
from fedjax_pfl.results import answer, metrics, paired, selection, shares, summaries

__all__ = [
    "Comparison",
    "Difference",
    "Environment",
    "Row",
    "brief",
    "compare",
    "rank",
    "rows_of",
    "text_of",
    "titles_of",
    "unseen",
    "unseen_text",
]

_BOUND = "hybrid (oracle)"  # not a method
_DIFFERENCE = 3  # its column, next to the measure that it compares
_WORSE = tuple(shares.stat("worse", name) for name, _ in shares.REFERENCES)
_WIDTH = 100  # characters of a line of text
_UNSEEN_TITLES = ("environment", "method", "model", "mean", "worst 10 %")
_ROUNDS = {
    "last": "last round",
    "best (validation)": "round that is best on validation data",
}
_FORM = "+.4f"  # as many digits as in a result's summary
_MANY = 5  # clients that a sentence names
_VERBS = {"": "not clearly ahead of", "equal": "equal to"}
_VERDICTS = {"holds": "better", "does not hold": "worse", "undecided": ""}


@dataclasses.dataclass(frozen=True)
class Difference:
    """A row minus another one."""

    mean: float
    margin: float  # half of the interval; infinite without one
    text: str
    verdict: str  # `better` or `worse` if the interval excludes 0, `equal`, or empty


@dataclasses.dataclass(frozen=True)
class Row:
    """One setting and model."""

    setting: str
    algorithm: str
    model: str
    value: float  # mean over seeds of the metric; NaN if all diverged
    cells: tuple[str, ...]  # one per measure
    differences: tuple[Difference | None, ...]  # to all rows of the environment
    # Shares of clients that are worse off than with a reference, by its name
    worse: Mapping[str, float]


@dataclasses.dataclass(frozen=True)
class Environment:
    """Rows with the same clients and data."""

    title: str  # common settings of the rows
    rows: tuple[Row, ...]  # the best first
    reference: int  # number of the row for differences in tables
    conclusion: str  # empty without comparisons


@dataclasses.dataclass(frozen=True)
class Comparison:
    """A table of methods."""

    name: str  # stem of its file names
    title: str
    caption: str
    short: str  # short form of the caption, for a paper
    # Titles of the cells of rows; `status` is one if not all are ok
    measures: tuple[str, ...]
    environments: tuple[Environment, ...]
    is_paired: bool  # whether rows are compared with each other


def rank(result: results.Result) -> Comparison | None:
    """Compares the best settings of all methods in the last round on own test data."""
    return compare(
        result.contenders(),
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
    only_best: bool = True,  # else lists all settings, without a comparison
) -> Comparison | None:
    """Compares methods in one round, `when`, on one kind of data."""
    points, metric = _points(result, when, data)
    if points.empty:
        return None
    sentence = ""
    if only_best:
        settings = selection.best_settings(result)
        points = points.merge(settings, on=list(settings.columns))
        choice = selection.choice(result)
        # Without a choice all settings are shown, and none compared.
        only_best, sentence = choice.is_made, choice.sentence
    rows = points[_columns(result)].drop_duplicates()
    is_rival = rows.duplicated(selection.environments(result))
    is_paired = only_best and bool(is_rival.any())
    caption = _caption(points, metric, data, when, is_paired)
    points, measures = _with_cells(result, points, when, data)
    # Shares are of own test data in the last round, and of best settings only.
    if only_best and when == "last" and data == summaries.OWN_TEST:
        points, titles = _share_cells(result, points, metric)
        measures[-1:-1] = titles
        if titles:
            caption += (
                " Worse than: share of clients with a worse own test"
                f" {metric.replace('_', ' ')}, paired by client and seed; means over"
                " seeds with 95 % intervals if there are several."
            )
    # Status is the last measure, and dropped if all are ok.
    if (points["status"] == "ok").all():
        measures.pop()
        points["cells"] = [cells[:-1] for cells in points["cells"]]
    else:
        caption += " Seeds that diverged do not count; status says how many did."
    names = selection.varying(points, selection.methods(result))
    environments = tuple(
        _environment(result, rows, names, metric, only_best, sentence)
        for rows in selection.groups(points, selection.environments(result))
    )
    short = _short_caption(points, metric, data, is_paired)
    measures = tuple(measures)
    return Comparison(name, title, caption, short, measures, environments, is_paired)


def _columns(result: results.Result) -> list[str]:
    """Columns that distinguish rows of all environments."""
    return [*selection.environments(result), *selection.methods(result), "model"]


def _points(result: results.Result, when: str, data: str) -> tuple[pd.DataFrame, str]:
    """Returns means over clients, one row per training and model, and the metric."""
    table = result.table()
    is_shown = (table["when"] == when) & (table["data"] == data)
    rows = table[is_shown & (table["stat"] == "mean") & (table["model"] != _BOUND)]
    return selection.reported(result, rows)


def _with_cells(
    result: results.Result, points: pd.DataFrame, when: str, data: str
) -> tuple[pd.DataFrame, list[str]]:
    """Adds the texts of the result's summary; also returns their titles."""
    summary = result.summary(when, data)
    place = list(summary.columns).index("model") + 1
    keys, measures = list(summary.columns[:place]), list(summary.columns[place:])
    texts = summary[measures].map(_text).itertuples(index=False, name=None)
    cells = pd.Series(list(texts), index=summary.index, dtype=object)
    points = _merged(points, summary[keys].assign(cells=cells), keys)
    return points, [name.replace("_", " ") for name in measures]


def _text(value: str | float) -> str:
    """Formats a cell: a privacy loss is a number, other cells are texts already."""
    if isinstance(value, str):
        return value or "–"
    return "–" if pd.isna(value) else f"{value:.3g}"


def _merged(rows: pd.DataFrame, extra: pd.DataFrame, keys: list[str]) -> pd.DataFrame:
    """Adds columns by equal keys, with key types that grouping may have lost."""
    return rows.merge(extra.astype(dict(rows[keys].dtypes)), on=keys, how="left")


def _share_cells(
    result: results.Result, points: pd.DataFrame, metric: str
) -> tuple[pd.DataFrame, list[str]]:
    """Adds shares of clients that are worse off in `metric` than with a reference."""
    table, columns, titles = result.table(), _columns(result), []
    table = table[(table["metric"] == metric) & (table["when"] == "last")]
    for title in _WORSE:
        part = table[table["stat"] == title]
        if part.empty:
            continue
        values = part.groupby(columns, sort=False, dropna=False)["value"]
        extra = values.agg(**{title: "mean", "share": _percent}).reset_index()
        points = _merged(points, extra, columns)
        pairs = zip(points["cells"], points.pop("share").fillna("–"), strict=True)
        points["cells"] = [(*cells[:-1], share, cells[-1]) for cells, share in pairs]
        titles.append(title)
    return points, titles


def _percent(values: pd.Series) -> str:
    """Formats the mean of shares over seeds with its interval: `12 % [3, 21]`."""
    interval = paired.of_mean(values)
    text = f"{100 * interval.mean:.0f} %"
    if interval.pairs < 2:
        return text
    low = max(100 * (interval.mean - interval.margin), 0)
    high = min(100 * (interval.mean + interval.margin), 100)
    return f"{text} [{low:.0f}, {high:.0f}]"


def _environment(
    result: results.Result,
    points: pd.DataFrame,
    names: Sequence[str],
    metric: str,
    is_paired: bool,
    sentence: str,
) -> Environment:
    """Returns the rows of one environment; `sentence` follows its conclusion."""
    # The score of NaN is the least: rows that diverged come last.
    groups = sorted(
        selection.groups(points, _columns(result)),
        key=lambda rows: metrics.score(metric, rows["value"].mean()),
    )[::-1]
    # One seed stands for a setting: its other columns are the same.
    heads = pd.concat([rows.head(1) for rows in groups])
    values = [rows.set_index("seed")["value"] for rows in groups]
    rows = tuple(
        Row(
            setting=selection.label(head, names),
            algorithm=head["algorithm"],
            model=head["model"],
            value=float(values[k].mean()),
            cells=head["cells"],
            differences=tuple(
                None if base is values[k] else _difference(values[k], base, metric)
                for base in values
                if is_paired
            ),
            worse={
                name: float(head[title])
                for title, (name, _) in zip(_WORSE, shares.REFERENCES, strict=True)
                if not pd.isna(head.get(title))
            },
        )
        for k, (_, head) in enumerate(heads.iterrows())
    )
    reference = _reference(result, heads, metric) if is_paired else 0
    answered = answer.answer(rows, metric, _steps(result, heads)) if is_paired else ""
    conclusion = _conclusion(rows, reference, metric) if is_paired else ""
    ends = _at_ends(result, heads) if is_paired else ""
    without = _without_value(result, heads, metric)
    conclusion = " ".join(filter(None, (answered, conclusion, sentence, ends, without)))
    title = selection.title(heads.iloc[0], selection.environments(result))
    return Environment(title, rows, reference, conclusion)


def _steps(result: results.Result, heads: pd.DataFrame) -> dict[str, float]:
    """Returns local steps of trainings by algorithm, for the listed settings."""
    columns = _columns(result)[:-1]
    costs = result.communication().merge(heads[columns].drop_duplicates(), on=columns)
    means = costs.groupby("algorithm")["client_steps"].mean()
    return {str(name): steps for name, steps in means.items()}


def _at_ends(result: results.Result, heads: pd.DataFrame) -> str:
    """Names fields with a chosen value at an end of a range of three or more."""
    table, ranges = result.table(), {}
    fields = selection.tuned(result)
    for field, name in zip(fields, selection.short(fields), strict=True):
        for algorithm, choices in heads.groupby("algorithm", sort=False)[field]:
            values = table[table["algorithm"] == algorithm][field].dropna().unique()
            ends = {min(values), max(values)} if _is_range(values) else set()
            if ends & set(choices):
                low, high = sorted(ends)
                ranges.setdefault(f"{name} ({low:g} to {high:g})", []).append(algorithm)
    if not ranges:
        return ""
    parts = (f"{field} of {' and '.join(names)}" for field, names in ranges.items())
    return f"Chosen at the end of its range: {', '.join(parts)}."


def _is_range(values: Sequence[Any]) -> bool:
    """Returns whether values are three or more numbers."""
    return len(values) > 2 and all(
        isinstance(v, int | float) and not isinstance(v, bool) for v in values
    )


def _without_value(result: results.Result, heads: pd.DataFrame, metric: str) -> str:
    """Names clients with test examples for which a metric is undefined."""
    environment = selection.environments(result)
    keys = heads.head(1)[environment]
    clients = result.clients().merge(keys, on=environment)
    is_defined = clients["metric"] == metric
    identity = [clients["seed"], clients["name"]]
    has_metric = is_defined.groupby(identity, dropna=False).transform("any")
    # Clients that diverged have no value of any metric, and are not included.
    lacking = clients[clients["value"].notna() & ~has_metric]["name"]
    names = list(dict.fromkeys(lacking))
    if not names:
        return ""
    listed = ", ".join(names[:_MANY])
    if len(names) > _MANY:
        listed += f" and {len(names) - _MANY} more"
    clients_are = "client" if len(names) == 1 else "clients"
    some = " in some seeds" if lacking.isin(clients[is_defined]["name"]).any() else ""
    return (
        f"The {metric.replace('_', ' ')} is undefined{some} on the test"
        f" examples of {len(names)} {clients_are} ({listed}), left out of its mean."
    )


def _conclusion(rows: Sequence[Row], reference: int, metric: str) -> str:
    """Returns a sentence with the best model and the evidence for it."""
    leader = rows[0]
    rivals = [k for k, row in enumerate(rows) if row.algorithm != leader.algorithm]
    if not rivals or math.isnan(leader.value):
        return ""
    parts = []
    for k in dict.fromkeys([reference, rivals[0]]):
        difference = leader.differences[k]
        if difference is not None:  # None for the reference itself
            verb = _VERBS.get(difference.verdict, "ahead of")
            gap = "" if difference.verdict == "equal" else f" ({difference.text})"
            parts.append(f"{verb} the {_model_of(rows[k])}{gap}")
    metric_name = metric.replace("_", " ")
    return (
        f"The {_model_of(leader)} has the best mean {metric_name}, {leader.value:.4f}:"
        f" {' and '.join(parts)}."
    )


def _model_of(row: Row) -> str:
    """Formats text, for example `personal model of Flame (lam = 1)`."""
    return f"{row.model.removesuffix(' (validation)')} model of {row.setting}"


def _difference(values: pd.Series, reference: pd.Series, metric: str) -> Difference:
    """Returns one row minus another, paired by seed."""
    interval = paired.interval(values, reference)
    # Equal in every seed, as copies of a method are: no interval excludes zero then.
    if interval.pairs and not interval.lost and values.sub(reference).eq(0).all():
        return Difference(0.0, 0.0, interval.text(_FORM), "equal")
    gain = dataclasses.replace(interval, mean=metrics.sign(metric) * interval.mean)
    numbers = (interval.mean, interval.margin)
    return Difference(*numbers, interval.text(_FORM), _VERDICTS[gain.verdict])


def _reference(result: results.Result, heads: pd.DataFrame, metric: str) -> int:
    """Picks FedAvg, else Local, else the best on validation data, else the first."""
    names = list(zip(heads["algorithm"], heads["model"], strict=True))
    for name in shares.REFERENCES:
        if name in names:
            return names.index(name)
    columns = _columns(result)
    judged, _ = _points(result, "last", selection.VALIDATION)
    judged = judged.groupby(columns, dropna=False)["value"]
    means = judged.agg(lambda values: values.mean(skipna=False)).reset_index()
    values = _merged(heads[columns], means, columns)["value"]
    # Hybrids are never picked: they were chosen on these data, client by client.
    scores = [
        -math.inf
        if model.startswith(selection.HYBRID)
        else metrics.score(metric, value)
        for model, value in zip(heads["model"], values, strict=True)
    ]
    return scores.index(max(scores))


def _caption(
    points: pd.DataFrame, metric: str, data: str, when: str, is_paired: bool
) -> str:
    """Describes models, data, round and seeds."""
    population = " and ".join(points["population"].unique())
    seeds = sorted(points["seed"].dropna().unique().tolist())
    count, seed_list = len(seeds), ", ".join(map(str, seeds))
    shown_metric = metric.replace("_", " ")
    text = (
        f"Models of {population} clients on {data} data, {_ROUNDS[when]}:"
        f" {shown_metric} is the mean over clients, worst 10 % the mean over the worst"
        " tenth of clients, loss variance the variance of their losses."
    )
    if metrics.sign(metric) < 0:
        text += " Less is better."
    if not count:
        text += " One seed, which is not stored: no intervals and no spread over seeds."
    elif count > 1:
        text += f" Mean ± standard deviation over {count} seeds ({seed_list})."
    else:
        text += f" One seed ({seed_list}): no intervals and no spread over seeds."
    if not is_paired:
        return text
    text += f" Differences are of {shown_metric}, row minus reference, paired by seed"
    if count > 1:
        text += ", with 95 % intervals of Student's t, not corrected for their number"
    return f"{text}."


def _short_caption(
    points: pd.DataFrame, metric: str, data: str, is_paired: bool
) -> str:
    """Returns a short description of the numbers."""
    count = points["seed"].nunique()
    text = f"Mean {metric.replace('_', ' ')} over clients, {data} data"
    # A spread and an interval need two seeds.
    if count < 2:
        return f"{text}, one seed."
    text += f", ± standard deviation over {count} seeds"
    return f"{text}; differences with 95 % intervals." if is_paired else f"{text}."


def titles_of(comparison: Comparison) -> tuple[str, ...]:
    """Returns the titles of the columns of `rows_of`."""
    titles = ("method", "model", *comparison.measures)
    between = ("difference",) if comparison.is_paired else ()
    return (*titles[:_DIFFERENCE], *between, *titles[_DIFFERENCE:])


def rows_of(comparison: Comparison, environment: Environment) -> list[tuple[str, ...]]:
    """Returns the rows of an environment, with the differences to its reference."""
    rows = []
    for row in environment.rows:
        cells = [row.setting, row.model, *row.cells]
        if comparison.is_paired:
            difference = row.differences[environment.reference]
            text = "reference" if difference is None else difference.text
            cells.insert(_DIFFERENCE, text)
        rows.append(tuple(cells))
    return rows


def brief(
    comparison: Comparison, environment: Environment
) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Returns titles and rows for a terminal: without the variance of the loss."""
    titles, rows = titles_of(comparison), rows_of(comparison, environment)
    places = [k for k, title in enumerate(titles) if title != "loss variance"]
    return tuple(titles[k] for k in places), [tuple(r[k] for k in places) for r in rows]


def text_of(comparison: Comparison) -> str:
    """Formats a comparison as text: a star marks the best row of an environment."""
    lines = []
    for environment in comparison.environments:
        titles, rows = brief(comparison, environment)
        star = "*" if comparison.is_paired else ""
        table = [("", *titles), (star, *rows[0]), *(("", *row) for row in rows[1:])]
        columns = list(zip(*table, strict=True))
        lines += [environment.title, *_blocks(columns[:3], columns[3:])]
        lines += [environment.conclusion, ""] if environment.conclusion else [""]
    return "\n".join(lines).rstrip()


def _blocks(
    row_labels: Sequence[tuple[str, ...]], data_columns: Sequence[tuple[str, ...]]
) -> list[str]:
    """Formats columns of cells as blocks of lines that repeat the first columns."""

    def width(columns: Sequence[tuple[str, ...]]) -> int:
        return sum(1 + max(map(len, column)) for column in columns) - 1

    # Columns that do not fit into 100 characters follow below, with the labels again.
    blocks = [[*row_labels, data_columns[0]]]
    for column in data_columns[1:]:
        if width([*blocks[-1], column]) > _WIDTH:
            blocks.append(list(row_labels))
        blocks[-1].append(column)
    lines = []
    for block in blocks:
        widths = [width([column]) for column in block]
        cells = [map(str.ljust, row, widths) for row in zip(*block, strict=True)]
        lines += [" ".join(row).rstrip() for row in cells]
    return lines


def unseen(result: results.Result) -> list[tuple[str, ...]]:
    """Returns `_UNSEEN_TITLES` of clients that never trained, best settings only."""
    table = result.table()
    table = table[table["population"] == "unseen"]
    if table.empty:
        return []
    # The settings of the ranking: unseen clients do not choose.
    settings = selection.best_settings(result)
    table = table.merge(settings, on=list(settings.columns))
    table = table[table["metric"] == result.headline]
    names = selection.varying(table, selection.methods(result))
    rows = []
    for group in selection.groups(table, _columns(result)):
        head = group.iloc[0]
        values = [group[group["stat"] == s]["value"] for s in ("mean", "worst 10 %")]
        title = selection.title(head, selection.environments(result))
        texts = (summaries.mean_and_std(v) or "–" for v in values)
        rows.append((title, selection.label(head, names), head["model"], *texts))
    return rows


def unseen_text(result: results.Result) -> str:
    """Formats `unseen` as lines after a ranking; empty without such clients."""
    rows = unseen(result)
    if not rows:
        return ""
    lines = ["", "", "Clients that never trained, after the last round:"]
    for title in dict.fromkeys(row[0] for row in rows):
        table = [_UNSEEN_TITLES[1:], *(row[1:] for row in rows if row[0] == title)]
        columns = list(zip(*table, strict=True))
        lines += [title, *_blocks(columns[:2], columns[2:])]
    return "\n".join(lines)

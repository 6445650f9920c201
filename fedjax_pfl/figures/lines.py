"""Lines of learning curves, of swept fields, and of clients' series by day."""

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence

import numpy as np
import pandas as pd
from pandas.api.types import is_bool_dtype, is_numeric_dtype

from fedjax_pfl import results
from fedjax_pfl.figures import contents, multiples
from fedjax_pfl.results import metrics, selection, summaries

__all__ = [
    "is_wide",
    "learning_curves",
    "numeric",
    "over_days",
    "over_megabytes",
    "over_virtual_time",
    "swept",
    "training_loss",
]

_DATA = summaries.OWN_TEST
_TRAINING = "own training"
_BESIDE = {"uniform_value": "equal shares, rebalanced", "hold_value": "bought and held"}
_WIDE = 10  # ratio of the largest to the smallest value that requires logarithms
_TUNED = "fine-tuned"
_LEVEL = "is level"  # column: whether a row does not depend on the x-axis


def learning_curves(result: results.Result, data: str = _DATA) -> contents.Lines | None:
    """Returns the mean over clients against rounds, a line per method and model."""
    curves, metric = selection.shown_curves(result, data)
    if curves.empty:
        return None
    # Only the best setting of an algorithm's own fields is drawn; all other swept
    # fields are compared, those of environments in panels.
    methods = selection.contenders(result, curves)
    ylabel = f"mean {metric} over clients"
    score = functools.partial(_last_value, metric=metric)
    places, make = selection.environments(result), multiples.over_seeds
    chart = _in_panels(curves, methods, places, make, ylabel, data, score)
    return dataclasses.replace(chart, zooms=True, is_loss=metric == "loss")


def over_virtual_time(result: results.Result) -> contents.Lines | None:
    """Returns the curves of `learning_curves` against the time of clients' devices."""
    return _over_cost(result, "virtual_seconds", "virtual time, seconds", 1.0)


def over_megabytes(result: results.Result) -> contents.Lines | None:
    """Returns the curves of `learning_curves` against bytes, up and down."""
    return _over_cost(result, "bytes", "sent by and to clients, MB", 1e-6)


def _over_cost(
    result: results.Result, name: str, xlabel: str, scale: float
) -> contents.Lines | None:
    """Returns learning curves against costs, with means over seeds of both."""
    curves, metric = selection.shown_curves(result)
    costs = result.spent()
    costs["bytes"] = costs["bytes_up"] + costs["bytes_down"]
    columns = [c for c in costs.columns if c in curves.columns]
    rows = curves.merge(costs[[*columns, name]], on=columns)
    rows = rows[rows[name].notna() & (rows["round"] > 0)]
    per_round = (rows[name] / rows["round"]).round(3)
    if rows.empty or (name == "bytes" and per_round.nunique() < 2):
        return None
    rows = rows.assign(cost=scale * rows[name])
    # Participations and transforms are compared by their costs, so in one panel.
    every = selection.environments(result)
    ways = [f for f in every if f.startswith(("participation", "transforms"))]
    methods = [*selection.contenders(result, rows), *ways]
    places = [field for field in every if field not in ways]
    ylabel = f"mean {metric} over clients"
    score = functools.partial(_last_value, metric=metric)
    chart = _in_panels(rows, methods, places, _against_cost, ylabel, _DATA, score)
    return dataclasses.replace(chart, xlabel=xlabel)


def _against_cost(rows: pd.DataFrame, setting: str, color: int) -> contents.Line:
    """Makes a line of one setting and model; its costs are means over seeds as well."""
    curve = multiples.over_seeds(rows, setting, color)
    return dataclasses.replace(curve, x=rows.groupby("round")["cost"].mean().to_numpy())


def training_loss(result: results.Result) -> contents.Lines | None:
    """Returns the mean loss on own training data against rounds, of all settings."""
    curves, _ = selection.reported(result, result.curves(), "loss")
    is_shown = (curves["data"] == _TRAINING) & curves["model"].isin(selection.MODELS)
    if not is_shown.any():
        return None
    label = "mean training loss over clients"
    columns = (selection.methods(result), selection.environments(result))
    make = multiples.over_seeds
    chart = _in_panels(curves[is_shown], *columns, make, label, _TRAINING)
    return dataclasses.replace(chart, log_y=True)


def _last_value(rows: pd.DataFrame, metric: str) -> float:
    """Scores a line by its mean in the last round; lines without one come last."""
    value = rows.loc[rows["round"] == rows["round"].max(), "value"].mean()
    return -math.inf if math.isnan(value) else metrics.score(metric, value)


def _in_panels(
    curves: pd.DataFrame,
    methods: Sequence[str],
    environments: Sequence[str],
    make: Callable[[pd.DataFrame, str, int], contents.Line],
    ylabel: str,
    data: str,
    score: Callable[[pd.DataFrame], float] | None = None,
) -> contents.Lines:
    """Makes one line per method and model, in a panel per environment."""
    return multiples.in_panels(
        contents.Lines,
        multiples.of_few_models(curves, methods),
        [*methods, "model"],
        environments,
        make,
        score=score,
        xlabel="round",
        ylabel=ylabel,
        data=data,
        spread=selection.band(curves),
    )


def swept(result: results.Result) -> contents.Lines | None:
    """Returns the last round's metric against the numeric field with most values."""
    table, metric = selection.last_round(result)
    fields = numeric(table, result.fields)
    if not fields:
        return None
    field = fields[0]
    methods = [name for name in selection.methods(result) if name != field]
    is_best = False
    # An algorithm's own settings are the best on validation data, unless one of them is
    # the field.
    if field not in selection.tuned(result):
        table, methods, is_best = multiples.best_of_many(result, table, methods)
    values = sorted(table[field].dropna().unique())
    # Algorithms without this field are levels.
    rows = _with_levels(table, field, values)
    seeds = table["seed"].nunique()
    spread = f"mean over clients, then mean ± std over {seeds} seeds"
    return multiples.in_panels(
        contents.Lines,
        rows,
        methods,
        [name for name in selection.environments(result) if name != field],
        lambda line, name, color: dataclasses.replace(
            multiples.over_seeds(line, name, color, field, has_std=True),
            model="",  # panels say it
            is_level=bool(line[_LEVEL].all()),
        ),
        also=["model"],
        xlabel=field,
        ylabel=f"mean {metric}, last round",
        data=_DATA,
        spread=spread if seeds > 1 else "",
        around="mean ± std",
        log_x=is_wide(values),
        bars=True,
        is_best=is_best,
    )


def _with_levels(
    table: pd.DataFrame, field: str, values: Sequence[float]
) -> pd.DataFrame:
    """Returns rows with the field, and rows without it repeated for its values."""
    has_field = table[field].notna()
    models = set(table.loc[has_field, "model"])
    if "personal" in models:  # the bar to beat, in the same panel
        tuned = table[~has_field & (table["model"] == _TUNED)]
        names = tuned["algorithm"] + f", {_TUNED}"
        tuned = tuned.assign(algorithm=names, model="personal")
        tuned.index += table.index.max() + 1  # others keep their colors
        table = pd.concat([table, tuned])
        has_field = table[field].notna()
    table = table[table["model"].isin(models)]
    order = list(selection.MODELS).index
    table = table.sort_values("model", key=lambda m: m.map(order), kind="stable")
    has_field = table[field].notna()
    parts = [table[has_field].assign(**{_LEVEL: False})]
    if not has_field.all():
        parts += [table[~has_field].assign(**{field: x, _LEVEL: True}) for x in values]
    return pd.concat(parts)


def numeric(table: pd.DataFrame, fields: Sequence[str]) -> list[str]:
    """Returns numeric fields with several values, most values first."""
    counts = {
        f: table[f].nunique()
        for f in fields
        if is_numeric_dtype(table[f]) and not is_bool_dtype(table[f])
    }
    return sorted((f for f in counts if counts[f] > 1), key=lambda f: -counts[f])


def is_wide(values: Sequence[float]) -> bool:
    """Returns whether positive ascending values need a logarithmic axis."""
    return values[0] > 0 and values[-1] >= _WIDE * values[0]


def over_days(result: results.Result) -> contents.Lines | None:
    """Returns values of portfolios over the test days, one panel per market."""
    table = result.series()
    if table.empty:
        return None
    table = table[table["model"].isin(selection.MODELS)].assign(population="honest")
    methods, markets = selection.methods(result), selection.environments(result)
    rows = table[table["name"] == "value"]
    # Means over parties and seeds; the band is between quantiles of the parties of a
    # seed, averaged over seeds.
    rows = pd.concat(map(selection.first_model, selection.groups(rows, methods)))
    chart = multiples.in_panels(
        contents.Lines,
        rows,
        methods,
        markets,
        _by_day,
        xlabel="trading day of the test",
        ylabel="value, from 1 on",
        spread="mean over parties and seeds; band: 10 % to 90 % of parties",
        around="10 % to 90 %",
    )
    return multiples.extend(chart, table, markets, _strategies)


def _strategies(table: pd.DataFrame) -> list[contents.Line]:
    """Returns the curves of strategies that no method trains."""
    rows = table.assign(algorithm="", model="", population="")
    return [
        _by_day(rows[rows["name"] == name], title, color)
        for color, (name, title) in enumerate(_BESIDE.items())
    ]


def _by_day(rows: pd.DataFrame, setting: str, color: int) -> contents.Line:
    """Returns means by day; only the first method has a band."""
    by_day = rows.groupby("moment")
    mean, low, high = (by_day[name].mean() for name in ("mean", "10 %", "90 %"))
    if color or not rows["algorithm"].iloc[0]:
        low = high = mean * np.nan
    return multiples.line(rows, setting, color, mean, low, high)

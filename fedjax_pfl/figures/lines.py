"""Lines of learning curves, of swept fields, and of clients' series by day."""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

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


def learning_curves(result: results.Result, data: str = _DATA) -> contents.Lines | None:
    """Returns the mean over clients against rounds, a line per method and model."""
    curves, metric = selection.shown_curves(result, data)
    if curves.empty:
        return None
    # Only the best setting of an algorithm's own fields is drawn; all other swept
    # fields are compared, those of environments in panels.
    return _in_panels(
        curves,
        selection.contenders(result, curves),
        selection.environments(result),
        ylabel=f"mean {metric} over clients",
        data=data,
        score=functools.partial(_last_value, metric=metric),
        zooms=True,
        is_loss=metric == "loss",
    )


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
    return _in_panels(
        rows,
        [*selection.contenders(result, rows), *ways],
        [field for field in every if field not in ways],
        _against_cost,
        xlabel=xlabel,
        ylabel=f"mean {metric} over clients",
        score=functools.partial(_last_value, metric=metric),
    )


def _against_cost(rows: pd.DataFrame, color: int) -> pd.DataFrame:
    """Returns means over seeds of values and of their costs."""
    costs = rows.groupby("round")["cost"].mean()
    return multiples.over_seeds(rows, color).assign(x=costs.to_numpy())


def training_loss(result: results.Result) -> contents.Lines | None:
    """Returns the mean loss on own training data against rounds, of all settings."""
    curves, _ = selection.reported(result, result.curves(), "loss")
    is_shown = (curves["data"] == _TRAINING) & curves["model"].isin(selection.MODELS)
    if not is_shown.any():
        return None
    return _in_panels(
        curves[is_shown],
        selection.methods(result),
        selection.environments(result),
        ylabel="mean training loss over clients",
        data=_TRAINING,
        log_y=True,
    )


def _last_value(rows: pd.DataFrame, metric: str) -> float:
    """Scores a line by its mean in the last round; lines without one come last."""
    value = rows.loc[rows["round"] == rows["round"].max(), "value"].mean()
    return -math.inf if math.isnan(value) else metrics.score(metric, value)


def _in_panels(
    curves: pd.DataFrame,
    methods: Sequence[str],
    environments: Sequence[str],
    make: Callable[[pd.DataFrame, int], pd.DataFrame] = multiples.over_seeds,
    **fields: Any,
) -> contents.Lines:
    """Makes one line per method and model, in a panel per environment."""
    usual: dict[str, Any] = {"xlabel": "round", "data": _DATA}
    return multiples.in_panels(
        multiples.of_few_models(curves, methods),
        [*methods, "model"],
        environments,
        make,
        spread=selection.band(curves),
        **(usual | fields),
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
        rows,
        methods,
        [name for name in selection.environments(result) if name != field],
        functools.partial(multiples.over_seeds, by=field, has_std=True),
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
    parts = [table[has_field].assign(is_level=False)]
    if not has_field.all():
        levels = table[~has_field].assign(is_level=True)
        parts += [levels.assign(**{field: x}) for x in values]
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


def _strategies(table: pd.DataFrame) -> list[contents.Mark]:
    """Returns the curves of strategies that no method trains."""
    table = table.assign(algorithm="", model="", population="")
    marks = []
    for color, (name, title) in enumerate(_BESIDE.items()):
        rows = table[table["name"] == name]
        marks.append(multiples.mark(rows, title, color, _by_day(rows, color)))
    return marks


def _by_day(rows: pd.DataFrame, color: int) -> pd.DataFrame:
    """Returns means by day; only the first method has a band."""
    by_day = rows.groupby("moment")
    mean, low, high = (by_day[name].mean() for name in ("mean", "10 %", "90 %"))
    if color or not rows["algorithm"].iloc[0]:
        low = high = mean * np.nan
    return multiples.line(mean, low, high)

"""Lines of learning curves, and of a metric against a swept field."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import pandas as pd
from pandas.api.types import is_bool_dtype, is_numeric_dtype

from fedjax_pfl import results
from fedjax_pfl.figures import contents, multiples
from fedjax_pfl.results import selection, summaries

__all__ = ["is_wide", "learning_curves", "numeric", "swept", "training_loss"]

_DATA = summaries.OWN_TEST
_TRAINING = "own training"
_WIDE = 10  # ratio of the largest to the smallest value that asks for logarithms
_LEVEL = "is level"  # column: whether a row knows nothing of what it is drawn against


def learning_curves(result: results.Result, data: str = _DATA) -> contents.Lines | None:
    """Returns the mean over clients against rounds, one line per algorithm and model.

    There is a panel per environment. Where there are too many lines, an algorithm's
    personal model stands for it. Of the settings of an algorithm's own fields, the one
    that is best on validation data in the last round is shown, the first if there are
    no such data; all other swept fields are compared.

    Args:
      result: what to show.
      data: on which the models are judged.

    Returns:
      The lines; None if nothing was evaluated on these data.
    """
    curves, metric = selection.shown_curves(result, data)
    if curves.empty:
        return None
    methods = selection.contenders(result, curves)
    ylabel = f"mean {metric} over clients"
    shown = _over_rounds(result, curves, methods, ylabel, data)
    return dataclasses.replace(shown, zooms=True, is_loss=metric == "loss")


def training_loss(result: results.Result) -> contents.Lines | None:
    """Returns the mean loss on own training data against rounds, of all settings.

    Args:
      result: what to show.

    Returns:
      The lines, with a logarithmic axis; None if nothing was evaluated on training
      data.
    """
    curves, _ = selection.reported(result, result.curves(), "loss")
    is_shown = (curves["data"] == _TRAINING) & curves["model"].isin(selection.MODELS)
    if not is_shown.any():
        return None
    label = "mean training loss over clients"
    methods = selection.methods(result)
    shown = _over_rounds(result, curves[is_shown], methods, label, _TRAINING)
    return dataclasses.replace(shown, log_y=True)


def _over_rounds(
    result: results.Result,
    curves: pd.DataFrame,
    methods: Sequence[str],
    ylabel: str,
    data: str,
) -> contents.Lines:
    """Makes one line per method and model, with a band over seeds."""
    rows = multiples.of_few_models(curves, methods)
    panels, left_out = multiples.in_panels(
        rows,
        [*methods, "model"],
        selection.environments(result),
        lambda line, name, color: multiples.over_seeds(line, "round", name, color),
    )
    return contents.Lines(
        panels=panels,
        xlabel="round",
        ylabel=ylabel,
        data=data,
        spread=selection.band(curves),
        left_out=left_out,
    )


def swept(result: results.Result) -> contents.Lines | None:
    """Returns the metric in the last round against the numeric field with most values.

    There is a panel per model and environment. Algorithms without this field are
    levels. Where there are too many lines, an algorithm's own settings are those that
    are best on validation data, unless one of them is the field.

    Args:
      result: what to show.

    Returns:
      The lines; None if no numeric field was swept.
    """
    table, metric = selection.last_round(result)
    fields = numeric(table, result.fields)
    if not fields:
        return None
    field = fields[0]
    methods = [name for name in selection.methods(result) if name != field]
    is_best = False
    if field not in selection.tuned(result):
        table, methods, is_best = multiples.best_of_many(result, table, methods)
    values = sorted(table[field].dropna().unique())
    rows = _with_levels(table, field, values)
    panels, left_out = multiples.in_panels(
        rows,
        methods,
        [name for name in selection.environments(result) if name != field],
        lambda line, name, color: dataclasses.replace(
            multiples.over_seeds(line, field, name, color, _mean_and_std),
            model="",  # panels say it
            is_level=bool(line[_LEVEL].all()),
        ),
        also=["model"],
    )
    seeds = table["seed"].nunique()
    spread = f"mean over clients, then mean ± std over {seeds} seeds"
    return contents.Lines(
        panels=panels,
        xlabel=field,
        ylabel=f"mean {metric}, last round",
        data=_DATA,
        spread=spread if seeds > 1 else "",
        left_out=left_out,
        around="mean ± std",
        log_x=is_wide(values),
        bars=True,
        is_best=is_best,
    )


def _with_levels(
    table: pd.DataFrame, field: str, values: Sequence[float]
) -> pd.DataFrame:
    """Returns rows of models with the field; those without for each of its values."""
    knows = table[field].notna()
    table = table[table["model"].isin(table.loc[knows, "model"])]
    table = table.sort_values("model", key=_order, kind="stable")
    knows = table[field].notna()
    parts = [table[knows].assign(**{_LEVEL: False})]
    if not knows.all():
        parts += [table[~knows].assign(**{field: x, _LEVEL: True}) for x in values]
    return pd.concat(parts)


def _order(models: pd.Series) -> pd.Series:
    """Returns the positions of models among all."""
    return models.map(list(selection.MODELS).index)


def _mean_and_std(values: Any) -> tuple[pd.Series, pd.Series, pd.Series]:
    """Returns the mean, and what is a standard deviation below and above it."""
    mean, std = values.mean(), values.std().fillna(0)
    return mean, mean - std, mean + std


def numeric(table: pd.DataFrame, fields: Sequence[str]) -> list[str]:
    """Returns numeric fields with several values; those with most values first."""
    counts = {
        f: table[f].nunique()
        for f in fields
        if is_numeric_dtype(table[f]) and not is_bool_dtype(table[f])
    }
    return sorted((f for f in counts if counts[f] > 1), key=lambda f: -counts[f])


def is_wide(values: Sequence[float]) -> bool:
    """Returns whether positive values in ascending order ask for a logarithmic axis."""
    return values[0] > 0 and values[-1] >= _WIDE * values[0]

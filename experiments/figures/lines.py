"""Lines of learning curves, and of a metric against a swept field."""

from collections.abc import Callable, Sequence
from typing import Any

import pandas as pd
from pandas.api.types import is_bool_dtype, is_numeric_dtype

from experiments.figures import contents, drawing, selection
from fedjax_pfl import results, summaries

__all__ = [
    "at_most",
    "band",
    "is_wide",
    "learning_curves",
    "numeric",
    "over_seeds",
    "swept",
    "training_loss",
]

_DATA = summaries.OWN_TEST
_TRAINING = "own training"
_WIDE = 10  # ratio of the largest to the smallest value that asks for logarithms


def learning_curves(result: results.Result, data: str = _DATA) -> contents.Lines | None:
    """The mean over clients against rounds, one line per algorithm and model.

    Where that is too many lines, an algorithm's personal model stands for it.

    Of the settings of an algorithm's own fields, the one that is best on validation
    data in the last round is shown, the first if there are no such data; all other
    swept fields are compared.

    Args:
      result: what to show.
      data: on which the models are judged.

    Returns:
      The lines; None if nothing was evaluated on these data.
    """
    curves, metric = selection.shown_curves(result, data)
    if curves.empty:
        return None
    return _over_rounds(result, curves, f"mean {metric} over clients", data)


def training_loss(result: results.Result) -> contents.Lines | None:
    """The mean loss on clients' own training data against rounds, of all settings.

    Args:
      result: what to show.

    Returns:
      The lines, with a logarithmic axis; None if nothing was evaluated on training
      data.
    """
    curves, _ = selection.reported(result, result.curves(), "loss")
    shown = (curves["data"] == _TRAINING) & curves["model"].isin(selection.MODELS)
    if not shown.any():
        return None
    label = "mean training loss over clients"
    return _over_rounds(result, curves[shown], label, _TRAINING, log_y=True)


def swept(result: results.Result) -> contents.Lines | None:
    """The metric in the last round against the numeric field with most values.

    Algorithms without this field are levels.

    Args:
      result: what to show.

    Returns:
      One panel per model; None if no numeric field was swept.
    """
    table = result.table()
    table = table[(table["when"] == "last") & (table["stat"] == "mean")]
    table, metric = selection.reported(result, table)
    table = table[(table["data"] == _DATA) & table["model"].isin(selection.MODELS)]
    fields = numeric(table, result.fields)
    if not fields:
        return None
    field = fields[0]
    keys = [*selection.DESCRIPTION, *(f for f in result.fields if f != field)]
    names = selection.varying(table, keys)
    found = set(table.loc[table[field].notna(), "model"])
    models = [model for model in selection.MODELS if model in found]
    settings = list(selection.groups(table, keys))
    values = sorted(table[field].dropna().unique())
    panels = []
    for model in models:
        lines = []
        for k, everything in enumerate(settings[: drawing.MAX_LINES]):
            rows = everything[everything["model"] == model]
            if rows.empty:
                continue
            name = selection.label(everything.iloc[0], names)
            is_level = bool(everything[field].isna().all())
            if is_level:
                rows = pd.concat([rows.assign(**{field: value}) for value in values])
            line = over_seeds(rows, field, name, k, _mean_and_std, is_level=is_level)
            lines.append(line)
        population = table["population"].iloc[0]
        panels.append(
            contents.Panel(f"{model}\n× {population} × {_DATA}", tuple(lines))
        )
    seeds = table["seed"].nunique()
    spread = f"mean over clients, then mean ± std over {seeds} seeds"
    return contents.Lines(
        panels=tuple(panels),
        xlabel=field,
        ylabel=f"mean {metric}, last round",
        data=_DATA,
        spread=spread if seeds > 1 else "",
        around="mean ± std",
        total=len(settings),
        log_x=is_wide(values),
    )


def numeric(table: pd.DataFrame, fields: Sequence[str]) -> list[str]:
    """Numeric fields with several values; those with most values first."""
    counts = {
        f: table[f].nunique()
        for f in fields
        if is_numeric_dtype(table[f]) and not is_bool_dtype(table[f])
    }
    return sorted((f for f in counts if counts[f] > 1), key=lambda f: -counts[f])


def is_wide(values: Sequence[float]) -> bool:
    """Whether positive values in ascending order ask for a logarithmic axis."""
    return values[0] > 0 and values[-1] >= _WIDE * values[0]


def _over_rounds(
    result: results.Result,
    curves: pd.DataFrame,
    ylabel: str,
    data: str,
    log_y: bool = False,
) -> contents.Lines:
    """One line per setting and model, with a band over seeds."""
    keys = selection.settings(result)
    names = selection.varying(curves, keys)
    found = at_most(curves, keys)
    colors: dict[str, int] = {}
    lines = []
    for rows in found[: drawing.MAX_LINES]:
        setting = selection.label(rows.iloc[0], names)
        color = colors.setdefault(setting, len(colors))
        lines.append(over_seeds(rows, "round", setting, color, band))
    return contents.Lines(
        panels=(contents.Panel("", tuple(lines)),),
        xlabel="round",
        ylabel=ylabel,
        data=data,
        spread=selection.band(curves),
        total=len(found),
        log_y=log_y,
    )


def at_most(rows: pd.DataFrame, settings: Sequence[str]) -> list[pd.DataFrame]:
    """One line per setting and model; of too many only a setting's first model."""
    lines = list(selection.groups(rows, [*settings, "model"]))
    if len(lines) <= drawing.MAX_LINES:
        return lines
    return [selection.first_model(rows) for rows in selection.groups(rows, settings)]


Spread = Callable[[Any], tuple[pd.Series, pd.Series, pd.Series]]


def over_seeds(
    rows: pd.DataFrame,
    by: str,
    setting: str,
    color: int,
    spread: Spread,
    is_level: bool = False,
) -> contents.Line:
    """The line of rows of one setting and model, against one of their columns."""
    mean, low, high = spread(rows.groupby(by)["value"])
    first = rows.iloc[0]
    return contents.Line(
        setting=setting,
        algorithm=first["algorithm"],
        model=first["model"],
        population=first["population"],
        color=color,
        x=mean.index.to_numpy(),
        y=mean.to_numpy(),
        low=low.to_numpy(),
        high=high.to_numpy(),
        is_level=is_level,
    )


def band(values: Any) -> tuple[pd.Series, pd.Series, pd.Series]:
    """Mean, minimum and maximum of groups."""
    return values.mean(), values.min(), values.max()


def _mean_and_std(values: Any) -> tuple[pd.Series, pd.Series, pd.Series]:
    """Mean, and what is a standard deviation below and above it."""
    mean, std = values.mean(), values.std().fillna(0)
    return mean, mean - std, mean + std

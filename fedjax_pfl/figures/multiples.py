"""Small multiples: a panel per environment, the same methods in all of them."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np
import pandas as pd

from fedjax_pfl import results
from fedjax_pfl.figures import contents, drawing
from fedjax_pfl.results import selection

__all__ = [
    "beside",
    "best_of_many",
    "in_panels",
    "line",
    "of_few_models",
    "over_seeds",
]

_WITH_HYBRIDS = 6  # lines, hybrids among them, that can be told apart
_Shown = TypeVar("_Shown")


def of_few_models(rows: pd.DataFrame, methods: Sequence[str]) -> pd.DataFrame:
    """Keeps all models, of many lines no hybrids, of too many each method's first."""
    if rows[[*methods, "model"]].drop_duplicates().shape[0] > _WITH_HYBRIDS:
        rows = rows[~rows["model"].str.startswith(selection.HYBRID)]
    if rows[[*methods, "model"]].drop_duplicates().shape[0] <= drawing.FEW_LINES:
        return rows
    return pd.concat(
        selection.first_model(setting) for setting in selection.groups(rows, methods)
    )


def best_of_many(
    result: results.Result, rows: pd.DataFrame, methods: list[str]
) -> tuple[pd.DataFrame, list[str], bool]:
    """Keeps the best of too many settings; returns their columns, and whether so."""
    if rows[methods].drop_duplicates().shape[0] <= drawing.FEW_LINES:
        return rows, methods, False
    best = selection.best_settings(result)
    tuned = selection.tuned(result)
    kept = rows.merge(best, on=list(best.columns))
    return kept, [name for name in methods if name not in tuned], True


def in_panels(
    figure: Callable[..., _Shown],
    rows: pd.DataFrame,
    columns: Sequence[str],
    environments: Sequence[str],
    make: Callable[[pd.DataFrame, str, int], Any],
    also: Sequence[str] = (),
    score: Callable[[pd.DataFrame], float] | None = None,
    **named: Any,
) -> _Shown:
    """Makes small multiples: a panel per environment, in each the same lines.

    Args:
      figure: class of the contents.
      rows: of all lines.
      columns: those that tell lines apart.
      environments: columns that tell panels apart.
      make: line of its rows, its setting's name and number of its color.
      also: further columns that tell panels apart, named in every title.
      score: of a line's rows, by which lines are in order, the best first; None for the
        order of the result.
      **named: further fields of the contents.
    """
    order = rows.index.argsort(kind="stable")  # of the result: one color in all figures
    rows = rows.reset_index(drop=True)
    settings = [name for name in columns if name != "model"]
    names = selection.varying(rows, settings)
    every = list(selection.groups(rows.iloc[order], columns))
    colors: dict[str, int] = {}
    lines = []
    for line in every[: drawing.MAX_LINES]:
        setting = selection.label(line.iloc[0], names)
        lines.append((line.index, setting, colors.setdefault(setting, len(colors))))
    if score is not None:
        scores = {id(index): score(rows.loc[index]) for index, *_ in lines}
        lines.sort(key=lambda line: -scores[id(line[0])])
    shown = pd.Index(np.concatenate([index for index, *_ in lines]))
    parts = selection.by_environment(rows, environments, also)
    parts = [part for part in parts if part[1].index.isin(shown).any()]
    panels = []
    for title, part in parts[: drawing.MAX_PANELS]:
        marks = [
            make(part[part.index.isin(index)], setting, color)
            for index, setting, color in lines
            if part.index.isin(index).any()
        ]
        panels.append(contents.Panel(title, tuple(marks)))
    left_out = drawing.left_out(len(every), len(parts))
    return figure(panels=tuple(panels), left_out=left_out, **named)


def beside(
    shown: contents.Lines,
    rows: pd.DataFrame,
    environments: Sequence[str],
    make: Callable[[pd.DataFrame], list[contents.Line]],
) -> contents.Lines:
    """Adds lines of no method to every panel, made of its environment's rows."""
    parts = selection.by_environment(rows, environments)
    panels = [
        contents.Panel(panel.title, (*panel.marks, *make(part)))
        for panel, (_, part) in zip(shown.panels, parts, strict=False)
    ]
    return dataclasses.replace(shown, panels=tuple(panels))


def over_seeds(
    rows: pd.DataFrame,
    setting: str,
    color: int,
    by: str = "round",
    has_std: bool = False,
) -> contents.Line:
    """Makes a line of rows of one setting and model, against one of their columns.

    Around the mean are minimum and maximum, or a standard deviation.
    """
    values = rows.groupby(by)["value"]
    mean, low, high = values.mean(), values.min(), values.max()
    if has_std:
        std = values.std().fillna(0)
        low, high = mean - std, mean + std
    return line(rows, setting, color, mean, low, high)


def line(
    rows: pd.DataFrame,
    setting: str,
    color: int,
    mean: pd.Series,
    low: pd.Series,
    high: pd.Series,
) -> contents.Line:
    """Makes a line of means, and of what is around them, of the method of rows."""
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
    )

"""Small multiples: a panel per environment, the same methods in all panels."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np
import pandas as pd

from fedjax_pfl import results
from fedjax_pfl.figures import contents, drawing
from fedjax_pfl.results import selection

__all__ = [
    "best_of_many",
    "extend",
    "in_panels",
    "line",
    "mark",
    "of_few_models",
    "over_seeds",
]

_WITH_HYBRIDS = 6  # distinguishable lines, including hybrids
_Shown = TypeVar("_Shown", bound=contents.Chart)


def of_few_models(rows: pd.DataFrame, methods: Sequence[str]) -> pd.DataFrame:
    """Keeps all models; drops hybrids of many lines, and all but the first of more."""
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
    """Keeps the best of too many settings; also returns columns and whether it did."""
    if rows[methods].drop_duplicates().shape[0] <= drawing.FEW_LINES:
        return rows, methods, False
    best = selection.best_settings(result)
    tuned = selection.tuned(result)
    chosen = rows.merge(best, on=list(best.columns))
    return chosen, [name for name in methods if name not in tuned], True


def in_panels(
    rows: pd.DataFrame,
    columns: Sequence[str],  # distinguish lines
    environments: Sequence[str],  # distinguish panels
    make: Callable[[pd.DataFrame, int], pd.DataFrame],  # rows, color -> points
    also: Sequence[str] = (),  # further columns of panels, named in every title
    score: Callable[[pd.DataFrame], float] | None = None,  # the best lines first
    kind: type[_Shown] = contents.Lines,
    **fields: Any,
) -> _Shown:
    """Makes small multiples: a panel per environment, in each the same lines."""
    order = rows.index.argsort(kind="stable")  # result order: one color in all figures
    rows = rows.reset_index(drop=True)
    settings = [name for name in columns if name != "model"]
    names = selection.varying(rows, settings)
    every = list(selection.groups(rows.iloc[order], columns))
    colors: dict[str, int] = {}
    lines = []
    for line in every[: drawing.MAX_LINES]:
        setting = selection.label(line.iloc[0], names)
        lines.append((line.index, setting, colors.setdefault(setting, len(colors))))
    # After the colors, so that a method has the same color in all figures.
    if score is not None:
        lines.sort(key=lambda line: -score(rows.loc[line[0]]))
    indices = pd.Index(np.concatenate([index for index, *_ in lines]))
    parts = selection.by_environment(rows, environments, also)
    # Without environments that have none of these lines.
    parts = [part for part in parts if part[1].index.isin(indices).any()]
    panels = []
    for title, part in parts[: drawing.MAX_PANELS]:
        marks = []
        for index, setting, color in lines:
            shown = part[part.index.isin(index)]
            if shown.empty:
                continue
            if "model" in also:  # titles say it
                shown = shown.assign(model="")
            marks.append(mark(shown, setting, color, make(shown, color)))
        panels.append(contents.Panel(title, tuple(marks)))
    left_out = drawing.left_out(len(every), len(parts))
    return kind(panels=tuple(panels), left_out=left_out, **fields)


def extend(
    chart: contents.Lines,
    rows: pd.DataFrame,
    environments: Sequence[str],
    make: Callable[[pd.DataFrame], list[contents.Mark]],
) -> contents.Lines:
    """Adds lines without a method to every panel, from the rows of its environment."""
    parts = selection.by_environment(rows, environments)
    panels = [
        contents.Panel(panel.title, (*panel.marks, *make(part)))
        for panel, (_, part) in zip(chart.panels, parts, strict=False)
    ]
    return dataclasses.replace(chart, panels=tuple(panels))


def over_seeds(
    rows: pd.DataFrame, _: int, by: str = "round", has_std: bool = False
) -> pd.DataFrame:
    """Returns means over seeds with a band from min to max, or of one std."""
    values = rows.groupby(by)["value"]
    mean, low, high = values.mean(), values.min(), values.max()
    if has_std:
        std = values.std().fillna(0)
        low, high = mean - std, mean + std
    return line(mean, low, high)


def line(mean: pd.Series, low: pd.Series, high: pd.Series) -> pd.DataFrame:
    """Returns the points of a line of means with a band."""
    points = pd.DataFrame({"y": mean, "low": low, "high": high})
    return points.rename_axis("x").reset_index()


def mark(
    rows: pd.DataFrame, setting: str, color: int, points: pd.DataFrame
) -> contents.Mark:
    """Returns the mark of a setting and model with some points, from its rows."""
    names = ("algorithm", "model", "population")
    fields = {name: rows[name].iloc[0] for name in names}
    if "is_level" in rows:
        fields["is_level"] = bool(rows["is_level"].all())
    return contents.Mark(setting=setting, color=color, points=points, **fields)

"""Learned fields of trainings, read from the diagnostics of their histories."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from fedjax_pfl.results import history, metrics

if TYPE_CHECKING:
    import pandas as pd

__all__ = [
    "DERIVATIVE",
    "OBJECTIVE",
    "TRAINING",
    "VALUE",
    "fields",
    "objective",
    "path",
    "settings",
    "sign",
]

OBJECTIVE = "objective:"
VALUE = "value:"
DERIVATIVE = "derivative:"
TRAINING = "training"
"""Names of diagnostics; the first three are prefixes of an objective or a field."""

_TITLES = {VALUE: "{}", OBJECTIVE: "objective", DERIVATIVE: "d {}"}


def fields(groups: Sequence[history.History]) -> tuple[str, ...]:
    """Returns the dotted names of the fields that have derivatives."""
    return tuple(_names(groups, VALUE))


def objective(groups: Sequence[history.History]) -> str | None:
    """Returns the objectives that have derivatives, as a string; None without any."""
    return ", ".join(_names(groups, OBJECTIVE)) or None


def _names(groups: Sequence[history.History], prefix: str) -> list[str]:
    """Returns the names of the diagnostics with a prefix, each once, without it."""
    names = (name for group in groups for name in group.diagnostics)
    unique_names = dict.fromkeys(name for name in names if name.startswith(prefix))
    return [name.removeprefix(prefix) for name in unique_names]


def sign(text: str) -> int:
    """Returns 1 for an objective that is minimized, -1 for the others."""
    metric_names = [part for part in text.split(":") if part in metrics.METRICS]
    return -metrics.sign(metric_names[0]) if metric_names else 1


def path(groups: Sequence[history.History]) -> "pd.DataFrame | None":
    """Returns the paths of learned fields, a row per start and step, or None."""
    import pandas as pd

    rows = []
    for group in groups:
        if TRAINING not in group.diagnostics:
            continue
        titles = {
            f"{prefix}{name}": title.format(name)
            for prefix, title in _TITLES.items()
            for name in _names([group], prefix)
        }
        # Of trainings that restart, rounds are counted on, and a step is the end of
        # each.
        training = _trainings(group)
        is_end = np.append(training[1:] != training[:-1], True)
        columns = np.flatnonzero(is_end) if training.any() else range(len(training))
        for number, point in enumerate(group.points):
            start = {"algorithm": group.config["algorithm"]}
            start |= {f"start {n}": v for n, v in point.items() if n != "seed"}
            for column in columns:
                row = start | {"round": int(group.rounds[column])}
                for name, title in titles.items():
                    row[title] = float(group.diagnostics[name][number, column])
                rows.append(row)
    if not rows:
        return None
    table = pd.DataFrame(rows)
    by = [*_start_columns(table), "round"]
    # pandas would skip NaN, but one diverged seed makes the mean undefined.
    means = table.groupby(by, sort=False, dropna=False).agg(
        lambda values: float(np.mean(np.asarray(values)))
    )
    return means.reset_index()


def _start_columns(table: "pd.DataFrame") -> list[str]:
    """Returns the columns that distinguish starts."""
    return ["algorithm", *(c for c in map(str, table) if c.startswith("start "))]


def _trainings(group: history.History) -> np.ndarray:
    """Returns the number of the training at each evaluation; 0 without restarts."""
    # Diverged points have no number; their rounds belong to the previous training.
    numbers = np.fmax.reduce(group.diagnostics[TRAINING], axis=0, initial=0)
    return np.maximum.accumulate(numbers)


def settings(groups: Sequence[history.History]) -> "pd.DataFrame | None":
    """Returns one row of `path` per start, the best of an algorithm first."""
    import pandas as pd

    steps, text = path(groups), objective(groups)
    if steps is None or text is None:
        return None
    learning = [group for group in groups if TRAINING in group.diagnostics]
    has_restarts = any(_trainings(group).any() for group in learning)
    rows = []
    for _, start in steps.groupby(_start_columns(steps), sort=False, dropna=False):
        score = sign(text) * start["objective"].to_numpy()
        is_finite = np.isfinite(score)
        number = len(start) - 1
        if has_restarts or not is_finite[-1]:  # the start, if no later row has a value
            number = int(np.argmin(np.where(is_finite, score, np.inf)))
        rows.append(start.iloc[number])
    by_algorithm = pd.DataFrame(rows).groupby("algorithm", sort=False)
    order = {"ascending": sign(text) > 0, "kind": "stable"}
    parts = [part.sort_values("objective", **order) for _, part in by_algorithm]
    return pd.concat(parts, ignore_index=True)

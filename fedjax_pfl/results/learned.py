"""Learned fields of trainings, read from the diagnostics of their histories."""

from typing import TYPE_CHECKING

import numpy as np

from fedjax_pfl.results import history, metrics

if TYPE_CHECKING:
    import pandas as pd

    from fedjax_pfl.results.result import Result

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


def fields(result: "Result") -> tuple[str, ...]:
    """Returns the dotted names of the fields that have derivatives."""
    names = [
        name.removeprefix(VALUE)
        for group in result.groups
        for name in group.diagnostics
        if name.startswith(VALUE)
    ]
    return tuple(dict.fromkeys(names))


def objective(result: "Result") -> str | None:
    """Returns the objectives that have derivatives, as a string; None without any."""
    names = [name for group in result.groups for name in group.diagnostics]
    objectives = [n.removeprefix(OBJECTIVE) for n in names if n.startswith(OBJECTIVE)]
    return ", ".join(dict.fromkeys(objectives)) or None


def sign(text: str) -> int:
    """Returns 1 for an objective that is minimized, -1 for the others."""
    metric_names = [part for part in text.split(":") if part in metrics.METRICS]
    return -metrics.sign(metric_names[0]) if metric_names else 1


def path(result: "Result") -> "pd.DataFrame | None":
    """Returns the paths of learned fields, a row per start and step, or None."""
    import pandas as pd

    rows = []
    for group in result.groups:
        if TRAINING not in group.diagnostics:
            continue
        kinds = {}
        for prefix, title in (
            (VALUE, ""),
            (OBJECTIVE, "objective"),
            (DERIVATIVE, "d "),
        ):
            for name in group.diagnostics:
                if name.startswith(prefix):
                    of = "" if prefix == OBJECTIVE else name.removeprefix(prefix)
                    kinds[name] = title + of
        # Of trainings that restart, rounds are counted on, and a step is the end of
        # each.
        training = _trainings(group)
        is_end = np.append(training[1:] != training[:-1], True)
        columns = np.flatnonzero(is_end) if training.any() else range(len(training))
        for number, point in enumerate(group.points):
            start = {"algorithm": group.config["algorithm"]}
            start |= {f"start {n}": v for n, v in point.items() if n != "seed"}
            rows += [
                start
                | {"round": int(group.rounds[column])}
                | {
                    title: float(group.diagnostics[name][number, column])
                    for name, title in kinds.items()
                }
                for column in columns
            ]
    if not rows:
        return None
    table = pd.DataFrame(rows)
    by = ["algorithm", *(c for c in map(str, table) if c.startswith("start ")), "round"]
    # pandas would skip NaN, but one diverged seed makes the mean undefined.
    means = table.groupby(by, sort=False, dropna=False).agg(
        lambda values: float(np.mean(np.asarray(values)))
    )
    return means.reset_index()


def _trainings(group: history.History) -> np.ndarray:
    """Returns the number of the training at each evaluation; 0 without restarts."""
    # Diverged points have no number; their rounds belong to the previous training.
    numbers = np.fmax.reduce(group.diagnostics[TRAINING], axis=0, initial=0)
    return np.maximum.accumulate(numbers)


def settings(result: "Result") -> "pd.DataFrame | None":
    """Returns one row of `path` per start, the best of an algorithm first."""
    import pandas as pd

    steps, text = path(result), objective(result)
    if steps is None or text is None:
        return None
    restarts = any(
        _trainings(group).any()
        for group in result.groups
        if TRAINING in group.diagnostics
    )
    by = ["algorithm", *(c for c in map(str, steps) if c.startswith("start "))]
    rows = []
    for _, rows_of_start in steps.groupby(by, sort=False, dropna=False):
        score = sign(text) * rows_of_start["objective"].to_numpy()
        is_finite = np.isfinite(score)
        number = len(rows_of_start) - 1
        if restarts or not is_finite[-1]:  # the start, if no later row has a value
            number = int(np.argmin(np.where(is_finite, score, np.inf)))
        rows.append(rows_of_start.iloc[number])
    table = pd.DataFrame(rows)
    table["score"] = sign(text) * table["objective"]
    table["order"] = pd.factorize(table["algorithm"])[0]
    table = table.sort_values(["order", "score"], kind="stable")
    return table.drop(columns=["order", "score"]).reset_index(drop=True)

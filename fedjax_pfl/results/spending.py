"""Cost of trainings until some round: bytes sent, local steps, seconds."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from fedjax_pfl.core import checks
from fedjax_pfl.results import history, metrics

__all__ = ["COLUMNS", "NUMBERS", "after", "privacy", "rounds", "to_target"]

_BYTES = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2}
NUMBERS = ("bytes_up", "bytes_down", "client_steps", "gradients", "seconds")
NUMBERS += ("virtual_seconds",)
COLUMNS: tuple[str, ...] = (
    "model",
    "metric",
    "target",
    "rounds",
    *NUMBERS,
    "validation",
    "test",
)
"""Columns of the rows of `to_target`."""


def rounds(group: history.History) -> np.ndarray:
    """Counts the rounds of every point, `int[G]`; 0 if the history has none."""
    has_value = [~np.isnan(values) for values in group.per_round.values()]
    return np.any(has_value or [np.zeros((len(group.points), 0))], axis=0).sum(axis=1)


_PRIVATE = {"epsilon": "transforms.", "local_epsilon": "algorithm."}
"""Privacy losses of a history, with the setting for their delta."""


def privacy(group: history.History, point: int, loss: str) -> tuple[float, float]:
    """Returns the epsilon of a training, of clients or of examples, and its delta."""
    settings = group.config | group.points[point]
    delta = next(
        value
        for name, value in settings.items()
        if name.startswith(_PRIVATE[loss]) and name.endswith(".delta")
    )
    return float(np.nanmax(group.per_round[loss][point], initial=0)), float(delta)


def after(group: history.History, point: int, rounds: int) -> dict[str, float]:
    """Returns `NUMBERS` of a training after some rounds, NaN for missing ones."""

    def total(name: str) -> float:
        if name not in group.per_round:
            return np.nan
        return float(group.per_round[name][point, :rounds].sum())

    def sent(direction: str) -> float:
        if f"bytes_{direction}" in group.per_round:
            return total(f"bytes_{direction}")
        # Older histories count numbers, each sent with the size of a parameter.
        size = _BYTES.get(str(group.config.get("parameter_dtype")), np.nan)
        return size * total(f"floats_{direction}")

    virtual_seconds = np.nan  # without devices
    if "virtual_seconds" in group.per_round:  # the time at the end of the round
        times = group.per_round["virtual_seconds"][point]
        virtual_seconds = float(times[rounds - 1]) if rounds else 0
    # Points run together: each round of each counts the same share of the seconds.
    all_rounds = int(group.ends.sum())
    return {
        "bytes_up": sent("up"),
        "bytes_down": sent("down"),
        "client_steps": total("client_steps"),
        "gradients": total("gradient_evaluations"),
        "seconds": group.run_seconds * rounds / max(all_rounds, 1),
        "virtual_seconds": virtual_seconds,
    }


def to_target(
    group: history.History, point: int, target: float
) -> Iterator[tuple[Any, ...]]:
    """Yields a row of `COLUMNS` per model of one training; see `Result.to_target`."""
    metric = group.headline
    _check(group, metric, target)
    is_shown = group.rounds <= group.ends[point]
    for model in group.models:
        validation = group.means(point, metric, model, "validation")
        test = np.full(len(group.rounds), np.nan)
        if "test" in group.data:
            test = group.means(point, metric, model, "test")
        gap = metrics.sign(metric) * (validation - target)
        places = np.flatnonzero((gap >= 0) & is_shown)
        numbers = (np.nan,) * (len(COLUMNS) - 3)
        if places.size:
            place = places[0]
            rounds = int(group.rounds[place])
            costs = after(group, point, rounds).values()
            numbers = (rounds, *costs, float(validation[place]), float(test[place]))
        yield model, metric, target, *numbers


def _check(group: history.History, metric: str, target: float) -> None:
    """Refuses impossible targets for this metric, and missing data."""
    checks.number("target", target)
    if metric in metrics.SHARES and not 0 <= target <= 1:
        metric_name = metric.replace("_", " ")
        raise checks.InputError(
            f"Expected a target {metric_name} from 0 to 1, got target={target}."
        )
    d = group.data.index("validation") if "validation" in group.data else None
    if d is None or np.isnan(group.metrics[metric][:, :, :, d]).all():
        raise checks.InputError(
            "Expected a result with validation data, on which rounds are chosen, got"
            f" {', '.join(group.data)}; evaluate on validation, of a federation with a"
            " validation_fraction above 0."
        )

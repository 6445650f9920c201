"""The callback protocol and its arguments."""

import dataclasses
import importlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from fedjax_pfl import results
from fedjax_pfl.core import checks, struct
from fedjax_pfl.results import metrics as measures

__all__ = ["Callback", "Evaluation", "Training", "library"]


@dataclasses.dataclass(frozen=True)
class Training:
    """One training, which in a grid is one of its points.

    Attributes:
      number: among all trainings of the call, from 0.
      group: number of its static group, from 0: those of one group run together.
      name: the algorithm and the settings that vary in the call, for example `Flame,
        algorithm.lam=0.1, seed=0`.
      settings: all settings by dotted name, as JSON values, `num_rounds`, and the
        `metric` of the call, if it names one.
      num_rounds: rounds R that it has at most.
    """

    number: int
    group: int
    name: str
    settings: dict[str, Any]
    num_rounds: int

    __post_init__ = struct.check_fields


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """Measurements of the G trainings of one group after the same round.

    Attributes:
      trainings: the trainings.
      round: finished rounds; 0 at the start.
      metrics: by `model/data/metric`, for example `personal/test/accuracy`: `[G]` means
        over the evaluated honest clients, NaN from a divergence on. Only data that were
        due in this round are there.
      running: `bool[G]`, False for trainings that were stopped early at an earlier
        evaluation; their models and metrics do not change any more.
      is_last: whether it is the last one of the group.
      is_restored: whether it was read from a checkpoint, not made now.
    """

    trainings: tuple[Training, ...]
    round: int
    metrics: dict[str, np.ndarray]
    running: np.ndarray
    is_last: bool
    is_restored: bool

    __post_init__ = struct.check_fields

    def points(self) -> Iterator[tuple[Training, dict[str, float]]]:
        """Yields the running trainings with those metrics that have a value.

        A diverged training has none, and is left out.
        """
        for number, training in enumerate(self.trainings):
            values = {n: float(v[number]) for n, v in self.metrics.items()}
            values = {n: value for n, value in values.items() if not np.isnan(value)}
            if values and self.running[number]:
                yield training, values

    def headline(self) -> str:
        """Describes the first data in a few words: means over all trainings."""
        split = [(*name.rsplit("/", 2), v) for name, v in self.metrics.items()]
        chosen = self.trainings[0].settings.get("metric")
        metric = measures.headline({name for _, _, name, _ in split}, chosen)
        data_name = next((data for _, data, name, _ in split if name == metric), None)
        texts = [
            f"{model} {np.nanmean(values):.3f}"
            for model, data, name, values in split
            if (data, name) == (data_name, metric) and not np.isnan(values).all()
        ]
        return f"{metric}: {', '.join(texts)}" if texts else "diverged"


class Callback:
    """Listener to running trainings; override the hooks that you need.

    Hooks are called on the host, never in compiled code: once in the beginning, at
    every evaluation (so every `eval_every` rounds, and not in between), and at the end.
    The training waits for them. Of several processes only the first calls them.

    In every call of `simulate` or `grid`, a callback sees every evaluation of every
    training once, in order. When trainings go on from checkpoints, the evaluations that
    these hold come first, with `is_restored`, also those of groups that had finished.
    Evaluations after the last checkpoint of a killed process are made and seen again,
    bit for bit the same, without `is_restored`. So a callback that starts a new log is
    always complete, and one that appends to an old log has to compare rounds.

    An error in `evaluated` ends the training, after a checkpoint with this evaluation
    if there are `checkpoints`; an error in `end` is raised after all checkpoints have
    been written. Neither changes a number: the same call goes on bit for bit.

    Example:
      >>> class Print(Callback):
      ...     def evaluated(self, evaluation):
      ...         for training, metrics in evaluation.points():
      ...             print(training.name, evaluation.round, metrics)
    """

    def begin(self, trainings: Sequence[Training]) -> None:
        """Runs before anything is trained.

        Args:
          trainings: all of the call, in the order of their numbers.
        """

    def evaluated(self, evaluation: Evaluation) -> None:
        """Runs at every evaluation of a group.

        Args:
          evaluation: the measurements.
        """

    def end(self, result: results.Result | None) -> None:
        """Runs at the end, also after an error, if `begin` has returned.

        Args:
          result: of the call; None if it was interrupted or failed.
        """


def library(name: str, extra: str) -> Any:
    """Imports the library of an extra."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise checks.InputError(
            f"Logs for {extra} need the package {name}, which is not completely"
            f' installed ({error}): pip install "fedjax_pfl[{extra}]".'
        ) from error

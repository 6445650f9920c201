"""Optuna as the strategy of a search, through its ask-and-tell interface."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fedjax_pfl.core import checks
from fedjax_pfl.results import metrics

if TYPE_CHECKING:
    import optuna  # pyright: ignore[reportMissingImports] (an extra)

__all__ = ["Optuna"]

_CHOICES = (bool, int, float, str, type(None))
_REPEATS = 100  # suggestions in a row that are not new, after which a search ends


@dataclasses.dataclass(frozen=True)
class Optuna:
    """Strategy of a search with settings that an Optuna study suggests in batches.

    A batch is suggested, trained to its end in one compiled program, and reported with
    its scores; the next batch of equal size runs in the same program. A setting that
    diverges is reported as infinitely bad, one that ran out of time as pruned; one that
    is suggested again is reported with its score, and not trained again.

    Attributes:
      source: an `optuna.Study` with one objective, in the direction of the metric; or a
        sampler, from which every search makes a new study. With a new sampler that has
        a seed, a search repeats to the bit and resumes.
      batch_size: settings that are suggested before any of them is trained, at least 1.

    Raises:
      InputError: if Optuna is not installed, or if `source` is another object.
    """

    source: Any
    batch_size: int = 9

    def __post_init__(self):
        optuna = _library()
        kinds = (optuna.Study, optuna.samplers.BaseSampler)
        if not isinstance(self.source, kinds):
            raise checks.InputError(
                "Expected an Optuna study or sampler as the source of settings, got"
                f" {self.source!r}."
            )
        checks.positive_int("batch_size", self.batch_size)

    def study(self, metric: str) -> "optuna.Study":
        """Returns the study, or a new one for a sampler.

        Args:
          metric: by which settings are compared.

        Raises:
          InputError: if a given study has another direction, or several.
        """
        optuna = _library()
        direction = "maximize" if metrics.sign(metric) > 0 else "minimize"
        if isinstance(self.source, optuna.samplers.BaseSampler):
            return optuna.create_study(sampler=self.source, direction=direction)
        directions = [d.name.lower() for d in self.source.directions]
        if directions != [direction]:
            raise checks.InputError(
                f"Expected a study with the direction {direction}, as {metric} asks"
                f" for, got {', '.join(directions)}."
            )
        return self.source


class Suggestions:
    """Settings that a study suggests, none of them twice."""

    def __init__(self, study: "optuna.Study", space: Mapping[str, Any]):
        self._study, self._space = study, space
        self._distributions = _distributions(space)
        self._trials: dict[tuple[Any, ...], list[Any]] = {}  # of the last batch
        self._reports: dict[tuple[Any, ...], dict[str, Any]] = {}

    def plan(self, settings: Sequence[Mapping[str, Any]]) -> None:
        """Queues settings of lists, which the study suggests before any others."""
        for setting in settings:
            chosen = {}
            for name, values in self._space.items():
                # By identity, since parts may hold arrays, which have no plain
                # equality.
                place = next(k for k, v in enumerate(values) if v is setting[name])
                chosen[name] = _choices(values)[place]
            self._study.enqueue_trial(chosen)

    def ask(self, count: int) -> list[dict[str, Any]]:
        """Returns the next settings; fewer if the study repeats earlier ones."""
        self._trials, repeats = {}, 0
        while len(self._trials) < count and repeats < _REPEATS:
            trial = self._study.ask(self._distributions)
            drawn = tuple(trial.params[name] for name in self._space)
            repeats += 1
            if drawn in self._reports:
                # A trained setting is reported with its score at once.
                self._study.tell(trial, **self._reports[drawn])
            elif drawn in self._trials:
                self._trials[drawn].append(trial)
            else:
                self._trials[drawn], repeats = [trial], 0
        return [
            {
                name: _value(values, chosen)
                for (name, values), chosen in zip(
                    self._space.items(), drawn, strict=True
                )
            }
            for drawn in self._trials
        ]

    def tell(self, scores: Sequence[float], complete: Sequence[bool]) -> None:
        """Reports the scores of all settings of the last batch."""
        is_maximized = self._study.direction.name == "MAXIMIZE"
        worst = -np.inf if is_maximized else np.inf
        for (drawn, trials), score, is_complete in zip(
            self._trials.items(), scores, complete, strict=True
        ):
            # A diverged setting is infinitely bad; one out of time is pruned.
            value = worst if np.isnan(score) else float(score)
            pruned = {"state": _library().trial.TrialState.PRUNED}
            self._reports[drawn] = {"values": value} if is_complete else pruned
            for trial in trials:
                self._study.tell(trial, **self._reports[drawn])


def _library() -> Any:
    """Imports Optuna, an extra, only when it is used."""
    try:
        import optuna  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise checks.InputError(
            "Settings of an Optuna study need the package optuna, which is not"
            f' completely installed ({error}): pip install "fedjax_pfl[optuna]".'
        ) from error
    return optuna


def _distributions(space: Mapping[str, Any]) -> dict[str, Any]:
    """Returns Optuna's distributions of ranges and lists."""
    kinds = _library().distributions
    return {
        name: kinds.CategoricalDistribution(_choices(values))
        if isinstance(values, list)
        else kinds.FloatDistribution(values.low, values.high, log=values.log)
        for name, values in space.items()
    }


def _choices(values: list[Any]) -> list[Any]:
    """Returns the choices of a list for a study: its values, or their numbers."""
    if all(isinstance(value, _CHOICES) for value in values):
        return values
    return list(range(len(values)))


def _value(values: Any, chosen: Any) -> Any:
    """Returns the value that a study has chosen."""
    is_number = isinstance(values, list) and _choices(values) is not values
    return values[chosen] if is_number else chosen

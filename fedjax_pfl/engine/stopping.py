"""When a training has done enough: no progress any more, or the target reached."""

import dataclasses
from collections.abc import Sequence

import numpy as np

from fedjax_pfl.core import checks
from fedjax_pfl.results import metrics

__all__ = ["StopWhen", "Watch"]

_MODELS = ("personal", "fine-tuned", "global")


@dataclasses.dataclass(frozen=True)
class StopWhen:
    """Ends a training early, at an evaluation; hashable.

    What is watched is the mean over the evaluated honest clients of one metric of one
    model on one kind of data. Points of a grid end one by one, each as it would alone.

    Attributes:
      patience: evaluations without improvement after which it ends, at least 1; None
        never.
      target: value at which it ends, reached from above for loss and from below for
        the others; None never.
      min_delta: what counts as an improvement, at least 0.
      metric: one of `measures.METRICS`.
      model: name of a predictor, as in result tables; None takes the first there is of
        `personal`, `fine-tuned` and `global`.
      data: what it is evaluated on, as in `evaluate_on`.
    """

    patience: int | None = None
    target: float | None = None
    min_delta: float = 0.0
    metric: str = "accuracy"
    model: str | None = None
    data: str = "validation"

    def __post_init__(self):
        if self.patience is None and self.target is None:
            raise checks.InputError("Expected patience or target, got neither.")
        if self.patience is not None:
            checks.positive_int("patience", self.patience)
        if self.target is not None:
            checks.number("target", self.target)
        checks.number("min_delta", self.min_delta, at_least=0)
        checks.known(self.metric, metrics.METRICS, "metric to stop on")

    def model_of(self, models: Sequence[str]) -> str:
        """Returns the watched one of these models.

        Raises:
          InputError: if it is not one of them.
        """
        if self.model is not None:
            checks.known(self.model, models, "model to stop on")
            return self.model
        return next((name for name in _MODELS if name in models), models[0])


class Watch:
    """Record of early stopping for G grid points."""

    def __init__(self, rule: StopWhen | None, num_points: int):
        """Starts to watch; without a rule nothing ever ends."""
        self._rule = rule
        self._best = np.full(num_points, np.nan)
        self._stale = np.zeros(num_points, np.int64)
        self.stopped_at = np.full(num_points, -1)
        self.reached_target = np.zeros(num_points, bool)

    def see(self, round: int, values: np.ndarray) -> None:
        """Takes the watched values `[G]` after `round` rounds; NaN are no progress."""
        rule = self._rule
        if rule is None:
            return
        sign = metrics.sign(rule.metric)
        active = self.stopped_at < 0
        is_better = np.isnan(self._best) & ~np.isnan(values)
        is_better |= sign * (values - self._best) > rule.min_delta
        self._best = np.where(active & is_better, values, self._best)
        self._stale = np.where(active & ~is_better, self._stale + 1, self._stale)
        self._stale[active & is_better] = 0
        ended = np.zeros(active.shape, bool)
        if rule.patience is not None:
            ended |= self._stale >= rule.patience
        if rule.target is not None:
            reached = sign * (values - rule.target) >= 0
            self.reached_target |= active & reached
            ended |= reached
        self.stopped_at[active & ended] = round

    ARRAYS = ("best", "stale", "stopped_at", "reached_target")
    """Names of what `arrays` returns."""

    def arrays(self) -> dict[str, np.ndarray]:
        """Returns everything counted so far, by name."""
        return {
            "best": self._best,
            "stale": self._stale,
            "stopped_at": self.stopped_at,
            "reached_target": self.reached_target,
        }

    def restore(self, arrays: dict[str, np.ndarray]) -> None:
        """Goes on from what `arrays` returned."""
        self._best, self._stale = arrays["best"], arrays["stale"]
        self.stopped_at = arrays["stopped_at"]
        self.reached_target = arrays["reached_target"]

"""Early stopping: no progress, a reached target, or better settings."""

import dataclasses
import math
import time
from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np

from fedjax_pfl.core import checks, struct
from fedjax_pfl.results import metrics, summaries

__all__ = ["Halving", "StopWhen", "Timed", "Watch", "Watched", "watch"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Watched:
    """Metric that a rule watches, as a mean over the evaluated honest clients.

    Attributes:
      metric: name of a metric that is measured; None for the `metric` of the training,
        else the accuracy.
      model: name of a predictor, as in result tables; None takes the one that stands
        for the method: the personal, else the global one.
      data: on which it is evaluated, as in `evaluate_on`.
    """

    metric: str | None = None
    model: str | None = None
    data: str = "validation"

    def __post_init__(self):
        struct.check_fields(self)

    @property
    def chosen(self) -> str:
        """The metric; by default the accuracy."""
        return self.metric or "accuracy"

    def by(self, metric: str | None) -> Self:
        """Returns the rule with its own metric or, without one, with this one."""
        return dataclasses.replace(self, metric=self.metric or metric or self.chosen)

    @property
    def described(self) -> dict[str, Any]:
        """Metric, model and data by name."""
        return {"metric": self.chosen, "model": self.model, "data": self.data}

    def model_of(self, models: Sequence[str]) -> str:
        """Returns the watched one of these models."""
        if self.model is not None:
            checks.known(self.model, models, "model to stop on")
            return self.model
        return metrics.judge(models)


@dataclasses.dataclass(frozen=True, kw_only=True)
class StopWhen(Watched):
    """Ends a training early, at an evaluation; hashable.

    Points of a grid end one by one, each as it would alone.

    Attributes:
      patience: evaluations without improvement after which it ends, at least 1; None
        never.
      target: value at which it ends, reached from above for loss and from below for
        the others; None never.
      min_delta: least change that counts as an improvement, at least 0.
    """

    patience: int | None = struct.static_field(default=None, at_least=1)
    target: float | None = struct.traced_field(default=None)
    min_delta: float = struct.static_field(default=0.0, at_least=0)

    def __post_init__(self):
        super().__post_init__()
        if self.patience is None and self.target is None:
            raise checks.InputError("Expected patience or target, got neither.")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Timed(Watched):
    """Ends trainings at the first evaluation after their time is up; hashable.

    Attributes:
      minutes: of every static group, from its first evaluation or, if it goes on from a
        checkpoint, from the next one; None for no limit.
    """

    minutes: float | None = struct.static_field(default=None, above=0)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Halving(Timed):
    """Successive halving: settings that fall behind end, the others go on; hashable.

    Points of several seeds share a setting. Settings compete that differ in fields of
    the method only (`algorithm.`, `aggregator`, `server_optimizer`). The score of a
    setting is the mean of the watched values over its seeds; a non-finite value makes
    it the worst. At the rungs, the first evaluations after `min_rounds *
    eta**k` rounds, k = 0, 1, ..., only the best `1 / eta` of the settings of a bracket,
    rounded up, go on. Ties go to the setting that comes first.

    With several brackets (Hyperband) bracket b passes over its first b rungs. Settings
    are dealt to brackets in their order, in proportion to `eta**-b (b_max + 1) /
    (b_max - b + 1)`, so that every bracket trains for about as many rounds.

    Points that share one compiled program are compared; those that differ in static
    fields are not.

    Attributes:
      eta: at least 2.
      min_rounds: rounds before the first rung, at least 1; None for `1 / eta**2` of
        all, so that there are two rungs: dropping sooner saves more rounds, and loses
        the best setting more often.
      brackets: number of brackets, at least 1; None for as many as there are rungs.
    """

    eta: int = struct.static_field(default=3, at_least=2)
    min_rounds: int | None = struct.static_field(default=None, at_least=1)
    brackets: int | None = struct.static_field(default=1, at_least=1)

    def first_rung(self, num_rounds: int) -> int:
        """Returns the rounds before the first rung.

        Args:
          num_rounds: rounds R of the surviving settings.

        Raises:
          InputError: if `min_rounds` is above `num_rounds`.
        """
        if self.min_rounds is None:
            return max(1, num_rounds // self.eta**2)
        if self.min_rounds > num_rounds:
            raise checks.InputError(
                f"Expected min_rounds to be at most the {num_rounds} rounds of a"
                f" training, got {self.min_rounds}."
            )
        return self.min_rounds

    def bracket_sizes(self, num_settings: int, num_rounds: int) -> list[int]:
        """Returns the number of settings of each bracket, the first not empty.

        Args:
          num_settings: number of settings that compete.
          num_rounds: rounds R of the surviving settings.
        """
        count = self.brackets
        if count is None:
            rungs = num_rounds / self.first_rung(num_rounds)
            count = 1 + int(math.log(rungs, self.eta) + 1e-9)
        shares = np.array([self.eta**-b * count / (count - b) for b in range(count)])
        ends = np.ceil(np.cumsum(shares) / shares.sum() * num_settings - 1e-9)
        return np.diff(ends, prepend=0).astype(int).tolist()


class Watch:
    """Record of the ends of G grid points, and of their reasons."""

    def __init__(self, num_points: int, num_rounds: int, rule: Timed | None = None):
        """Starts with all points active; without a rule they stay active."""
        self._end = num_rounds
        self._started: float | None = None  # time of the first evaluation
        self._minutes = None if rule is None else rule.minutes
        self.stopped_at = np.full(num_points, -1)  # round, or -1
        self.reached_target = np.zeros(num_points, bool)
        self.dropped = np.zeros(num_points, bool)  # since others were better

    def see(self, round: int, values: np.ndarray) -> None:
        """Takes the watched values `[G]` after `round` rounds; NaN are no progress."""
        self._judge(round, values)
        now = time.monotonic()
        if self._started is None:
            self._started = now
        elif self._minutes is not None and round < self._end:
            if now - self._started >= 60 * self._minutes:
                self.stopped_at[self.stopped_at < 0] = round

    def _judge(self, round: int, values: np.ndarray) -> None:
        """Ends points by their values; this class ends none."""

    def arrays(self) -> dict[str, np.ndarray]:
        """Returns everything counted so far, by name."""
        return {n: v for n, v in vars(self).items() if isinstance(v, np.ndarray)}

    def restore(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Restores the counts that `arrays` returned."""
        for name in self.arrays():
            setattr(self, name, arrays[name])


class _Patience(Watch):
    """Record of `StopWhen`."""

    def __init__(self, rule: StopWhen, num_points: int, num_rounds: int):
        super().__init__(num_points, num_rounds)
        self._rule, self._sign = rule, metrics.sign(rule.chosen)
        self._best = np.full(num_points, np.nan)
        self._stale = np.zeros(num_points, np.int64)

    def _judge(self, round: int, values: np.ndarray) -> None:
        rule, sign = self._rule, self._sign
        active = self.stopped_at < 0
        # The first finite value improves on none; NaN compares as False.
        is_better = np.isnan(self._best) & ~np.isnan(values)
        is_better |= sign * (values - self._best) > rule.min_delta
        self._best = np.where(active & is_better, values, self._best)
        self._stale = np.where(active & ~is_better, self._stale + 1, self._stale)
        self._stale[active & is_better] = 0
        is_ended = np.zeros(active.shape, bool)
        if rule.patience is not None:
            is_ended |= self._stale >= rule.patience
        if rule.target is not None:
            is_reached = sign * (values - rule.target) >= 0
            self.reached_target |= active & is_reached
            is_ended |= is_reached
        self.stopped_at[active & is_ended] = round


class _Rungs(Watch):
    """Record of `Halving`."""

    def __init__(
        self, rule: Halving, points: Sequence[Mapping[str, Any]], num_rounds: int
    ):
        super().__init__(len(points), num_rounds, rule)
        arenas: dict[str, dict[str, list[int]]] = {}
        for number, point in enumerate(points):
            # Settings compete within an arena: equal in all fields but the method's and
            # the seed.
            of_method = summaries.METHOD_FIELDS
            method = {n: v for n, v in point.items() if n.startswith(of_method)}
            arena = [(n, point[n]) for n in point if n not in method and n != "seed"]
            settings = arenas.setdefault(repr(arena), {})
            settings.setdefault(repr(method), []).append(number)
        self._arenas = [list(settings.values()) for settings in arenas.values()]
        self._first_rung = rule.first_rung(num_rounds)
        self._rule = dataclasses.replace(rule, min_rounds=self._first_rung)
        self._rung = np.zeros(len(points), int)  # that comes next, one for all

    def _judge(self, round: int, values: np.ndarray) -> None:
        rule, rung = self._rule, int(self._rung[0])
        if round >= self._end:  # all survivors have ended
            return
        while round >= self._first_rung * rule.eta**rung:
            rung += 1
        # Several rungs may lie between two evaluations.
        if rung == self._rung[0]:
            return
        self._rung[:] = rung
        # A non-finite value makes a setting the worst.
        scores = metrics.sign(rule.chosen) * values
        scores = np.where(np.isfinite(scores), scores, -np.inf)
        for settings in self._arenas:
            order = np.arange(len(settings))
            sizes = rule.bracket_sizes(len(settings), self._end)
            for bracket, part in enumerate(np.split(order, np.cumsum(sizes))):
                survivors = [s for s in part if self.stopped_at[settings[s][0]] < 0]
                survivors.sort(key=lambda s: -scores[settings[s]].mean())
                num_passed = max(0, rung - bracket)
                for s in survivors[-(-len(part) // rule.eta**num_passed) :]:
                    self.stopped_at[settings[s]] = round
                    self.dropped[settings[s]] = True


def watch(
    rule: Watched | None, points: Sequence[Mapping[str, Any]], num_rounds: int
) -> Watch:
    """Returns a new record of a rule for grid points."""
    if isinstance(rule, StopWhen):
        return _Patience(rule, len(points), num_rounds)
    if isinstance(rule, Halving):
        return _Rungs(rule, points, num_rounds)
    timed = rule if isinstance(rule, Timed) else None
    return Watch(len(points), num_rounds, timed)

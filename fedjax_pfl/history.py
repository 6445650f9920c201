"""What a group of trainings left behind, on the host."""

import dataclasses
from typing import Any

import jax
import numpy as np

__all__ = ["History", "Recorder"]


@dataclasses.dataclass(frozen=True)
class History:
    """Everything measured for G grid points of one static group; NumPy arrays.

    Attributes:
      points: swept field -> value, one per grid point.
      models: predictors evaluated.
      data: splits evaluated on.
      rounds: `int[E]` finished rounds at each evaluation; the first is 0.
      metrics: name -> `[G, E, models, data, N]` means over each client's own examples;
        NaN where it has none and from a divergence on.
      times_selected: `int[G, E, N]` rounds each client had taken part in.
      malicious: `bool[G, N]`.
      num_train: `int[G, N]` training examples.
      per_round: name -> `[G, R]` totals over the cohort, and values of the aggregator.
      diagnostics: name -> `[G, E]`.
      diverged_at: `int[G]` round of the first non-finite value, from 1, or -1.
      config: flat configuration shared by the points.
      compile_seconds: lowering and compiling.
      run_seconds: everything else.
    """

    points: tuple[dict[str, Any], ...]
    models: tuple[str, ...]
    data: tuple[str, ...]
    rounds: np.ndarray
    metrics: dict[str, np.ndarray]
    times_selected: np.ndarray
    malicious: np.ndarray
    num_train: np.ndarray
    per_round: dict[str, np.ndarray]
    diagnostics: dict[str, np.ndarray]
    diverged_at: np.ndarray
    config: dict[str, Any]
    compile_seconds: float
    run_seconds: float


def _named(info: Any) -> dict[str, Any]:
    """Fields of an aggregator's report, a dict, a dataclass or None, by name."""
    if info is None or isinstance(info, dict):
        return info or {}
    return {
        f"aggregator_{f.name}": getattr(info, f.name) for f in dataclasses.fields(info)
    }


class Recorder:
    """Collects a history while a group runs."""

    def __init__(
        self,
        *,
        points: tuple[dict[str, Any], ...],
        models: tuple[str, ...],
        data: tuple[str, ...],
        num_rounds: int,
        malicious: np.ndarray,
        num_train: np.ndarray,
        stops: bool,
    ):
        """Starts a history.

        Args:
          points: swept fields of every point.
          models: names of predictors.
          data: names of splits.
          num_rounds: R.
          malicious: `bool[G, N]`.
          num_train: `int[G, N]`.
          stops: whether a non-finite value means divergence.
        """
        self._points, self._models, self._data = points, models, data
        self._num_rounds, self._stops = num_rounds, stops
        self._malicious, self._num_train = malicious, num_train
        self._selected = np.zeros(malicious.shape, np.int64)
        self._diverged = np.full(len(points), -1)
        self._rounds: list[int] = []
        self._metrics: list[dict[str, np.ndarray]] = []
        self._diagnostics: list[dict[str, np.ndarray]] = []
        self._times: list[np.ndarray] = []
        self._per_round: dict[str, np.ndarray] = {}

    def ran(self, start: int, count: int, info: Any) -> None:
        """Records `count` rounds; leaves of `info` are `[G, segment, ...]`."""
        info = jax.tree.map(lambda leaf: np.asarray(leaf)[:, :count], info)
        for point in range(len(self._points)):
            np.add.at(self._selected[point], info.cohort[point].reshape(-1), 1)
        totals = {name: value.sum(axis=2) for name, value in info.client.items()}
        fixed = ("num_nonfinite", "floats_up", "floats_down")
        values = totals | _named(info.aggregator) | {n: getattr(info, n) for n in fixed}
        for name, value in values.items():
            if name not in self._per_round:
                shape = (len(self._points), self._num_rounds)
                self._per_round[name] = np.full(shape, np.nan)
            self._per_round[name][:, start : start + count] = value
        if self._stops:
            bad = info.num_nonfinite > 0
            first = np.where(bad.any(axis=1), start + bad.argmax(axis=1) + 1, -1)
            self._diverged = np.where(self._diverged < 0, first, self._diverged)

    def evaluated(self, round: int, metrics: Any, diagnostics: Any) -> None:
        """Records an evaluation after `round` finished rounds."""
        gone = (self._diverged >= 0) & (self._diverged <= round)

        def clean(value: Any) -> np.ndarray:
            value = np.array(value, np.float64)
            value[gone] = np.nan
            return value

        self._rounds.append(round)
        self._metrics.append({name: clean(value) for name, value in metrics.items()})
        self._diagnostics.append({n: clean(value) for n, value in diagnostics.items()})
        self._times.append(self._selected.copy())

    def all_diverged(self) -> bool:
        """Whether no point is left that could go on."""
        return bool((self._diverged >= 0).all())

    def headline(self) -> str:
        """The last evaluation in a few words: mean over points and clients."""
        last = self._metrics[-1]
        name = "accuracy" if "accuracy" in last else "loss"
        value = last[name][:, :, 0]
        if np.isnan(value).all():
            return "diverged"
        shown = [np.nanmean(value[:, model]) for model in range(len(self._models))]
        parts = (f"{m} {v:.3f}" for m, v in zip(self._models, shown, strict=True))
        return f"{name}: " + ", ".join(parts)

    def finish(
        self, config: dict[str, Any], compile_seconds: float, run_seconds: float
    ) -> History:
        """The finished history; evaluations that were never reached are not in it."""

        def stack(rows: list[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
            return {n: np.stack([row[n] for row in rows], axis=1) for n in rows[0]}

        return History(
            points=self._points,
            models=self._models,
            data=self._data,
            rounds=np.array(self._rounds),
            metrics=stack(self._metrics),
            times_selected=np.stack(self._times, axis=1),
            malicious=self._malicious,
            num_train=self._num_train,
            per_round=self._per_round,
            diagnostics=stack(self._diagnostics),
            diverged_at=self._diverged,
            config=config,
            compile_seconds=compile_seconds,
            run_seconds=run_seconds,
        )

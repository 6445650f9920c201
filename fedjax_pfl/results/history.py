"""Histories of groups of trainings, on the host."""

import dataclasses
import itertools
from typing import Any

import numpy as np

from fedjax_pfl.core import struct

__all__ = ["History"]


@dataclasses.dataclass(frozen=True)
class History:
    """Measurements of G grid points of one static group; NumPy arrays.

    Attributes:
      points: swept field -> value, one per grid point.
      models: predictors evaluated.
      data: splits evaluated on.
      rounds: `int[E]` finished rounds at each evaluation; the first is 0.
      metrics: name -> `[G, E, models, data, N]` means over examples; NaN where there
        are none, where a client was not evaluated, and from a divergence on.
      evaluated: `bool[G, E, data, N]` which clients were evaluated.
      clients: `int[N]` rows of these clients in the population; all of them, but for a
        streamed training, whose history is about a sample.
      times_selected: `int[G, E, N]` rounds each client had taken part in.
      malicious: `bool[G, N]`.
      num_train: `int[G, N]` training examples.
      num_test: `int[G, N]` test examples; None in files of before they were counted.
      label_counts: `int[G, N, C]` training examples by true class, or None where
        targets are not classes.
      leak: `[G]` share of test examples that another client trains on.
      collaboration: `[G, N, N]` weights with which each client (row) would get the
        others' messages after the last round, or None for methods that do not mix.
      own_cluster: `[G, E, N]` share of these weights, without a client's own, that lies
        in its own cluster; None where no clusters are known.
      cluster: `int[G, N]` known cluster of each client, or None.
      series: name -> `[G, models, N, T]` values of each client's test series after the
        last round, such as those of a portfolio; {} for models without series.
      unseen_models: models of the U clients that never trained, whose names tell how
        they were adapted.
      unseen: name -> `[G, unseen_models, U]` their means over own test examples after
        the last round; {} without such clients.
      per_round: name -> `[G, R]` over the cohort totals of counts and means of other
        values, and values of the aggregator.
      diagnostics: name -> `[G, E]`.
      diverged_at: `int[G]` round of the first non-finite value, from 1, or -1.
      stopped_at: `int[G]` round at which a point was stopped early, or -1; its later
        evaluations repeat the last one.
      reached_target: `bool[G]` whether it was stopped because it reached its target.
      dropped: `bool[G]` whether it was stopped because others were better; None where
        nothing was.
      config: flat configuration shared by the points.
      compile_seconds: lowering and compiling.
      run_seconds: everything else.
    """

    points: tuple[dict[str, Any], ...]
    models: tuple[str, ...]
    data: tuple[str, ...]
    rounds: np.ndarray
    metrics: dict[str, np.ndarray]
    evaluated: np.ndarray
    clients: np.ndarray
    times_selected: np.ndarray
    malicious: np.ndarray
    num_train: np.ndarray
    num_test: np.ndarray | None
    label_counts: np.ndarray | None
    leak: np.ndarray
    collaboration: np.ndarray | None
    own_cluster: np.ndarray | None
    cluster: np.ndarray | None
    series: dict[str, np.ndarray]
    unseen_models: tuple[str, ...]
    unseen: dict[str, np.ndarray]
    per_round: dict[str, np.ndarray]
    diagnostics: dict[str, np.ndarray]
    diverged_at: np.ndarray
    stopped_at: np.ndarray
    reached_target: np.ndarray
    dropped: np.ndarray | None
    config: dict[str, Any]
    compile_seconds: float
    run_seconds: float

    __post_init__ = struct.check_fields

    __repr__ = struct.array_repr

    def only(self, kept: np.ndarray) -> "History":
        """Returns the history of the points `bool[G]` that are kept."""

        def chosen(value: Any) -> Any:
            if isinstance(value, dict):
                return {name: array[kept] for name, array in value.items()}
            return value[kept] if isinstance(value, np.ndarray) else value

        shared = ("models", "data", "rounds", "clients", "config", "unseen_models")
        fields = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        parts = {n: chosen(v) for n, v in fields.items() if n not in shared}
        parts["points"] = tuple(itertools.compress(self.points, kept))
        return dataclasses.replace(self, **parts)

    @property
    def ends(self) -> np.ndarray:
        """`int[G]` last round of each point, which early stopping may have chosen."""
        return np.where(self.stopped_at < 0, self.rounds[-1], self.stopped_at)

    @property
    def share_of_rounds(self) -> float:
        """Share of the rounds that training every point to its end would take."""
        num_rounds = self.config.get("num_rounds", self.rounds[-1])
        return float(self.ends.mean() / num_rounds)

    @property
    def status(self) -> tuple[str, ...]:
        """How each point ended, in words."""
        reasons = np.where(self.reached_target, "reached its target", "stopped")
        if self.dropped is not None:
            reasons = np.where(self.dropped, "dropped", reasons)
        has_diverged = self.diverged_at >= 0
        reasons = np.where(has_diverged, "diverged", reasons)
        rounds = np.where(has_diverged, self.diverged_at, self.stopped_at)
        return tuple(
            "ok" if round < 0 else f"{reason} at round {round}"
            for reason, round in zip(reasons, rounds, strict=True)
        )

"""Histories of groups of trainings, on the host."""

import dataclasses
import itertools
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import numpy as np

from fedjax_pfl.core import struct
from fedjax_pfl.results.metrics import headline, mean

__all__ = ["AXES", "History"]

_Arrays = dict[str, np.ndarray]


@dataclasses.dataclass(frozen=True)
class History:
    """Measurements of G grid points of one static group; NumPy arrays.

    Attributes:
      points: swept field -> value, one per grid point.
      models: predictors evaluated.
      data: splits evaluated on.
      rounds: `int[E]` finished rounds at each evaluation; the first is 0.
      metrics: name -> `[G, E, models, data, N]` means over examples; NaN without
        examples, where a client was not evaluated, and from its divergence on.
      evaluated: `bool[G, E, data, N]` which clients were evaluated.
      clients: `int[N]` rows of these clients in the population; all clients, or a
        sample of them if the training is streamed.
      client_names: `object[G, N]` names of these clients, texts; None if clients
        have numbers only.
      times_selected: `int[G, E, N]` rounds each client had taken part in.
      malicious: `bool[G, N]`.
      num_train: `int[G, N]` training examples.
      num_test: `int[G, N]` test examples; None in older files.
      num_validation: `int[G, N]` validation examples; None in older files.
      extra_examples: `int[G, N]` examples that each client got beyond its draw; None in
        older files.
      label_counts: `int[G, N, C]` training examples by true class, or None if
        targets are not classes.
      class_names: C texts, or None if classes have numbers only.
      leak: `[G]` share of test examples that another client trains on.
      collaboration: `[G, N, N]` weights with which each client (row) would get the
        others' messages after the last round, or None for methods that do not mix.
      own_cluster: `[G, E, N]` share of these weights, without a client's own, within
        its own cluster; None if the clusters are not known.
      cluster: `int[G, N]` known cluster of each client, or None.
      series: name -> `[G, models, N, T]` values of each client's test series after the
        last round, such as those of a portfolio; {} for models without series.
      unseen_models: models of the U clients that never trained; the names include the
        adaptation.
      unseen: name -> `[G, unseen_models, U]` their means over own test examples after
        the last round; {} without such clients.
      per_round: name -> `[G, R]` over the cohort totals of counts and means of other
        values, and values of the aggregator.
      diagnostics: name -> `[G, E]`.
      diverged_at: `int[G]` round in which the server or an honest client first
        diverged, from 1, or -1; see `FederatedProcess`.
      client_diverged_at: `int[G, N]` the same for every client; a diverged server ends
        all clients; None in older files.
      stopped_at: `int[G]` round at which a point was stopped early, or -1; its later
        evaluations repeat the last one.
      reached_target: `bool[G]` whether it was stopped because it reached its target.
      dropped: `bool[G]` whether it was stopped because others were better; None if no
        point was.
      config: flat configuration shared by the points; its `metric`, if there is one,
        chooses rounds, hybrids and settings.
      compile_seconds: lowering and compiling.
      run_seconds: everything else.
    """

    points: tuple[dict[str, Any], ...]
    models: tuple[str, ...]
    data: tuple[str, ...]
    rounds: np.ndarray
    metrics: Annotated[_Arrays, "point", "round", "model", "data", "client"]
    evaluated: Annotated[np.ndarray, "point", "round", "data", "client"]
    clients: np.ndarray
    client_names: np.ndarray | None
    times_selected: Annotated[np.ndarray, "point", "round", "client"]
    malicious: Annotated[np.ndarray, "point", "client"]
    num_train: Annotated[np.ndarray, "point", "client"]
    num_test: Annotated[np.ndarray | None, "point", "client"]
    num_validation: Annotated[np.ndarray | None, "point", "client"]
    extra_examples: Annotated[np.ndarray | None, "point", "client"]
    label_counts: Annotated[np.ndarray | None, "point", "client", "class"]
    class_names: tuple[str, ...] | None
    leak: Annotated[np.ndarray, "point"]
    collaboration: Annotated[np.ndarray | None, "point", "client", "sender"]
    own_cluster: Annotated[np.ndarray | None, "point", "round", "client"]
    cluster: Annotated[np.ndarray | None, "point", "client"]
    series: Annotated[_Arrays, "point", "model", "client", "moment"]
    unseen_models: tuple[str, ...]
    unseen: Annotated[_Arrays, "point", "unseen_model", "unseen_client"]
    per_round: Annotated[_Arrays, "point", "step"]
    diagnostics: Annotated[_Arrays, "point", "round"]
    diverged_at: Annotated[np.ndarray, "point"]
    client_diverged_at: Annotated[np.ndarray | None, "point", "client"]
    stopped_at: Annotated[np.ndarray, "point"]
    reached_target: Annotated[np.ndarray, "point"]
    dropped: Annotated[np.ndarray | None, "point"]
    config: dict[str, Any]
    compile_seconds: float
    run_seconds: float

    __post_init__ = struct.check_fields

    __repr__ = struct.array_repr

    def only(self, mask: np.ndarray) -> "History":
        """Returns the history of the points in the mask `bool[G]`."""

        def chosen(value: Any) -> Any:
            if isinstance(value, dict):
                return {name: array[mask] for name, array in value.items()}
            return None if value is None else value[mask]

        parts = {name: chosen(getattr(self, name)) for name in (*AXES, "client_names")}
        parts["points"] = tuple(itertools.compress(self.points, mask))
        return dataclasses.replace(self, **parts)

    @property
    def headline(self) -> str:
        """Metric that chooses and ranks: the configured one, or that of `headline`."""
        return headline(self.metrics, self.config.get("metric"))

    def means(self, point: int, metric: str, model: str, data: str) -> np.ndarray:
        """Returns the means `[E]` of a point over honest clients with a value."""
        m, d = self.models.index(model), self.data.index(data)
        is_counted = self.evaluated[point, :, d] & ~self.malicious[point]
        return mean(self.metrics[metric][point, :, m, d], is_counted)

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
        """How each point ended, in words; names clients if only some diverged."""
        reasons = np.where(self.reached_target, "reached its target", "stopped")
        if self.dropped is not None:
            reasons = np.where(self.dropped, "dropped", reasons)
        # A divergence hides all other reasons.
        has_diverged = self.diverged_at >= 0
        reasons = np.where(has_diverged, "diverged", reasons)
        rounds = np.where(has_diverged, self.diverged_at, self.stopped_at)
        return tuple(
            "ok" if round < 0 else f"{reason} at round {round}{self._diverged(point)}"
            for point, (reason, round) in enumerate(zip(reasons, rounds, strict=True))
        )

    def _diverged(self, point: int) -> str:
        """Names diverged clients if others did not diverge; empty for none."""
        if self.client_diverged_at is None:
            return ""
        has_diverged = self.client_diverged_at[point] >= 0
        if not has_diverged.any() or (has_diverged | self.malicious[point]).all():
            return ""
        return f" ({_listed(self.names_of(point)[has_diverged].tolist())})"

    def names_of(self, point: int) -> np.ndarray:
        """Returns the names `[N]` of a point's clients, or else their numbers."""
        return self.clients if self.client_names is None else self.client_names[point]


AXES: dict[str, tuple[str, ...]] = {
    name: get_args(hint)[1:]
    for name, hint in get_type_hints(History, include_extras=True).items()
    if get_origin(hint) is Annotated
}
"""Field of an array, or of several by name -> names of the axes."""


def _listed(clients: list[Any]) -> str:
    """Names up to three clients, and counts the others."""
    names = ", ".join(map(str, clients[:3]))
    remainder = f" and {len(clients) - 3} more" if len(clients) > 3 else ""
    return f"client{'s' * (len(clients) > 1)} {names}{remainder}"

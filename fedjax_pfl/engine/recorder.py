"""Recording of a history while a group of trainings runs."""

import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import numpy as np

from fedjax_pfl import core
from fedjax_pfl.core import byte_counts
from fedjax_pfl.data import statistics
from fedjax_pfl.engine import stopping
from fedjax_pfl.engine.groups import PlannedGroup
from fedjax_pfl.results import history
from fedjax_pfl.results.metrics import headline, mean, sign
from fedjax_pfl.round import local_privacy, privacy
from fedjax_pfl.round.parts import noise

__all__ = ["Recorder"]


def _over_cohort(values: np.ndarray) -> np.ndarray:
    """Totals of counts `[G, segment, K]`, means of other values; `[G, segment]`."""
    is_count = values.dtype.kind in "biu"
    return values.sum(axis=2) if is_count else values.mean(axis=2)


def _named(info: core.Tree) -> dict[str, Any]:
    """Returns numbers `[G, segment]` of an aggregator's report, by name."""
    # Rules report a dict, a dataclass, a tuple of reports or None.
    if info is None or isinstance(info, dict):
        return info or {}
    return {f"aggregator_{name}": value for name, value in _numbers(info, "")}


def _epsilons(planned: PlannedGroup) -> np.ndarray | None:
    """Computes epsilon `[G, R]` of every point after every round, or None."""
    processes = planned.group.processes
    if noise.noise_of(processes[0]) is None:  # all have one structure
        return None
    size = planned.num_clients, planned.options.num_rounds
    return np.stack([privacy.epsilons(process, *size) for process in processes])


def _numbers(info: core.Tree, prefix: str) -> Iterator[tuple[str, Any]]:
    """Yields numbers of a report by name; in a tuple, names begin with the position."""
    if isinstance(info, tuple):
        for number, part in enumerate(info):
            yield from _numbers(part, f"{prefix}{number}_")
    elif info is not None:
        for field in dataclasses.fields(info):
            value = getattr(info, field.name)
            # Values per row of messages have a third axis, and are left out.
            if value is not None and value.ndim == 2:
                yield f"{prefix}{field.name}", value


_NEVER = np.iinfo(np.int32).max  # later than any round


def _or_none(rounds: np.ndarray) -> np.ndarray:
    """Returns rounds, with -1 for none."""
    return np.where(rounds == _NEVER, -1, rounds)


_SINGLE = {  # arrays of a checkpoint -> their axes
    "rounds": ("round",),
    "evaluated": ("round", "point", "data", "client"),
    "times": ("round", "point", "client"),
    "selected": ("point", "row"),
    "diverged": ("point", "row"),
}
_NAMED = {
    "metrics": ("round", "point", "model", "data", "client"),
    "diagnostics": ("round", "point"),
    "per_round": ("point", "step"),
    "series": ("point", "model", "client", "moment"),
    "unseen": ("point", "unseen_model", "unseen_client"),
    "watch": ("point",),
    "collaboration": ("point", "client", "sender"),
    "own_cluster": ("round", "point", "client"),
}


class Recorder:
    """Collects a history while a group runs."""

    def __init__(
        self,
        planned: PlannedGroup,
        federations: Sequence[statistics.PartitionStatistics],
        clients: np.ndarray | None = None,
    ):
        """Starts a history of all clients, or of the described rows `int[N]`."""
        group, options = planned.group, planned.options
        self._points, self._models = tuple(group.points), planned.names
        self._data, self._num_rounds = planned.plan.schedule.data, options.num_rounds
        self._stops = group.processes[0].on_nonfinite == "stop"
        self._stop_when, self._metric = options.stop_when, options.metric
        self._watch = stopping.watch(
            options.stop_when, self._points, options.num_rounds
        )
        self._federations = federations
        self._malicious = np.stack([f.malicious for f in federations])
        num_shown = self._malicious.shape[1]
        self._clients = np.arange(num_shown) if clients is None else clients
        num_clients = num_shown if clients is None else planned.num_clients
        # Counted for the whole population; the history shows the recorded clients.
        self._selected = np.zeros((len(self._points), num_clients), np.int64)
        self._diverged = np.full(self._selected.shape, _NEVER, np.int32)
        self._epsilon = _epsilons(planned)
        self._spending = None
        if clients is None and local_privacy.solver_of(group.processes[0]) is not None:
            self._spending = local_privacy.Spending(
                group.processes, [f.num_train for f in federations]
            )
        self._rounds: list[int] = []
        self._metrics: list[dict[str, np.ndarray]] = []
        self._evaluated: list[np.ndarray] = []
        self._diagnostics: list[dict[str, np.ndarray]] = []
        self._times: list[np.ndarray] = []
        self._collaboration: np.ndarray | None = None
        self._own_cluster: list[np.ndarray] = []
        self._series: dict[str, np.ndarray] = {}
        self._unseen: dict[str, np.ndarray] = {}
        self._unseen_models = planned.unseen_names
        self._per_round: dict[str, np.ndarray] = {}
        self.num_restored = 0

    def ran(self, start: int, count: int, info: Any) -> None:
        """Records `count` rounds; leaves of `info` are `[G, segment, ...]`."""
        info = jax.tree.map(lambda leaf: np.asarray(leaf)[:, :count], info)
        active = self.active()
        spent = {}
        if self._spending is not None:
            spent["local_epsilon"] = self._spending.after(self._selected, info.cohort)
        for point in np.flatnonzero(active):
            rows = info.cohort[point].reshape(-1)
            np.add.at(self._selected[point], rows[rows >= 0], 1)
        over = {n: _over_cohort(value) for n, value in info.client.items()}
        values = over | info.server | _named(info.aggregator) | spent
        values["num_nonfinite"] = info.num_nonfinite
        if self._epsilon is not None:
            values["epsilon"] = self._epsilon[:, start : start + count]
        for name in ("bytes_up", "bytes_down"):
            values[name] = byte_counts.total(getattr(info, name))
        for name, value in values.items():
            # Rounds that are never reached stay NaN.
            if name not in self._per_round:
                shape = (len(self._points), self._num_rounds)
                self._per_round[name] = np.full(shape, np.nan)
            self._per_round[name][active, start : start + count] = value[active]
        if self._stops:
            for point in np.flatnonzero(active):
                self._see_divergence(start, int(point), info)

    def _see_divergence(self, start: int, point: int, info: Any) -> None:
        """Records the first round in which each client, or the server, diverged."""
        members = info.cohort[point]  # -1 is a place without a client
        steps, places = np.nonzero(info.client_diverged[point] & (members >= 0))
        rounds = self._diverged[point]
        np.minimum.at(rounds, members[steps, places], start + steps + 1)
        if (server := info.server_diverged[point]).any():
            np.minimum(rounds, start + server.argmax() + 1, out=rounds)

    def _is_diverged(self, round: int) -> np.ndarray:
        """Returns the clients `bool[G, N]` that diverged by a round."""
        return self._diverged[:, self._clients] <= round

    def _is_over(self, round: int) -> np.ndarray:
        """Returns the points `bool[G]` with no honest client left by a round."""
        is_diverged = self._diverged <= round
        if is_diverged.shape == self._malicious.shape:  # but not of a sample of clients
            is_diverged |= self._malicious
        return np.asarray(is_diverged.all(axis=1))

    def evaluated(
        self,
        round: int,
        data: tuple[str, ...],
        members: np.ndarray | None,
        metrics: dict[str, np.ndarray],
        diagnostics: dict[str, np.ndarray],
        snapshot: dict[str, Any],
        again: np.ndarray | None = None,
    ) -> None:
        """Records metrics `[G, models, data, K]` of `members` after a round."""
        is_diverged, is_over = self._is_diverged(round), self._is_over(round)
        num_points, num_clients = self._malicious.shape
        if members is None:
            members = np.tile(np.arange(num_clients), (num_points, 1))
        members = np.asarray(members)
        columns = [self._data.index(name) for name in data]

        # Members may differ between evaluations, so every client has a place.
        def spread(values: np.ndarray) -> np.ndarray:
            values = np.array(values, np.float64)
            full = np.full((*values.shape[:2], len(self._data), num_clients), np.nan)
            for point, rows in enumerate(members):
                for column, name in enumerate(columns):
                    full[point][:, name, rows] = values[point][:, column]
            return np.where(is_diverged[:, None, None], np.nan, full)

        # Data that were not due, and clients that were not drawn, are not evaluated.
        is_evaluated = np.zeros((num_points, len(self._data), num_clients), bool)
        for point, rows in enumerate(members):
            is_evaluated[point][np.ix_(columns, rows)] = True
        if "weights" in snapshot:
            self._collaboration = np.asarray(snapshot["weights"])
        # A diverged client has no values from its divergence on.
        for name, values in snapshot.get("series", {}).items():
            lost = is_diverged[:, None, :, None]
            self._series[name] = np.where(lost, np.nan, np.array(values, np.float64))
        for name, values in snapshot.get("unseen", {}).items():
            lost = is_over[:, None, None]
            self._unseen[name] = np.where(lost, np.nan, np.array(values, np.float64))
        spreads = {name: spread(v) for name, v in metrics.items()}
        # Points `bool[G]` in `again` have their last evaluation replaced, after the
        # same round, so that a point that ends is measured on all data.
        if again is not None:
            for name, values in spreads.items():
                self._metrics[-1][name][again] = values[again]
            self._evaluated[-1][again] = is_evaluated[again]
            return
        self._rounds.append(round)
        self._metrics.append(spreads)
        self._evaluated.append(is_evaluated)
        diagnostics = {n: np.array(v, np.float64) for n, v in diagnostics.items()}
        for values in diagnostics.values():
            values[is_over] = np.nan
        self._diagnostics.append(diagnostics)
        self._times.append(self._selected[:, self._clients])
        if "own_cluster" in snapshot:
            self._own_cluster.append(np.asarray(snapshot["own_cluster"]))

        rule = self._stop_when
        if rule is not None and rule.data in data:
            self._watch.see(round, self._watched(rule, is_evaluated))

    def _watched(self, rule: stopping.Watched, is_evaluated: np.ndarray) -> np.ndarray:
        """Returns means `[G]` over honest clients of the watched metric, now."""
        last = self._metrics[-1]
        model = self._models.index(rule.model_of(self._models))
        d = self._data.index(rule.data)
        values = last[rule.chosen][:, model, d]
        return self._mean(values, is_evaluated[:, d], self._rounds[-1])

    def _mean(
        self, values: np.ndarray, is_evaluated: np.ndarray, round: int
    ) -> np.ndarray:
        """Returns means `[G]` over honest clients; NaN if one of them diverged."""
        counts = is_evaluated & ~self._malicious
        # The mean of a training with a lost client would not be about all clients.
        is_lost = (counts & self._is_diverged(round)).any(axis=1)
        return np.where(is_lost, np.nan, mean(values, counts))

    def places(self, clients: np.ndarray) -> np.ndarray:
        """Returns the positions of clients `int[K]` in the history."""
        return np.searchsorted(self._clients, clients)

    def scores(self, model: str, data: str) -> tuple[np.ndarray, np.ndarray]:
        """Returns scores of a model now, `[G]` and `[G, N]`; larger is better."""
        last, d = self._metrics[-1], self._data.index(data)
        name = headline(last, self._metric)
        values = last[name][:, self._models.index(model), d]
        means = self._mean(values, self._evaluated[-1][:, d], self._rounds[-1])

        def scored(array: np.ndarray) -> np.ndarray:
            return np.where(np.isnan(array), -np.inf, sign(name) * array)

        # The mean over honest clients, and every client; -inf if unknown.
        return scored(means), scored(values)

    @property
    def rounds(self) -> tuple[int, ...]:
        """Finished rounds at each evaluation so far."""
        return tuple(self._rounds)

    def means(self, number: int) -> dict[str, np.ndarray]:
        """Means `[G]` over honest clients at an evaluation, by `model/data/metric`."""
        means, is_evaluated = {}, self._evaluated[number]
        for metric, values in self._metrics[number].items():
            for (m, model), (d, data) in itertools.product(
                enumerate(self._models), enumerate(self._data)
            ):
                if (is_evaluated[:, d] & ~self._malicious).any():
                    name, part = f"{model}/{data}/{metric}", values[:, m, d]
                    means[name] = self._mean(
                        part, is_evaluated[:, d], self._rounds[number]
                    )
        return means

    def running(self, number: int) -> np.ndarray:
        """Returns the points `bool[G]` that had not ended before an evaluation."""
        stopped = self._watch.stopped_at
        return (stopped < 0) | (stopped >= self._rounds[number])

    def active(self) -> np.ndarray:
        """Returns the points `bool[G]` that early stopping has not ended."""
        return self._watch.stopped_at < 0

    def has_ended(self) -> bool:
        """Returns whether the last evaluation was the last of the training."""
        return self._rounds[-1] >= self._num_rounds or self.all_ended()

    def all_ended(self) -> bool:
        """Returns whether no point is left that could go on."""
        return bool((self._is_over(self._num_rounds) | ~self.active()).all())

    def arrays(self) -> dict[str, np.ndarray]:
        """Returns everything recorded so far, by name, for `restore`."""
        lists = {
            "metrics": self._metrics,
            "diagnostics": self._diagnostics,
        }
        arrays = {
            f"{kind}/{name}": np.stack([row[name] for row in rows])
            for kind, rows in lists.items()
            for name in rows[0]
        }
        arrays |= {f"per_round/{name}": v for name, v in self._per_round.items()}
        arrays |= {f"series/{name}": v for name, v in self._series.items()}
        arrays |= {f"unseen/{name}": v for name, v in self._unseen.items()}
        arrays |= {f"watch/{name}": v for name, v in self._watch.arrays().items()}
        arrays |= {
            "rounds": np.array(self._rounds),
            "evaluated": np.stack(self._evaluated),
            "times": np.stack(self._times),
            "selected": self._selected,
            "diverged": self._diverged,
        }
        if self._collaboration is not None:
            arrays["collaboration"] = self._collaboration
        if self._own_cluster:
            arrays["own_cluster"] = np.stack(self._own_cluster)
        return arrays

    def restore(self, arrays: dict[str, np.ndarray], done: int) -> None:
        """Restores the history that `arrays` returned."""
        self._check(arrays, done)
        named: dict[str, dict[str, np.ndarray]] = {}
        for path, value in arrays.items():
            kind, slash, name = path.partition("/")
            if slash:
                named.setdefault(kind, {})[name] = value
        self._rounds = arrays["rounds"].tolist()
        self.num_restored = len(self._rounds)

        def rows(kind: str) -> list[dict[str, np.ndarray]]:
            values = named.get(kind, {})
            return [
                {name: value[k] for name, value in values.items()}
                for k in range(len(self._rounds))
            ]

        self._metrics, self._diagnostics = rows("metrics"), rows("diagnostics")
        self._per_round = named.get("per_round", {})
        self._series = named.get("series", {})
        self._unseen = named.get("unseen", {})
        self._watch.restore(named["watch"])
        self._evaluated, self._times = list(arrays["evaluated"]), list(arrays["times"])
        self._selected, self._diverged = arrays["selected"], arrays["diverged"]
        self._collaboration = arrays.get("collaboration")
        self._own_cluster = list(arrays.get("own_cluster", ()))

    def _check(self, arrays: dict[str, np.ndarray], done: int) -> None:
        """Refuses arrays that do not fit the history after `done` rounds."""
        watched = {f"watch/{name}" for name in self._watch.arrays()}
        wrong = {*_SINGLE, *watched} - arrays.keys()
        rounds = np.size(arrays.get("rounds", ()))
        # A damaged or foreign checkpoint must not enter the history: names, kinds, axes
        # and lengths are compared.
        sizes = {"point": len(self._points), "round": rounds}
        sizes |= {"model": len(self._models), "data": len(self._data)}
        sizes |= {"client": len(self._clients), "row": self._selected.shape[1]}
        sizes |= {"step": self._num_rounds, "unseen_model": len(self._unseen_models)}
        for name, value in arrays.items():
            if name.startswith("rows/"):  # of a trainer, which checks them
                continue
            axes = _SINGLE.get(name) or _NAMED.get(name.partition("/")[0], ())
            fits = value.dtype.kind in "biuf" and len(axes) == value.ndim
            if not fits or any(
                length != sizes.get(axis, length)
                for axis, length in zip(axes, value.shape, strict=True)
            ):
                wrong.add(name)
        if wrong or arrays["rounds"][-1:].tolist() != [done]:
            raise ValueError(f"other measurements: {', '.join(sorted(wrong))}")

    def finish(
        self, config: dict[str, Any], compile_seconds: float, run_seconds: float
    ) -> history.History:
        """Returns the history, without evaluations that were never reached."""

        # Evaluations were appended one by one; points lead in a history.
        def stack(rows: list[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
            return {n: np.stack([row[n] for row in rows], axis=1) for n in rows[0]}

        labels = [
            f.label_counts for f in self._federations if f.label_counts is not None
        ]
        clusters = [f.cluster for f in self._federations if f.cluster is not None]
        names = [f.client_names for f in self._federations if f.client_names]
        shares = self._own_cluster
        return history.History(
            points=self._points,
            models=self._models,
            data=self._data,
            rounds=np.array(self._rounds),
            metrics=stack(self._metrics),
            evaluated=np.stack(self._evaluated, axis=1),
            clients=self._clients,
            client_names=np.array(names, object) if names else None,
            times_selected=np.stack(self._times, axis=1),
            malicious=self._malicious,
            num_train=np.stack([f.num_train for f in self._federations]),
            num_test=np.stack([f.num_test for f in self._federations]),
            num_validation=np.stack([f.num_validation for f in self._federations]),
            extra_examples=np.stack([f.extra_examples for f in self._federations]),
            label_counts=np.stack(labels) if labels else None,
            class_names=self._federations[0].class_names,
            leak=np.array([f.leak for f in self._federations]),
            collaboration=self._collaboration,
            series=self._series,
            unseen_models=self._unseen_models if self._unseen else (),
            unseen=self._unseen,
            own_cluster=np.stack(shares, axis=1) if shares else None,
            cluster=np.stack(clusters) if clusters else None,
            per_round=self._per_round,
            diagnostics=stack(self._diagnostics),
            client_diverged_at=_or_none(self._diverged[:, self._clients]),
            diverged_at=_or_none(self._diverged.min(axis=1)),
            stopped_at=self._watch.stopped_at,
            reached_target=self._watch.reached_target,
            dropped=self._watch.dropped if self._watch.dropped.any() else None,
            config=config,
            compile_seconds=compile_seconds,
            run_seconds=run_seconds,
        )

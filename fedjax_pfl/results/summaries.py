"""From every client's metric to the numbers of a table (NumPy, on the host).

A metric is an array `[G, E, model, data, N]` of grid points and evaluated rounds; NaN
if a client has no such examples, was not evaluated, or has diverged, or if the metric
is undefined for its examples.
"""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from fedjax_pfl.results import history
from fedjax_pfl.results.metrics import masked_mean, sign

if TYPE_CHECKING:
    import pandas as pd

__all__ = [
    "OF_EACH",
    "OWN_TEST",
    "Part",
    "mean_and_std",
    "model_metrics",
    "parts",
    "populations",
    "statistics",
    "tally",
    "unseen_cells",
]

METHOD_FIELDS = ("algorithm.", "aggregator", "server_optimizer")
"""Prefixes of fields that belong to a method, not to its environment."""
OWN_TEST = "own test"

_DATA_NAMES = {
    "test": OWN_TEST,
    "validation": "own validation",
    "train": "own training",
    "others": "own + others' test",
    "everybody": "everybody's test",
}
OF_EACH = "best of each client (validation)"
"""Value of `when` if each client has the model of its own best round."""
_CHOOSERS = {"best (validation)": "validation", "best (oracle)": "test"}
_COUNTS = {"validation": "num_validation", "train": "num_train"}
_LARGE = 1000  # from here on one decimal is enough
_QUANTILES = {"10 %": 0.1, "25 %": 0.25, "median": 0.5, "75 %": 0.75, "90 %": 0.9}


def model_metrics(
    metrics: Mapping[str, np.ndarray],
    models: Sequence[str],
    data: Sequence[str],
    headline: str,
) -> dict[str, dict[str, np.ndarray]]:
    """Splits metrics by model, and adds the hybrids; each is `[G, E, data, N]`."""
    split = {
        model: {name: values[:, :, i] for name, values in metrics.items()}
        for i, model in enumerate(models)
    }
    if not {"personal", "global"} <= set(models):
        return split
    personal, shared = split["personal"], split["global"]

    # The global model if it is strictly better than the personal one, client by
    # client and round by round. The oracle compares on the test data themselves: an
    # upper bound for both models, not a method.
    def hybrid(judges: Mapping[str, str], split: str) -> dict[str, np.ndarray]:
        """Makes, for each metric, its judge's choice on the data `split`."""
        d = data.index(split)
        mixed = {}
        for name, judge in judges.items():
            # False if either is NaN.
            scores = (sign(judge) * m[judge][:, :, d] for m in (shared, personal))
            pick = np.greater(*scores)
            mixed[name] = np.where(pick[:, :, None], shared[name], personal[name])
        return mixed

    if "validation" in data:
        judges = dict.fromkeys(metrics, headline)
        split["hybrid (validation)"] = hybrid(judges, "validation")
    if "test" in data:
        split["hybrid (oracle)"] = hybrid({name: name for name in metrics}, "test")
    return split


def populations(
    malicious: np.ndarray, times_selected: np.ndarray
) -> dict[str, np.ndarray]:
    """Returns masks `bool[G, E, N]` of all clients, and of populations within."""
    masks = {"all": np.ones(times_selected.shape, bool)}
    if malicious.any():
        masks["honest"] = np.repeat(
            ~malicious[:, None], times_selected.shape[1], axis=1
        )
    if (times_selected[:, -1] == 0).any():
        masks["participants"] = times_selected > 0
        masks["never selected"] = times_selected == 0
    return masks


def statistics(
    metric: str, values: np.ndarray, counts: np.ndarray | None = None
) -> dict[str, float]:
    """Returns statistics of `[N]` values of clients; all NaN if one of them is."""
    if values.size == 0 or np.isnan(values).any():
        values, counts = np.full(1, np.nan), counts if counts is None else np.ones(1)
    ordered = np.sort(values)
    # The worst tenth has at least one client.
    worst_first = ordered if sign(metric) > 0 else ordered[::-1]
    with np.errstate(invalid="ignore"):  # infinite losses have no variance
        quantiles = np.quantile(ordered, list(_QUANTILES.values()))
        mean, variance = values.mean(), values.var()
        std = np.sqrt(variance)
        numbers = {"mean": mean}
        if counts is not None:
            numbers["weighted mean"] = (values * counts).sum() / counts.sum()
        numbers |= {
            "std": std,
            "min": ordered[0],
            "worst 10 %": worst_first[: max(1, values.size // 10)].mean(),
            **dict(zip(_QUANTILES, quantiles, strict=True)),
            "variance": variance,
            # Degrees between the values and (1, ..., 1): 0 if all clients are equal.
            # The cosine, mean / sqrt(mean^2 + variance), rounds to 1 for small angles.
            "angle": np.degrees(np.arctan2(std, mean)),
        }
    return {name: float(value) for name, value in numbers.items()}


@dataclasses.dataclass(frozen=True)
class Part:
    """One model in one population of a static group."""

    name: tuple[str, str]  # model and population
    data: tuple[str, ...]
    values: dict[str, np.ndarray]  # by metric, `[G, E, data, N]`
    masks: dict[str, np.ndarray]  # by metric, `bool[G, E, data, N]` clients that count
    evaluated: np.ndarray  # `bool[G, E, data]` rounds with evaluated clients
    means: dict[str, np.ndarray]  # by metric, `[G, E, data]` over these clients
    reported: dict[str, np.ndarray]  # by `when`, `int[G, N]` index of the round
    counts: tuple[np.ndarray | None, ...]  # by data, `int[G, N]` examples of clients

    def cells(self, point: int) -> Iterator[tuple[str, str, str, str, str, str, float]]:
        """Yields model, population, data, metric, stat, when and value of one point."""
        for when, rounds in self.reported.items():
            clients = np.arange(rounds.shape[1])
            for d, data in enumerate(self.data):
                if not self.evaluated[point, rounds[point], d].any():
                    continue
                at = (point, rounds[point], d, clients)
                for metric, values in self.values.items():
                    mask, counts = self.masks[metric][at], self.counts[d]
                    if counts is not None:
                        counts = counts[point, mask]
                    stats = statistics(metric, values[at][mask], counts)
                    for stat, value in stats.items():
                        yield *self.name, data, metric, stat, when, value


def unseen_cells(
    record: history.History, point: int
) -> Iterator[tuple[str, str, str, str, str, str, float]]:
    """Yields rows like `Part.cells` for the clients that never trained, if any."""
    for metric, values in record.unseen.items():
        has_examples = ~np.isnan(values).all(axis=(0, 1))
        for model, clients in zip(record.unseen_models, values[point], strict=True):
            for stat, value in statistics(metric, clients[has_examples]).items():
                yield model, "unseen", OWN_TEST, metric, stat, "last", value


def parts(record: history.History) -> Iterator[Part]:
    """Yields a part for every model and population; drops data without any examples."""
    # `[G, data, N]`: a value in any round is enough, so that clients with a NaN model
    # later on still count.
    examples = {
        name: np.logical_not(np.isnan(values).all(axis=(1, 2)))
        for name, values in record.metrics.items()
    }
    some = np.any([some.any(axis=(0, 2)) for some in examples.values()], axis=0)
    splits = np.flatnonzero(some).tolist()
    metrics = {n: v[:, :, :, splits] for n, v in record.metrics.items()}
    data, evaluated = [record.data[d] for d in splits], record.evaluated[:, :, splits]
    groups = populations(record.malicious, record.times_selected)
    headline = record.headline
    split = model_metrics(metrics, record.models, data, headline)
    counts = [getattr(record, _COUNTS.get(name, "num_test")) for name in data]
    for model, values in split.items():
        is_counted = _judged(model, data, evaluated)
        when = np.logical_or.reduce(is_counted, axis=-1)
        of_each = {}
        # Clients can keep their own best model only if models differ between them.
        if "validation" in data and model != "global" and model in record.models:
            scores = sign(headline) * values[headline][:, :, data.index("validation")]
            of_each[OF_EACH] = _best_of_each(scores)
        for population, mask in groups.items():
            is_counted_here = mask[:, :, None] & is_counted
            masks = {
                n: is_counted_here & examples[n][:, None, splits] & _defined(values, n)
                for n in values
            }
            means = {n: masked_mean(v, masks[n]) for n, v in values.items()}
            reported = _reported(sign(headline) * means[headline], data, when)
            num_clients = mask.shape[-1]
            rounds = {n: np.tile(r[:, None], num_clients) for n, r in reported.items()}
            yield Part(
                name=(model, population),
                data=tuple(_DATA_NAMES[name] for name in data),
                values=values,
                masks=masks,
                evaluated=when,
                means=means,
                reported=rounds | of_each,
                counts=tuple(counts),
            )


def _defined(values: Mapping[str, np.ndarray], name: str) -> np.ndarray:
    """Returns a mask `[G, E, ...]`: the metric has a value, or the loss has none."""
    # A client without a value but with a loss has not diverged: the metric is undefined
    # for its examples, and it does not count.
    lost = np.isnan(values.get("loss", values[name]))
    return lost | ~np.isnan(values[name])


def _judged(model: str, data: Sequence[str], evaluated: np.ndarray) -> np.ndarray:
    """Returns evaluated clients; for a hybrid only those with data for its choice."""
    judge = {"hybrid (validation)": "validation", "hybrid (oracle)": "test"}.get(model)
    if judge is None:
        return evaluated
    return evaluated & evaluated[:, :, data.index(judge)][:, :, None]


def _reported(
    scores: np.ndarray, data: Sequence[str], evaluated: np.ndarray
) -> dict[str, np.ndarray]:
    """Returns the index `int[G]` of the reported round, by `when`."""
    num_points, num_evaluations, _ = evaluated.shape
    reported = {"last": np.full(num_points, num_evaluations - 1)}
    # Only rounds in which test and validation data were evaluated can be the best.
    judged = [d for d, name in enumerate(data) if name in _CHOOSERS.values()]
    candidates = np.logical_and.reduce(evaluated[:, :, judged], axis=-1)
    for when, chooser in _CHOOSERS.items():
        if chooser in data:
            chosen = scores[..., data.index(chooser)]
            is_candidate = candidates & ~np.isnan(chosen)
            reported[when] = np.where(is_candidate, chosen, -np.inf).argmax(-1)
    return reported


def _best_of_each(scores: np.ndarray) -> np.ndarray:
    """Returns the index `int[G, N]` of each client's best round in `[G, E, N]`."""
    finite_scores = np.where(np.isnan(scores), -np.inf, scores)
    # Clients without scores get the last round.
    has_scores = np.isfinite(finite_scores).any(axis=1)
    return np.where(has_scores, finite_scores.argmax(axis=1), scores.shape[1] - 1)


def tally(status: "pd.Series") -> str:
    """Returns the status of a setting's seeds: the most serious case."""
    for start, text in (
        ("diverged", "diverged"),
        ("dropped", "dropped"),
        ("stopped", "stopped early"),
        ("reached", "reached the target"),
    ):
        count = int(status.str.startswith(start).sum())
        if count:
            return f"{count} of {len(status)} {text}"
    return "ok"


def mean_and_std(values: "pd.Series") -> str:
    """Returns the mean and spread of the values that are not NaN, as text."""
    if values.isna().all():
        return ""
    form = ".4f" if abs(values.mean()) < _LARGE else ",.1f"
    if values.notna().sum() < 2:
        return f"{values.mean():{form}}"
    return f"{values.mean():{form}} ± {values.std():{form}}"

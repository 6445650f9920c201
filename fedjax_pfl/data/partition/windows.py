"""Windows of consecutive classes that move from client to client."""

import dataclasses
import warnings
from typing import ClassVar

import numpy as np

from fedjax_pfl.core import checks
from fedjax_pfl.data import dataset as datasets
from fedjax_pfl.data.partition import base, draws

__all__ = ["ClassWindows"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ClassWindows(base.Drawn):
    """Label skew: client i holds the classes `(i + j) mod C`, j < k.

    Its size is `int(lognormal(mean, sigma)) + extra`, split over its classes into parts
    that differ by 1 at most. Parts are then raised to `min_per_class`, and capped at
    the number of examples of the class.

    Examples of a class are dealt in one shuffled order, client after client, without
    replacement. If the clients want more than there are, the order starts over: then
    clients share examples, one may train on another's test examples, the partition is
    `leaky`, and a warning is issued. No client has an example twice.

    Attributes:
      labels_per_client: k, at most the number of classes.
      mean: of the logarithms of the sizes.
      sigma: standard deviation of the logarithms of the sizes, at least 0.
      extra: examples added to every size.
      min_per_class: minimum number of examples of each of a client's classes.
    """

    labels_per_client: int = 5
    mean: float = 4.0
    sigma: float = 1.0
    extra: int = 5
    min_per_class: int = 2
    name: ClassVar[str] = "class_windows"

    def __post_init__(self):
        checks.positive_int("labels_per_client", self.labels_per_client)
        checks.number("mean", self.mean)
        checks.number("sigma", self.sigma, at_least=0)
        checks.whole("extra", self.extra, at_least=0)
        checks.positive_int("min_per_class", self.min_per_class)

    def draw(
        self, rng: np.random.Generator, dataset: datasets.Dataset, num_clients: int
    ) -> base.Partition:
        """Draws the partition: sizes, then the order of the classes."""
        sizes = draws.lognormal_sizes(rng, self.mean, self.sigma, num_clients)
        classes = self.class_rows(dataset, rng)
        slot = np.arange(self.labels_per_client)
        held = (np.arange(num_clients)[:, None] + slot) % len(classes)  # [N, k]
        needed = [self.min_per_class * (c in held) for c in range(len(classes))]
        advice = "a smaller min_per_class"
        self.require_examples(dataset, classes, needed, advice=advice)
        parts = (sizes[:, None] + self.extra + slot[::-1]) // self.labels_per_client
        available = np.array([len(rows) for rows in classes])
        parts = np.minimum(np.maximum(parts, self.min_per_class), available[held])
        wanted = np.bincount(held.ravel(), parts.ravel(), len(classes)).astype(np.int64)
        is_short = wanted > available
        if is_short.any():
            self._warn(dataset, wanted, available)
        dealt = np.zeros(len(classes), np.int64)
        clients = []
        for labels, counts in zip(held, parts, strict=True):
            rows = [
                classes[c].take(np.arange(start, start + count), mode="wrap")
                for c, start, count in zip(labels, dealt[labels], counts, strict=True)
            ]
            dealt[labels] += counts
            clients.append(np.concatenate(rows))
        return base.Partition.from_rows(clients, leaky=bool(is_short.any()))

    def _warn(
        self, dataset: datasets.Dataset, wanted: np.ndarray, available: np.ndarray
    ) -> None:
        """Warns that clients share examples."""
        label = (wanted / np.maximum(available, 1)).argmax()
        warnings.warn(
            f"Partition {self.name!r} wants {wanted[label]} examples of class {label}"
            f" of {dataset.name}, which has {available[label]};"
            f" {(wanted > available).sum()} of its classes have too few, so that"
            " clients share examples and test scores are too good.",
            stacklevel=2,
        )

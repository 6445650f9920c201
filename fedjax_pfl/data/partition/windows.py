"""Windows of consecutive classes that move from client to client."""

import dataclasses
import warnings

import numpy as np
from numpy.random import Generator

from fedjax_pfl.core import struct
from fedjax_pfl.data.dataset import Dataset
from fedjax_pfl.data.partition import draws
from fedjax_pfl.data.partition.base import Drawn, Partition

__all__ = ["ClassWindows"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ClassWindows(Drawn):
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

    labels_per_client: int = struct.static_field(default=5, at_least=1)
    mean: float = struct.traced_field(default=4.0)
    sigma: float = struct.static_field(default=1.0, at_least=0)
    extra: int = struct.static_field(default=5, at_least=0)
    min_per_class: int = struct.static_field(default=2, at_least=1)
    name = "class_windows"

    def draw(self, rng: Generator, dataset: Dataset, num_clients: int) -> Partition:
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
        return Partition.from_rows(clients, leaky=bool(is_short.any()))

    def _warn(
        self, dataset: Dataset, wanted: np.ndarray, available: np.ndarray
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

"""Few classes per client, dealt in order: blocks, power laws, moving windows."""

import dataclasses
import warnings

import numpy as np
from numpy.random import Generator

from fedjax_pfl.core import struct
from fedjax_pfl.data.dataset import Dataset
from fedjax_pfl.data.partition import draws
from fedjax_pfl.data.partition.base import Drawn, Partition

__all__ = ["ClassWindows", "PathologicalBlocks", "PowerLaw"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class PathologicalBlocks(Drawn):
    """Label skew: classes are dealt in order, k to each client.

    Class c goes to the first `N k / C` clients that still have a free slot, in equal
    parts; where C does not divide `N k`, numbers of slots differ by 1. Clients that
    need every class that is left come before the first ones, so that each gets k
    different classes. With N = 100, k = 2 and C = 10 there are five blocks of 20
    clients with the same two classes. Clients with the same classes form a cluster.

    Attributes:
      labels_per_client: k, at most the number of classes.
      unbalanced: sizes of the parts are uniform in `[n / 10, n)` instead of n, the
        equal part; rows left over are unused.
      min_examples: minimum number of examples of a client; no part is below
        `min_examples / k`.
    """

    labels_per_client: int = struct.static_field(default=2, at_least=1)
    unbalanced: bool = False
    min_examples: int = struct.static_field(default=10, at_least=1)
    name = "pathological_blocks"

    def draw(self, rng: Generator, dataset: Dataset, num_clients: int) -> Partition:
        """Draws the partition."""
        classes = self.class_rows(dataset, rng)
        owners = _deal_classes(num_clients, self.labels_per_client, len(classes))
        smallest = -(-self.min_examples // self.labels_per_client)
        self.require_examples(dataset, classes, [smallest * len(row) for row in owners])
        counts = np.zeros((len(classes), num_clients), np.int64)
        for row, rows, clients in zip(counts, classes, owners, strict=True):
            row[clients] = self._sizes(rng, len(rows), len(clients), smallest)
        # Clients with the same set of classes form a cluster.
        _, cluster = np.unique(counts > 0, axis=1, return_inverse=True)
        cluster = cluster.reshape(-1).astype(np.int32)
        return Partition.dealt(classes, counts, cluster=cluster)

    def _sizes(
        self, rng: Generator, total: int, count: int, smallest: int
    ) -> np.ndarray:
        """Draws the sizes of the parts of one class."""
        equal = (total + np.arange(count, 0, -1) - 1) // max(1, count)
        if not self.unbalanced or count == 0:
            return equal
        high = total // count
        low = min(max(-(-high // 10), smallest), high - 1)
        return np.maximum(rng.integers(low, high, count), smallest)


@dataclasses.dataclass(frozen=True, kw_only=True)
class PowerLaw(Drawn):
    """Few classes and very different sizes: lognormal shares of every class.

    Client i holds the classes `(i + j) mod C` for `j < k`. It gets `min_examples`,
    shared over its classes; the rest of every class goes to the clients that hold it in
    proportion to `lognormal(0, sigma)` draws, rounded down. Rows left over are
    unused.

    Attributes:
      labels_per_client: k, at most the number of classes; None for sizes alone, with
        examples at random.
      sigma: of the lognormal distribution, at least 0.
      min_examples: minimum number of examples of a client.
    """

    labels_per_client: int | None = struct.static_field(default=1, at_least=1)
    sigma: float = struct.static_field(default=2.0, at_least=0)
    min_examples: int = struct.static_field(default=10, at_least=1)
    name = "power_law"

    def draw(self, rng: Generator, dataset: Dataset, num_clients: int) -> Partition:
        """Draws the partition."""
        self.require_samples(dataset, num_clients, self.min_examples)
        slot = np.arange(self.labels_per_client or 1)
        if self.labels_per_client is None:  # the pool counts as one class
            classes = [rng.permutation(dataset.num_samples)]
        else:
            classes = self.class_rows(dataset, rng)
        counts = np.zeros((len(classes), num_clients), np.int64)
        client = np.arange(num_clients)[:, None]
        labels = (client + slot) % len(classes)  # [N, k]
        # Every client gets the minimum; lognormal shares divide the rest only.
        counts[labels, client] = (self.min_examples + slot[::-1]) // len(slot)
        needed = counts.sum(axis=1)
        self.require_examples(dataset, classes, needed.tolist())
        for label in np.unique(labels):
            holds = (labels == label).any(axis=1)
            shares = draws.lognormal(rng, self.sigma, holds.sum())
            extra = shares * (len(classes[label]) - needed[label])
            counts[label, holds] += np.floor(extra).astype(np.int64)
        return Partition.dealt(classes, counts)


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
        self.require_examples(dataset, classes, needed, smaller="min_per_class")
        parts = (sizes[:, None] + self.extra + slot[::-1]) // self.labels_per_client
        available = np.array([len(rows) for rows in classes])
        parts = np.minimum(np.maximum(parts, self.min_per_class), available[held])
        # If clients want more than a class has, its order starts over and clients share
        # examples.
        demand = np.bincount(held.ravel(), parts.ravel(), len(classes)).astype(np.int64)
        num_short = (demand > available).sum()
        if num_short:
            label = (demand / np.maximum(available, 1)).argmax()
            warnings.warn(
                f"Partition {self.name!r} wants {demand[label]} examples of class"
                f" {label} of {dataset.name}, which has {available[label]};"
                f" {num_short} of its classes have too few, so that clients share"
                " examples and test scores are too good.",
                stacklevel=2,
            )
        dealt = np.zeros(len(classes), np.int64)
        clients = []
        for labels, counts in zip(held, parts, strict=True):
            rows = [
                classes[c].take(np.arange(start, start + count), mode="wrap")
                for c, start, count in zip(labels, dealt[labels], counts, strict=True)
            ]
            dealt[labels] += counts
            clients.append(np.concatenate(rows))
        return Partition.from_rows(clients, leaky=bool(num_short))


def _deal_classes(
    num_clients: int, labels_per_client: int, num_classes: int
) -> list[np.ndarray]:
    """Assigns clients to classes in order, `labels_per_client` per client."""
    free = np.full(num_clients, labels_per_client)
    owners = []
    # While no client has more free slots than there are classes left, classes of nearly
    # equal size can always be filled (Gale and Ryser), and serving the clients that
    # need all classes first preserves this.
    for left in range(num_classes, 0, -1):
        count = -(-int(free.sum()) // left)  # the larger classes first
        order = np.argsort(free < left, kind="stable")  # those that need all come first
        clients = np.sort(order[free[order] > 0][:count])
        free[clients] -= 1
        owners.append(clients)
    return owners

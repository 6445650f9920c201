"""Few classes per client, dealt in order: blocks of equal clients, and power laws."""

import dataclasses
from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from fedjax_pfl.core import checks
from fedjax_pfl.data import dataset as datasets
from fedjax_pfl.data.partition import base, draws

__all__ = ["PathologicalBlocks", "PowerLaw"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class PathologicalBlocks(base.Drawn):
    """Label skew: classes are dealt in order, k to each client.

    Class c goes to the first `N k / C` clients that still have a free slot, in equal
    parts; where C does not divide `N k`, numbers of slots differ by 1. Clients that
    need every class that is left come before the first ones, so that each gets k
    different classes. With N = 100, k = 2 and C = 10 there are five blocks of 20
    clients with the same two classes. Clients with the same classes form a cluster.

    Attributes:
      labels_per_client: k, at most the number of classes.
      unbalanced: sizes of the parts are uniform in `[n / 10, n)` instead of n, the
        equal part; what is left over is unused.
      min_examples: examples that every client gets at least; no part is below
        `min_examples / k`.
    """

    labels_per_client: int = 2
    unbalanced: bool = False
    min_examples: int = 10
    name: ClassVar[str] = "pathological_blocks"

    def __post_init__(self):
        checks.positive_int("labels_per_client", self.labels_per_client)
        checks.positive_int("min_examples", self.min_examples)
        checks.boolean("unbalanced", self.unbalanced)

    def draw(
        self, rng: np.random.Generator, dataset: datasets.Dataset, num_clients: int
    ) -> base.Partition:
        """Draws the partition."""
        classes = draws.shuffled_classes(rng, self.name, dataset)
        draws.require_classes(self.labels_per_client, classes, dataset.name)
        owners = _dealt(num_clients, self.labels_per_client, len(classes))
        smallest = -(-self.min_examples // self.labels_per_client)
        needed = [smallest * len(clients) for clients in owners]
        draws.require_examples(self.name, dataset, classes, needed)
        sizes = [
            self._sizes(rng, len(rows), len(clients), smallest)
            for rows, clients in zip(classes, owners, strict=True)
        ]
        parts = _assembled(classes, owners, sizes, num_clients)
        holds = np.stack([np.isin(np.arange(num_clients), own) for own in owners])
        _, cluster = np.unique(holds, axis=1, return_inverse=True)
        cluster = cluster.reshape(-1).astype(np.int32)
        return dataclasses.replace(parts, cluster=cluster)

    def _sizes(
        self, rng: np.random.Generator, total: int, count: int, smallest: int
    ) -> np.ndarray:
        """Sizes of the parts of one class."""
        equal = (total + np.arange(count, 0, -1) - 1) // max(1, count)
        if not self.unbalanced or count == 0:
            return equal
        high = total // count
        low = min(max(-(-high // 10), smallest), high - 1)
        return np.maximum(rng.integers(low, high, count), smallest)


@dataclasses.dataclass(frozen=True, kw_only=True)
class PowerLaw(base.Drawn):
    """Few classes and very different sizes: lognormal shares of every class.

    Client i holds the classes `(i + j) mod C` for `j < k`. It gets `min_examples`,
    shared over its classes; the rest of every class goes to the clients that hold it in
    proportion to `lognormal(0, sigma)` draws, rounded down. What is left over is
    unused.

    Attributes:
      labels_per_client: k, at most the number of classes; None for sizes alone, with
        examples at random.
      sigma: of the lognormal distribution, at least 0.
      min_examples: examples that every client gets at least.
    """

    labels_per_client: int | None = 1
    sigma: float = 2.0
    min_examples: int = 10
    name: ClassVar[str] = "power_law"

    def __post_init__(self):
        if self.labels_per_client is not None:
            checks.positive_int("labels_per_client", self.labels_per_client)
        checks.number("sigma", self.sigma, at_least=0)
        checks.positive_int("min_examples", self.min_examples)

    def draw(
        self, rng: np.random.Generator, dataset: datasets.Dataset, num_clients: int
    ) -> base.Partition:
        """Draws the partition."""
        base.require_samples(self.name, dataset, num_clients, self.min_examples)
        if self.labels_per_client is None:
            rows = rng.permutation(dataset.num_samples)
            smallest = np.full(num_clients, self.min_examples)
            return base.Partition.from_sizes(
                rows, self._sizes(rng, len(rows), smallest)
            )
        classes = draws.shuffled_classes(rng, self.name, dataset)
        draws.require_classes(self.labels_per_client, classes, dataset.name)
        slot = np.arange(self.labels_per_client)
        shares = (self.min_examples + slot[::-1]) // self.labels_per_client
        held = (np.arange(num_clients)[:, None] + slot) % len(classes)  # [N, k]
        found = [np.nonzero(held == c) for c in range(len(classes))]
        smallest = [shares[slots] for _, slots in found]
        needed = [sum(s) for s in smallest]
        draws.require_examples(self.name, dataset, classes, needed)
        sizes = [
            self._sizes(rng, len(rows), least)
            for rows, least in zip(classes, smallest, strict=True)
        ]
        return _assembled(classes, [owners for owners, _ in found], sizes, num_clients)

    def _sizes(
        self, rng: np.random.Generator, total: int, smallest: np.ndarray
    ) -> np.ndarray:
        """Returns the smallest sizes and shares of what is left of `total`."""
        if len(smallest) == 0:
            return smallest
        shares = draws.lognormal(rng, self.sigma, len(smallest))
        rest = np.floor(shares * (total - smallest.sum())).astype(np.int64)
        return smallest + rest


def _dealt(
    num_clients: int, labels_per_client: int, num_classes: int
) -> list[np.ndarray]:
    """Clients of each class, in order; every client is in `labels_per_client` classes.

    While nobody has more free slots than there are classes left, classes of nearly
    equal size can always be filled (Gale and Ryser), and serving first those who need
    all classes keeps it so.
    """
    free = np.full(num_clients, labels_per_client)
    owners = []
    for left in range(num_classes, 0, -1):
        count = -(-int(free.sum()) // left)  # the larger classes first
        order = np.argsort(free < left, kind="stable")  # who needs all, then the others
        chosen = np.sort(order[free[order] > 0][:count])
        free[chosen] -= 1
        owners.append(chosen)
    return owners


def _assembled(
    classes: Sequence[np.ndarray],
    owners: Sequence[np.ndarray],
    sizes: Sequence[np.ndarray],
    num_clients: int,
) -> base.Partition:
    """Cuts each class into parts of the given sizes, one for each of its owners."""
    rows = np.concatenate(
        [own[: size.sum()] for own, size in zip(classes, sizes, strict=True)]
    )
    client = np.repeat(np.concatenate(owners), np.concatenate(sizes))
    counts = np.bincount(client, minlength=num_clients)
    return base.Partition.from_sizes(rows[np.argsort(client, kind="stable")], counts)

"""Few classes per client, dealt in order: blocks of equal clients, and power laws."""

import dataclasses
from collections.abc import Sequence

import numpy as np
from numpy.random import Generator

from fedjax_pfl.core import struct
from fedjax_pfl.data.dataset import Dataset
from fedjax_pfl.data.partition import draws
from fedjax_pfl.data.partition.base import Drawn, Partition

__all__ = ["PathologicalBlocks", "PowerLaw"]


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
        equal part; what is left over is unused.
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
        self.require_examples(dataset, classes, [smallest * len(own) for own in owners])
        sizes = [
            self._sizes(rng, len(rows), len(clients), smallest)
            for rows, clients in zip(classes, owners, strict=True)
        ]
        parts = _assemble(classes, owners, sizes, num_clients)
        holds = np.stack([np.isin(np.arange(num_clients), own) for own in owners])
        _, cluster = np.unique(holds, axis=1, return_inverse=True)
        return dataclasses.replace(parts, cluster=cluster.reshape(-1).astype(np.int32))

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
    proportion to `lognormal(0, sigma)` draws, rounded down. What is left over is
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
        shares = (self.min_examples + slot[::-1]) // len(slot)
        held = (np.arange(num_clients)[:, None] + slot) % len(classes)  # [N, k]
        holders = [np.nonzero(held == c) for c in range(len(classes))]
        smallest = [shares[slots] for _, slots in holders]
        self.require_examples(dataset, classes, [sum(sizes) for sizes in smallest])
        sizes = [
            self._sizes(rng, len(rows), least)
            for rows, least in zip(classes, smallest, strict=True)
        ]
        owners = [clients for clients, _ in holders]
        return _assemble(classes, owners, sizes, num_clients)

    def _sizes(self, rng: Generator, total: int, smallest: np.ndarray) -> np.ndarray:
        """Adds shares of the rest of `total` to the smallest sizes of one class."""
        if len(smallest) == 0:
            return smallest
        shares = draws.lognormal(rng, self.sigma, len(smallest))
        rest = np.floor(shares * (total - smallest.sum())).astype(np.int64)
        return smallest + rest


def _deal_classes(
    num_clients: int, labels_per_client: int, num_classes: int
) -> list[np.ndarray]:
    """Assigns clients to classes in order, each client to `labels_per_client` of them.

    While no client has more free slots than there are classes left, classes of nearly
    equal size can always be filled (Gale and Ryser), and serving the clients that need
    all classes first preserves this.
    """
    free = np.full(num_clients, labels_per_client)
    owners = []
    for left in range(num_classes, 0, -1):
        count = -(-int(free.sum()) // left)  # the larger classes first
        order = np.argsort(free < left, kind="stable")  # those that need all come first
        clients = np.sort(order[free[order] > 0][:count])
        free[clients] -= 1
        owners.append(clients)
    return owners


def _assemble(
    classes: Sequence[np.ndarray],
    owners: Sequence[np.ndarray],
    sizes: Sequence[np.ndarray],
    num_clients: int,
) -> Partition:
    """Cuts each class into parts of the given sizes, one for each of its owners."""
    rows = np.concatenate(
        [own[: size.sum()] for own, size in zip(classes, sizes, strict=True)]
    )
    client = np.repeat(np.concatenate(owners), np.concatenate(sizes))
    counts = np.bincount(client, minlength=num_clients)
    return Partition.from_sizes(rows[np.argsort(client, kind="stable")], counts)

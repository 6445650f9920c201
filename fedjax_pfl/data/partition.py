"""Partitions of a data set over clients: disjoint, seeded, always terminating.

A partition object is a frozen dataclass, called with a generator, a `Dataset` and the
number of clients. `PARTITIONS` maps command-line names to the classes.
"""

import dataclasses
import heapq
from collections.abc import Sequence
from typing import Any, ClassVar, Protocol

import numpy as np

from fedjax_pfl import checks
from fedjax_pfl.data import dataset as datasets

__all__ = [
    "IID",
    "PARTITIONS",
    "ByClient",
    "DirichletLabels",
    "LabelShards",
    "Partition",
    "Partitioner",
]

_MAX_DRAWS = 100


@dataclasses.dataclass(frozen=True, eq=False)
class Partition:
    """Which rows of the pool belong to which client, on the host.

    Attributes:
      index: `int32[N, M]` rows; entries past `num_examples` are 0.
      num_examples: `int32[N]` rows of each client.
    """

    index: np.ndarray
    num_examples: np.ndarray

    @classmethod
    def from_rows(cls, rows: Sequence[Any]) -> "Partition":
        """Makes a partition from one list of rows per client.

        Args:
          rows: `N` sequences of whole numbers.

        Returns:
          The padded partition, with `M >= 1`.

        Example:
          >>> Partition.from_rows([[3, 1], [2]]).index.tolist()
          [[3, 1], [2, 0]]
        """
        num_examples = np.array([len(client) for client in rows], np.int32)
        index = np.zeros((len(rows), max(1, num_examples.max())), np.int32)
        for padded, client in zip(index, rows, strict=True):
            padded[: len(client)] = client
        return cls(index, num_examples)

    def rows(self, client: int) -> np.ndarray:
        """Rows `int32[n]` of one client, without padding."""
        return self.index[client, : self.num_examples[client]]

    def validate(self, num_samples: int, num_clients: int) -> None:
        """Checks shapes, that rows are in range, and that no row has two owners.

        Args:
          num_samples: size of the pool.
          num_clients: expected number of clients.

        Raises:
          InputError: if the partition is not one.
        """
        clients, num_rows = (num_clients,), self.index.shape[-1]
        if self.index.shape[:-1] != clients or self.num_examples.shape != clients:
            raise checks.InputError(
                f"Expected a partition over {num_clients} clients, got index of shape"
                f" {self.index.shape} and num_examples of shape"
                f" {self.num_examples.shape}."
            )
        if self.num_examples.min() < 0 or self.num_examples.max() > num_rows:
            raise checks.InputError(
                f"Expected num_examples of a partition from 0 to {num_rows}, got values"
                f" from {self.num_examples.min()} to {self.num_examples.max()}."
            )
        used = self.index[np.arange(num_rows) < self.num_examples[:, None]]
        if used.size and (used.min() < 0 or used.max() >= num_samples):
            raise checks.InputError(
                f"Expected rows of a partition from 0 to {num_samples - 1}, got values"
                f" from {used.min()} to {used.max()}."
            )
        owners = np.bincount(used, minlength=num_samples)
        if owners.max() > 1:
            raise checks.InputError(
                f"Expected a partition with disjoint clients, got row {owners.argmax()}"
                f" {owners.max()} times."
            )


class Partitioner(Protocol):
    """A frozen, hashable dataclass that distributes examples."""

    def __call__(
        self, rng: np.random.Generator, dataset: datasets.Dataset, num_clients: int
    ) -> Partition:
        """Draws a partition over `num_clients` clients."""
        ...


@dataclasses.dataclass(frozen=True, kw_only=True)
class IID:
    """A shuffled pool cut into parts whose sizes differ by at most 1."""

    name: ClassVar[str] = "iid"

    def __call__(
        self, rng: np.random.Generator, dataset: datasets.Dataset, num_clients: int
    ) -> Partition:
        """Draws the partition."""
        _require_samples(self.name, dataset, num_clients, 1)
        shuffled = rng.permutation(dataset.num_samples)
        return Partition.from_rows(np.array_split(shuffled, num_clients))


@dataclasses.dataclass(frozen=True, kw_only=True)
class DirichletLabels:
    """Label skew: each class is cut in proportions drawn from a Dirichlet distribution.

    For each class `p_k ~ Dir_N(concentration)`, and the shuffled class is cut at
    `floor(cumsum(p_k) * n_k)`. Redrawn while a client has fewer than `min_examples`,
    100 times at most; then random examples move from the largest clients to those
    clients.

    Attributes:
      concentration: of the Dirichlet distribution, > 0; small means strong skew.
      min_examples: examples that every client gets at least.
    """

    concentration: float = 0.5
    min_examples: int = 10
    name: ClassVar[str] = "dirichlet_labels"

    def __post_init__(self):
        checks.number("concentration", self.concentration, above=0)
        checks.positive_int("min_examples", self.min_examples)

    def __call__(
        self, rng: np.random.Generator, dataset: datasets.Dataset, num_clients: int
    ) -> Partition:
        """Draws the partition."""
        classes = _shuffled_classes(rng, self.name, dataset)
        _require_samples(self.name, dataset, num_clients, self.min_examples)
        sizes = np.array([len(rows) for rows in classes])
        cuts = np.zeros((len(classes), num_clients), np.int64)
        for _ in range(_MAX_DRAWS):
            shares = _dirichlet(rng, self.concentration, cuts.shape)
            cumulative = np.cumsum(shares, axis=1)
            cumulative /= cumulative[:, -1:]  # the last cut is the end of the class
            cuts = np.floor(cumulative * sizes[:, None]).astype(np.int64)
            counts = np.diff(cuts, axis=1, prepend=0)
            if counts.sum(axis=0).min() >= self.min_examples:
                break
        parts = [
            np.split(rows, cut[:-1]) for rows, cut in zip(classes, cuts, strict=True)
        ]
        clients = [np.concatenate(part) for part in zip(*parts, strict=True)]
        return Partition.from_rows(_fill(rng, clients, self.min_examples))


@dataclasses.dataclass(frozen=True, kw_only=True)
class LabelShards:
    """Label skew: every client gets shards of single classes.

    Each shuffled class is cut into `ceil(labels_per_client * N / C)` nearly equal
    shards; the shuffled shards are handed out in order, and left-over ones are unused.

    Attributes:
      labels_per_client: shards of each client, at most the number of classes.
      distinct_labels: no client gets two shards of one class. Drawn 100 times at most;
        then clients in random order take the classes with the most shards left.
    """

    labels_per_client: int = 2
    distinct_labels: bool = False
    name: ClassVar[str] = "label_shards"

    def __post_init__(self):
        checks.positive_int("labels_per_client", self.labels_per_client)
        if not isinstance(self.distinct_labels, bool):
            raise checks.InputError(
                "Expected distinct_labels to be true or false, got"
                f" {self.distinct_labels!r}."
            )

    def __call__(
        self, rng: np.random.Generator, dataset: datasets.Dataset, num_clients: int
    ) -> Partition:
        """Draws the partition."""
        classes = _shuffled_classes(rng, self.name, dataset)
        if self.labels_per_client > len(classes):
            raise checks.InputError(
                f"Expected labels_per_client to be at most {len(classes)}, the number"
                f" of classes of {dataset.name}, got {self.labels_per_client}."
            )
        num_shards = -(-self.labels_per_client * num_clients // len(classes))
        smallest = int(np.argmin([len(rows) for rows in classes]))
        if len(classes[smallest]) < num_shards:
            raise checks.InputError(
                f"Expected at least {num_shards} examples of every class of"
                f" {dataset.name} for {num_clients} clients with"
                f" labels_per_client={self.labels_per_client}, got"
                f" {len(classes[smallest])} of class {smallest}."
            )
        shards = [iter(np.array_split(rows, num_shards)) for rows in classes]
        labels = self._labels(rng, len(classes), num_shards, num_clients)
        return Partition.from_rows(
            [np.concatenate([next(shards[k]) for k in client]) for client in labels]
        )

    def _labels(
        self,
        rng: np.random.Generator,
        num_classes: int,
        num_shards: int,
        num_clients: int,
    ) -> np.ndarray:
        """Class `[N, labels_per_client]` of every shard of every client."""
        shape = (num_clients, self.labels_per_client)
        deck = np.repeat(np.arange(num_classes), num_shards)
        for _ in range(_MAX_DRAWS):
            labels = rng.permutation(deck)[: shape[0] * shape[1]].reshape(shape)
            repeated = np.diff(np.sort(labels, axis=1), axis=1) == 0
            if not self.distinct_labels or not repeated.any():
                return labels
        # Taking from the fullest classes keeps what is left level to 1, so while enough
        # shards are left for one more client they belong to enough different classes.
        left = np.full(num_classes, num_shards)
        labels = np.zeros(shape, np.int64)
        for client in rng.permutation(num_clients):
            fullest = np.lexsort((rng.random(num_classes), -left))
            labels[client] = fullest[: self.labels_per_client]
            left[labels[client]] -= 1
        return labels


@dataclasses.dataclass(frozen=True, kw_only=True)
class ByClient:
    """The natural clients of the data set, in the order of their ids."""

    name: ClassVar[str] = "by_client"

    def __call__(
        self, rng: np.random.Generator, dataset: datasets.Dataset, num_clients: int
    ) -> Partition:
        """Groups the examples; `rng` is not used."""
        if dataset.client is None:
            raise checks.InputError(
                f"Partition {self.name!r} needs natural clients, which data set"
                f" {dataset.name!r} does not have."
            )
        ids, sizes = np.unique(dataset.client, return_counts=True)
        if len(ids) != num_clients:
            raise checks.InputError(
                f"Expected num_clients to be {len(ids)}, the number of natural clients"
                f" of {dataset.name}, got {num_clients}."
            )
        order = np.argsort(dataset.client, kind="stable")
        return Partition.from_rows(np.split(order, np.cumsum(sizes)[:-1]))


PARTITIONS: dict[str, Any] = {
    kind.name: kind for kind in (IID, DirichletLabels, LabelShards, ByClient)
}


def _require_samples(
    name: str, dataset: datasets.Dataset, num_clients: int, min_examples: int
) -> None:
    """Checks that there are enough samples for every client."""
    if dataset.num_samples < num_clients * min_examples:
        raise checks.InputError(
            f"Partition {name!r} needs at least {num_clients * min_examples} samples"
            f" for {num_clients} clients with {min_examples} or more each, but data set"
            f" {dataset.name!r} has {dataset.num_samples}."
        )


def _shuffled_classes(
    rng: np.random.Generator, name: str, dataset: datasets.Dataset
) -> list[np.ndarray]:
    """Rows of each class, shuffled."""
    if dataset.num_classes is None or dataset.y.ndim != 1:
        raise checks.InputError(
            f"Partition {name!r} needs one class label per example, which data set"
            f" {dataset.name!r} does not have; use 'iid' or 'by_client'."
        )
    shuffled = rng.permutation(dataset.num_samples)
    labels = dataset.y[shuffled]
    return [shuffled[labels == k] for k in range(dataset.num_classes)]


def _dirichlet(
    rng: np.random.Generator, concentration: float, shape: tuple[int, int]
) -> np.ndarray:
    """Symmetric Dirichlet rows, by logarithms of Gamma variates.

    With small concentrations the variates themselves underflow and rows become 0 / 0;
    here they tend to a single 1. (Gamma(a) equals Gamma(a + 1) * U^(1/a) in
    distribution.)
    """
    a = max(concentration, 1e-300)  # the division below must not overflow
    logs = (
        np.log(rng.standard_gamma(a + 1, shape)) - rng.standard_exponential(shape) / a
    )
    shares = np.exp(logs - logs.max(axis=1, keepdims=True))
    return shares / shares.sum(axis=1, keepdims=True)


def _fill(
    rng: np.random.Generator, clients: list[np.ndarray], min_examples: int
) -> list[Any]:
    """Moves random examples, one by one, from the largest clients to those below."""
    if min(map(len, clients)) >= min_examples:
        return clients
    rows = [rng.permutation(client).tolist() for client in clients]
    largest = [(-len(client), i) for i, client in enumerate(rows)]
    heapq.heapify(largest)
    for client in rows:
        while len(client) < min_examples:
            # Receivers never exceed the minimum, so the first entry is up to date; it
            # is above the minimum because another client is below.
            donor = largest[0][1]
            client.append(rows[donor].pop())
            heapq.heapreplace(largest, (-len(rows[donor]), donor))
    return rows

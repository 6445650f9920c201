"""Label skew: Dirichlet shares of classes, and shards for all or half the clients."""

import dataclasses
from collections.abc import Sequence

import numpy as np
from numpy.random import Generator

from fedjax_pfl.core import struct
from fedjax_pfl.data.dataset import Dataset
from fedjax_pfl.data.partition import draws
from fedjax_pfl.data.partition.base import DirichletDrawn, Drawn, Partition

__all__ = ["DirichletLabels", "HybridSkew", "LabelShards", "deal_shards"]


class DirichletLabels(DirichletDrawn):
    """Label skew: each class is cut in proportions drawn from a Dirichlet distribution.

    For each class `p_k ~ Dir_N(concentration)`, and the shuffled class is cut at
    `floor(cumsum(p_k) * n_k)`. Redrawn while a client has fewer than `min_examples`,
    100 times at most; then examples of their classes move to those clients, from the
    clients with most of a class. A client without examples draws its proportions of
    classes from `Dir_C(concentration)`.
    """

    name = "dirichlet_labels"

    def draw(self, rng: Generator, dataset: Dataset, num_clients: int) -> Partition:
        """Draws the partition."""
        classes = self.class_rows(dataset, rng)
        self.require_samples(dataset, num_clients, self.min_examples)
        drawn = self.draw_counts(rng, [len(rows) for rows in classes], num_clients)
        counts = draws.filled(rng, drawn, self.min_examples, self.concentration)
        # Reported with the partition: moved examples weaken the drawn skew.
        num_moved = np.maximum(counts - drawn, 0).sum(axis=0)
        return Partition.dealt(classes, counts, extra_examples=num_moved)


@dataclasses.dataclass(frozen=True, kw_only=True)
class LabelShards(Drawn):
    """Label skew: every client gets shards of single classes.

    Each shuffled class is cut into `ceil(labels_per_client * N / C)` nearly equal
    shards; the shuffled shards are handed out in order, and left-over ones are unused.

    Attributes:
      labels_per_client: shards of each client, at most the number of classes.
      distinct_labels: no client gets two shards of one class. Drawn 100 times at most;
        then clients in random order take the classes with the most shards left.
      in_file_order: cut the classes in the order of the file, without shuffling.
    """

    labels_per_client: int = struct.static_field(default=2, at_least=1)
    distinct_labels: bool = False
    in_file_order: bool = False
    name = "label_shards"

    def draw(self, rng: Generator, dataset: Dataset, num_clients: int) -> Partition:
        """Draws the partition."""
        classes = self.class_rows(dataset, None if self.in_file_order else rng)
        clients = deal_shards(rng, self, dataset, classes, num_clients)
        return Partition.from_rows(clients)


@dataclasses.dataclass(frozen=True, kw_only=True)
class HybridSkew(DirichletDrawn):
    """Label shards for `ceil(N / 2)` clients, quantity skew for the other clients.

    Every shuffled class is cut in the ratio of the two numbers of clients, rounded
    down; the first part is dealt as `LabelShards` does, the second as `QuantitySkew`.

    Attributes:
      labels_per_client: shards of each client with label skew.
      concentration: of the Dirichlet distribution of the other clients' sizes, > 0.
      min_examples: minimum number of examples of the other clients.
    """

    labels_per_client: int = struct.static_field(default=2, at_least=1)
    name = "hybrid_skew"

    def draw(self, rng: Generator, dataset: Dataset, num_clients: int) -> Partition:
        """Draws the partition."""
        num_labelled = -(-num_clients // 2)
        num_sized = num_clients - num_labelled
        classes = self.class_rows(dataset, rng)
        cuts = (len(rows) * num_labelled // num_clients for rows in classes)
        halves = map(np.split, classes, ([cut] for cut in cuts))
        labelled, pool = zip(*halves, strict=True)
        clients = deal_shards(rng, self, dataset, labelled, num_labelled)
        if num_sized:
            rows = rng.permutation(np.concatenate(pool))
            self.require_samples(dataset, num_sized, self.min_examples, len(rows))
            (sizes,) = self.draw_counts(rng, [len(rows)], num_sized)
            sizes = draws.raised(sizes, self.min_examples)
            clients += np.split(rows, np.cumsum(sizes)[:-1])
        return Partition.from_rows(clients)


def deal_shards(
    rng: Generator,
    partition: LabelShards | HybridSkew,
    dataset: Dataset,
    classes: Sequence[np.ndarray],
    num_clients: int,
) -> list[np.ndarray]:
    """Cuts classes into shards and deals `labels_per_client` shards to each client."""
    shape = (num_clients, partition.labels_per_client)
    num_shards = -(-num_clients * partition.labels_per_client // len(classes))
    partition.require_examples(
        dataset,
        classes,
        [num_shards] * len(classes),
        smaller="labels_per_client",
    )
    is_distinct = isinstance(partition, LabelShards) and partition.distinct_labels
    deck = np.repeat(np.arange(len(classes)), num_shards)
    for _ in range(draws.MAX_DRAWS):
        labels = rng.permutation(deck)[: shape[0] * shape[1]].reshape(shape)
        repeated = np.diff(np.sort(labels, axis=1), axis=1) == 0
        if not is_distinct or not repeated.any():
            break
    else:
        labels = _deal_distinct(rng, shape, len(classes), num_shards)
    shards = [iter(np.array_split(rows, num_shards)) for rows in classes]
    return [np.concatenate([next(shards[k]) for k in client]) for client in labels]


def _deal_distinct(
    rng: Generator, shape: tuple[int, int], num_classes: int, num_shards: int
) -> np.ndarray:
    """Deals different classes `[N, labels_per_client]` to each client."""
    # Taking from the fullest classes keeps what is left level to 1, so while enough
    # shards are left for one more client they belong to enough different classes.
    shards_left = np.full(num_classes, num_shards)
    labels = np.zeros(shape, np.int64)
    for client in rng.permutation(shape[0]):
        fullest = np.lexsort((rng.random(num_classes), -shards_left))
        labels[client] = fullest[: shape[1]]
        shards_left[labels[client]] -= 1
    return labels

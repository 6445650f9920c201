"""Label skew: Dirichlet shares of every class, and shards of single classes."""

import dataclasses
from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from fedjax_pfl.core import checks
from fedjax_pfl.data import dataset as datasets
from fedjax_pfl.data.partition import base, draws

__all__ = ["DirichletLabels", "LabelShards", "deal_shards"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class DirichletLabels(base.DirichletDrawn):
    """Label skew: each class is cut in proportions drawn from a Dirichlet distribution.

    For each class `p_k ~ Dir_N(concentration)`, and the shuffled class is cut at
    `floor(cumsum(p_k) * n_k)`. Redrawn while a client has fewer than `min_examples`,
    100 times at most; then random examples move from the largest clients to those
    clients.
    """

    name: ClassVar[str] = "dirichlet_labels"

    def draw(
        self, rng: np.random.Generator, dataset: datasets.Dataset, num_clients: int
    ) -> base.Partition:
        """Draws the partition."""
        classes = draws.shuffled_classes(rng, self.name, dataset)
        base.require_samples(self.name, dataset, num_clients, self.min_examples)
        sizes = np.array([len(rows) for rows in classes])
        cuts = np.zeros((len(classes), num_clients), np.int64)
        for _ in range(draws.MAX_DRAWS):
            shares = draws.dirichlet(rng, self.concentration, cuts.shape)
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
        return base.Partition.from_rows(draws.fill(rng, clients, self.min_examples))


@dataclasses.dataclass(frozen=True, kw_only=True)
class LabelShards(base.Drawn):
    """Label skew: every client gets shards of single classes.

    Each shuffled class is cut into `ceil(labels_per_client * N / C)` nearly equal
    shards; the shuffled shards are handed out in order, and left-over ones are unused.

    Attributes:
      labels_per_client: shards of each client, at most the number of classes.
      distinct_labels: no client gets two shards of one class. Drawn 100 times at most;
        then clients in random order take the classes with the most shards left.
      in_file_order: cut the classes as they are stored, without shuffling them.
    """

    labels_per_client: int = 2
    distinct_labels: bool = False
    in_file_order: bool = False
    name: ClassVar[str] = "label_shards"

    def __post_init__(self):
        checks.positive_int("labels_per_client", self.labels_per_client)
        checks.boolean("distinct_labels", self.distinct_labels)
        checks.boolean("in_file_order", self.in_file_order)

    def draw(
        self, rng: np.random.Generator, dataset: datasets.Dataset, num_clients: int
    ) -> base.Partition:
        """Draws the partition."""
        if self.in_file_order:
            classes = draws.class_rows(self.name, dataset)
        else:
            classes = draws.shuffled_classes(rng, self.name, dataset)
        return base.Partition.from_rows(
            deal_shards(rng, self, classes, num_clients, dataset.name)
        )


def deal_shards(
    rng: np.random.Generator,
    options: LabelShards,
    classes: Sequence[np.ndarray],
    num_clients: int,
    dataset_name: str,
) -> list[np.ndarray]:
    """Cuts classes into shards and hands them out.

    Args:
      rng: generator.
      options: `labels_per_client` and `distinct_labels` count.
      classes: rows of each class, cut in their order.
      num_clients: N.
      dataset_name: for messages.

    Returns:
      Rows of each client.

    Raises:
      InputError: if there are too few classes, or too few examples of one.
    """
    draws.require_classes(options.labels_per_client, classes, dataset_name)
    num_shards = -(-options.labels_per_client * num_clients // len(classes))
    smallest = int(np.argmin([len(rows) for rows in classes]))
    if len(classes[smallest]) < num_shards:
        raise checks.InputError(
            f"Expected at least {num_shards} examples of every class of"
            f" {dataset_name} for {num_clients} clients with"
            f" labels_per_client={options.labels_per_client}, got"
            f" {len(classes[smallest])} of class {smallest}."
        )
    shards = [iter(np.array_split(rows, num_shards)) for rows in classes]
    labels = _shard_labels(rng, options, len(classes), num_shards, num_clients)
    return [np.concatenate([next(shards[k]) for k in client]) for client in labels]


def _shard_labels(
    rng: np.random.Generator,
    options: LabelShards,
    num_classes: int,
    num_shards: int,
    num_clients: int,
) -> np.ndarray:
    """Class `[N, labels_per_client]` of every shard of every client."""
    shape = (num_clients, options.labels_per_client)
    deck = np.repeat(np.arange(num_classes), num_shards)
    for _ in range(draws.MAX_DRAWS):
        labels = rng.permutation(deck)[: shape[0] * shape[1]].reshape(shape)
        repeated = np.diff(np.sort(labels, axis=1), axis=1) == 0
        if not options.distinct_labels or not repeated.any():
            return labels
    # Taking from the fullest classes keeps what is left level to 1, so while enough
    # shards are left for one more client they belong to enough different classes.
    left = np.full(num_classes, num_shards)
    labels = np.zeros(shape, np.int64)
    for client in rng.permutation(num_clients):
        fullest = np.lexsort((rng.random(num_classes), -left))
        labels[client] = fullest[: options.labels_per_client]
        left[labels[client]] -= 1
    return labels

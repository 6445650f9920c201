"""FLAME's published partitions, in which clients share examples.

Test examples of one client are then training examples of others and scores are too
good: use these partitions only to reproduce published numbers. `data.statistics`
measures the leak.
"""

import dataclasses

import numpy as np
from numpy.random import Generator

from fedjax_pfl.core import struct
from fedjax_pfl.data.dataset import Dataset
from fedjax_pfl.data.partition import draws, labels
from fedjax_pfl.data.partition.base import DirichletDrawn, Partition

__all__ = ["LeakyDirichletLabels", "LeakyHybridSkew", "LeakyQuantitySkew"]


class LeakyDirichletLabels(DirichletDrawn):
    """Label skew: every client draws its Dirichlet share of each class.

    It draws `floor(p_ki n_k)` examples without replacement from the full class,
    independently of other clients. With ten clients and the default concentration,
    about 31 % of the pool are unused, and another client trains on 48 % of all test
    examples (on 55 % if clients and classes are weighted equally). Redrawn while a
    client has fewer than `min_examples`, 100 times at most; then those clients draw the
    rest from the classes that they have or, without any, in proportions of their own.
    """

    name = "leaky_dirichlet_labels"

    def draw(self, rng: Generator, dataset: Dataset, num_clients: int) -> Partition:
        """Draws the partition."""
        classes = self.class_rows(dataset)
        self.require_samples(dataset, each=self.min_examples)
        sizes = [len(rows) for rows in classes]
        counts = self.draw_counts(rng, sizes, num_clients, disjoint=False)
        clients, num_moved = [], np.maximum(self.min_examples - counts.sum(axis=0), 0)
        for row, is_small in zip(counts.T, num_moved > 0, strict=True):
            if is_small:
                limits = (self.min_examples, self.concentration)
                row = draws.topped_up(rng, row, np.array(sizes) - row, *limits)
            parts = [
                rows[_sample(rng, len(rows), count)]
                for rows, count in zip(classes, row.tolist(), strict=True)
                if count
            ]
            clients.append(np.concatenate(parts))
        return Partition.from_rows(clients, leaky=True, extra_examples=num_moved)


@dataclasses.dataclass(frozen=True, kw_only=True)
class LeakyQuantitySkew(DirichletDrawn):
    """Quantity skew: every client draws its Dirichlet share of the full pool.

    It draws `max(min_examples, floor(p_i S))` examples without replacement,
    independently of other clients.
    """

    min_examples: int = struct.static_field(default=100, at_least=1)
    name = "leaky_quantity_skew"

    def draw(self, rng: Generator, dataset: Dataset, num_clients: int) -> Partition:
        """Draws the partition."""
        clients = _draw_independently(rng, self, dataset, num_clients)
        return Partition.from_rows(clients, leaky=True)


@dataclasses.dataclass(frozen=True, kw_only=True)
class LeakyHybridSkew(labels.HybridSkew):
    """Label shards of the whole pool, then leaky quantity skew of the whole pool.

    `ceil(N / 2)` clients have label skew, with shards cut in file order; the others
    draw as in `LeakyQuantitySkew`.

    Attributes:
      labels_per_client: shards of each client with label skew.
      concentration: of the Dirichlet distribution of the other clients' sizes, > 0.
      min_examples: minimum number of examples of the other clients.
    """

    min_examples: int = struct.static_field(default=100, at_least=1)
    name = "leaky_hybrid_skew"

    def draw(self, rng: Generator, dataset: Dataset, num_clients: int) -> Partition:
        """Draws the partition."""
        num_labelled = -(-num_clients // 2)
        classes = self.class_rows(dataset)
        clients = labels.deal_shards(rng, self, dataset, classes, num_labelled)
        if num_clients > 1:
            num_sized = num_clients - num_labelled
            clients += _draw_independently(rng, self, dataset, num_sized)
        return Partition.from_rows(clients, leaky=True)


def _draw_independently(
    rng: Generator, partition: DirichletDrawn, dataset: Dataset, num_clients: int
) -> list[np.ndarray]:
    """Draws from the pool for each client, in sizes of Dirichlet proportions."""
    partition.require_samples(dataset, each=partition.min_examples)
    shares = draws.dirichlet(rng, partition.concentration, (1, num_clients))[0]
    sizes = np.floor(shares * dataset.num_samples).astype(np.int64)
    sizes = np.maximum(sizes, partition.min_examples)
    return [_sample(rng, dataset.num_samples, count) for count in sizes.tolist()]


def _sample(rng: Generator, total: int, count: int) -> np.ndarray:
    """Draws distinct numbers below `total`; their order has no meaning."""
    return rng.choice(total, count, replace=False, shuffle=False)

"""FLAME's published partitions, in which clients share examples.

Test examples of one client are then among the training examples of others, so scores
are too good: use them to repeat published numbers only. `data.statistics` measures the
leak.
"""

import dataclasses
from typing import ClassVar

import numpy as np

from fedjax_pfl.core import checks
from fedjax_pfl.data import dataset as datasets
from fedjax_pfl.data.partition import base, draws, labels

__all__ = ["LeakyDirichletLabels", "LeakyHybridSkew", "LeakyQuantitySkew"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class LeakyDirichletLabels(base.DirichletDrawn):
    """Every client draws its Dirichlet share of each class from the full class.

    `floor(p_ki n_k)` examples without replacement, independently of other clients. With
    ten clients and the default concentration, about 31 % of the pool are unused, and
    another client trains on 48 % of all test examples (on 55 % if clients and classes
    count alike). Redrawn while a client has fewer than `min_examples`, 100 times at
    most; then those clients draw the rest from the pool.
    """

    name: ClassVar[str] = "leaky_dirichlet_labels"

    def draw(
        self, rng: np.random.Generator, dataset: datasets.Dataset, num_clients: int
    ) -> base.Partition:
        """Draws the partition."""
        classes = draws.class_rows(self.name, dataset)
        base.require_samples(self.name, dataset, 1, self.min_examples)
        sizes = np.array([len(rows) for rows in classes])
        counts = np.zeros((len(classes), num_clients), np.int64)
        for _ in range(draws.MAX_DRAWS):
            shares = draws.dirichlet(rng, self.concentration, counts.shape)
            counts = np.floor(shares * sizes[:, None]).astype(np.int64)
            if counts.sum(axis=0).min() >= self.min_examples:
                break
        clients = []
        for own in counts.T:
            parts = [
                rows[_sample(rng, len(rows), count)]
                for rows, count in zip(classes, own.tolist(), strict=True)
                if count
            ]
            rows = np.concatenate([np.zeros(0, np.int64), *parts])
            missing = self.min_examples - len(rows)
            if missing > 0:
                # At most `min_examples - missing` of these are its own already.
                extra = rng.choice(dataset.num_samples, self.min_examples, False)
                extra = extra[~np.isin(extra, rows)][:missing]
                rows = np.concatenate([rows, extra])
            clients.append(rows)
        return base.Partition.from_rows(clients, leaky=True)


@dataclasses.dataclass(frozen=True, kw_only=True)
class LeakyQuantitySkew(base.DirichletDrawn):
    """Every client draws its Dirichlet share p_i of the examples from the full pool.

    `max(min_examples, floor(p_i S))` without replacement, independently of others.
    """

    min_examples: int = 100
    name: ClassVar[str] = "leaky_quantity_skew"

    def draw(
        self, rng: np.random.Generator, dataset: datasets.Dataset, num_clients: int
    ) -> base.Partition:
        """Draws the partition."""
        base.require_samples(self.name, dataset, 1, self.min_examples)
        clients = _of_sizes(
            rng,
            dataset.num_samples,
            num_clients,
            self.concentration,
            self.min_examples,
        )
        return base.Partition.from_rows(clients, leaky=True)


@dataclasses.dataclass(frozen=True, kw_only=True)
class LeakyHybridSkew(base.Drawn):
    """Label shards of the whole pool, then leaky quantity skew of the whole pool.

    `ceil(N / 2)` clients have label skew, with shards cut in file order; the others
    draw as in `LeakyQuantitySkew`.

    Attributes:
      labels_per_client: shards of each client with label skew.
      concentration: of the Dirichlet distribution of the other clients' sizes, > 0.
      min_examples: examples that each of these gets at least.
    """

    labels_per_client: int = 2
    concentration: float = 0.5
    min_examples: int = 100
    name: ClassVar[str] = "leaky_hybrid_skew"

    def __post_init__(self):
        checks.positive_int("labels_per_client", self.labels_per_client)
        checks.number("concentration", self.concentration, above=0)
        checks.positive_int("min_examples", self.min_examples)

    def draw(
        self, rng: np.random.Generator, dataset: datasets.Dataset, num_clients: int
    ) -> base.Partition:
        """Draws the partition."""
        num_labelled = -(-num_clients // 2)
        classes = draws.class_rows(self.name, dataset)
        options = labels.LabelShards(labels_per_client=self.labels_per_client)
        clients = labels.deal_shards(rng, options, classes, num_labelled, dataset.name)
        if num_clients > 1:
            base.require_samples(self.name, dataset, 1, self.min_examples)
            clients += _of_sizes(
                rng,
                dataset.num_samples,
                num_clients - num_labelled,
                self.concentration,
                self.min_examples,
            )
        return base.Partition.from_rows(clients, leaky=True)


def _of_sizes(
    rng: np.random.Generator,
    num_samples: int,
    num_clients: int,
    concentration: float,
    min_examples: int,
) -> list[np.ndarray]:
    """Independent draws from the pool, in sizes proportional to Dirichlet shares."""
    shares = draws.dirichlet(rng, concentration, (1, num_clients))[0]
    sizes = np.maximum(np.floor(shares * num_samples).astype(np.int64), min_examples)
    return [_sample(rng, num_samples, count) for count in sizes.tolist()]


def _sample(rng: np.random.Generator, total: int, count: int) -> np.ndarray:
    """Distinct numbers below `total`; their order has no meaning."""
    return rng.choice(total, count, replace=False, shuffle=False)

"""Hybrid skew: one half of the clients has label skew, the other quantity skew."""

import dataclasses
from typing import ClassVar

import numpy as np

from fedjax_pfl.core import checks
from fedjax_pfl.data import dataset as datasets
from fedjax_pfl.data.partition import base, draws, labels

__all__ = ["HybridSkew"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class HybridSkew(base.Drawn):
    """Label shards for `ceil(N / 2)` clients, quantity skew for the other clients.

    Every shuffled class is cut in the ratio of the two numbers of clients, rounded
    down; the first part is dealt as `LabelShards` does, the second as `QuantitySkew`.

    Attributes:
      labels_per_client: shards of each client with label skew.
      concentration: of the Dirichlet distribution of the other clients' sizes, > 0.
      min_examples: examples that each of these gets at least.
    """

    labels_per_client: int = 2
    concentration: float = 0.5
    min_examples: int = 10
    name: ClassVar[str] = "hybrid_skew"

    def __post_init__(self):
        checks.positive_int("labels_per_client", self.labels_per_client)
        checks.number("concentration", self.concentration, above=0)
        checks.positive_int("min_examples", self.min_examples)

    def draw(
        self, rng: np.random.Generator, dataset: datasets.Dataset, num_clients: int
    ) -> base.Partition:
        """Draws the partition."""
        num_labelled = -(-num_clients // 2)
        num_sized = num_clients - num_labelled
        classes = draws.shuffled_classes(rng, self.name, dataset)
        cuts = [len(rows) * num_labelled // num_clients for rows in classes]
        pairs = zip(classes, cuts, strict=True)
        halves = [(rows[:cut], rows[cut:]) for rows, cut in pairs]
        first, second = zip(*halves, strict=True)
        options = labels.LabelShards(labels_per_client=self.labels_per_client)
        clients = labels.deal_shards(rng, options, first, num_labelled, dataset.name)
        if num_sized:
            rows = rng.permutation(np.concatenate(second))
            clients += self._sized(rng, rows, num_sized, dataset.name)
        return base.Partition.from_rows(clients)

    def _sized(
        self,
        rng: np.random.Generator,
        rows: np.ndarray,
        num_clients: int,
        dataset_name: str,
    ) -> list[np.ndarray]:
        """Cuts the rows of the second half of the clients."""
        if len(rows) < num_clients * self.min_examples:
            raise checks.InputError(
                f"Partition {self.name!r} needs at least"
                f" {num_clients * self.min_examples} samples for its {num_clients}"
                f" clients of different size with {self.min_examples} or more each, but"
                f" data set {dataset_name!r} has {len(rows)} for them."
            )
        sizes = draws.dirichlet_sizes(
            rng, self.concentration, len(rows), num_clients, self.min_examples
        )
        return np.split(rows, np.cumsum(sizes)[:-1])

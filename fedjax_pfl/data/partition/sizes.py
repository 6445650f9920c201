"""Partitions of a shuffled pool into parts of equal or of very different sizes."""

import dataclasses
from typing import ClassVar

import numpy as np

from fedjax_pfl.data import dataset as datasets
from fedjax_pfl.data.partition import base, draws

__all__ = ["IID", "QuantitySkew"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class IID(base.Drawn):
    """A shuffled pool cut into parts whose sizes differ by at most 1."""

    name: ClassVar[str] = "iid"

    def draw(
        self, rng: np.random.Generator, dataset: datasets.Dataset, num_clients: int
    ) -> base.Partition:
        """Draws the partition."""
        base.require_samples(self.name, dataset, num_clients, 1)
        shuffled = rng.permutation(dataset.num_samples)
        return base.Partition.from_rows(np.array_split(shuffled, num_clients))


@dataclasses.dataclass(frozen=True, kw_only=True)
class QuantitySkew(base.DirichletDrawn):
    """A shuffled pool cut into parts whose sizes are proportional to `Dir_N` shares.

    Redrawn while a client has fewer than `min_examples`, 100 times at most; then the
    largest clients give to those below.
    """

    name: ClassVar[str] = "quantity_skew"

    def draw(
        self, rng: np.random.Generator, dataset: datasets.Dataset, num_clients: int
    ) -> base.Partition:
        """Draws the partition."""
        base.require_samples(self.name, dataset, num_clients, self.min_examples)
        sizes = draws.dirichlet_sizes(
            rng,
            self.concentration,
            dataset.num_samples,
            num_clients,
            self.min_examples,
        )
        return base.Partition.from_sizes(rng.permutation(dataset.num_samples), sizes)

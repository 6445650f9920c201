"""Partitions of a shuffled pool: into equal, unequal or increasingly noisy parts."""

import dataclasses

import numpy as np
from numpy.random import Generator

from fedjax_pfl.core import checks, struct
from fedjax_pfl.data.dataset import Dataset
from fedjax_pfl.data.partition import draws
from fedjax_pfl.data.partition.base import DirichletDrawn, Drawn, Partition

__all__ = ["IID", "QualitySkew", "QuantitySkew"]


class IID(Drawn):
    """A shuffled pool cut into parts with sizes that differ by at most 1."""

    name = "iid"

    def draw(self, rng: Generator, dataset: Dataset, num_clients: int) -> Partition:
        """Draws the partition."""
        self.require_samples(dataset, num_clients)
        shuffled = rng.permutation(dataset.num_samples)
        return Partition.from_rows(np.array_split(shuffled, num_clients))


class QuantitySkew(DirichletDrawn):
    """A shuffled pool cut into parts with sizes proportional to `Dir_N` shares.

    Redrawn while a client has fewer than `min_examples`, 100 times at most; then the
    largest clients give to those below.
    """

    name = "quantity_skew"

    def draw(self, rng: Generator, dataset: Dataset, num_clients: int) -> Partition:
        """Draws the partition."""
        self.require_samples(dataset, num_clients, self.min_examples)
        (sizes,) = self.draw_counts(rng, [dataset.num_samples], num_clients)
        return Partition.from_sizes(
            rng.permutation(dataset.num_samples), draws.raised(sizes, self.min_examples)
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class QualitySkew(Drawn):
    """A shuffled pool cut into equal parts; noise on the scaled inputs grows with i.

    Client `i = 0 .. N-1` has noise of standard deviation `sigma * (i + index_from) /
    N`, or of this variance. The two readings differ a lot: with sigma = 0.1, N = 10 and
    `index_from` 0 and 1, the last client has 0.09 or sqrt(0.1) = 0.316.

    Attributes:
      sigma: size of the noise, at least 0.
      noise_is_std: sigma scales the standard deviation, as in FLAME's code, instead of
        the variance, as in its text.
      index_from: 0, so that the first client is clean, or 1.
      resample: redraw noise at every access instead of once per example.
      in_file_order: cut the pool in the order of the file; if classes are stored one
        after the other, this is an extreme label skew.
    """

    sigma: float = struct.static_field(default=0.1, at_least=0)
    noise_is_std: bool = True
    index_from: int = struct.static_field(default=0, at_least=0)
    resample: bool = False
    in_file_order: bool = False
    name = "quality_skew"

    def draw(self, rng: Generator, dataset: Dataset, num_clients: int) -> Partition:
        """Draws the partition; the noise itself is drawn with each batch."""
        self.require_samples(dataset, num_clients)
        if dataset.x.dtype == np.int32:
            raise checks.InputError(
                f"Partition {self.name!r} adds noise to numbers, but the inputs of data"
                f" set {dataset.name!r} are whole numbers such as words of a text."
            )
        rows = np.arange(dataset.num_samples)
        rows = rows if self.in_file_order else rng.permutation(rows)
        scale = self.sigma * (np.arange(num_clients) + self.index_from) / num_clients
        scale = scale if self.noise_is_std else np.sqrt(scale)
        return Partition.from_rows(
            np.array_split(rows, num_clients),
            noise_scale=scale.astype(np.float32),
            resample_noise=self.resample,
        )

"""Quality skew: equal parts whose inputs get more noise from client to client."""

import dataclasses
from typing import ClassVar

import numpy as np

from fedjax_pfl.core import checks
from fedjax_pfl.data import dataset as datasets
from fedjax_pfl.data.partition import base

__all__ = ["QualitySkew"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class QualitySkew(base.Drawn):
    """A shuffled pool cut into equal parts; noise on the scaled inputs grows with i.

    Client `i = 0 .. N-1` has noise of standard deviation `sigma * (i + index_from) /
    N`, or of this variance. The two readings differ a lot: with sigma = 0.1, N = 10 and
    `index_from` 0 and 1, the last client has 0.09 or sqrt(0.1) = 0.316.

    Attributes:
      sigma: size of the noise, at least 0.
      noise_is_std: sigma scales the standard deviation, as in FLAME's code, instead of
        the variance, as in its text.
      index_from: 0, so that the first client is clean, or 1.
      resample: noise is drawn anew at every access instead of once per example.
      in_file_order: cut the pool as it is stored; where classes are stored one after
        the other, this is an extreme label skew.
    """

    sigma: float = 0.1
    noise_is_std: bool = True
    index_from: int = 0
    resample: bool = False
    in_file_order: bool = False
    name: ClassVar[str] = "quality_skew"

    def __post_init__(self):
        checks.number("sigma", self.sigma, at_least=0)
        checks.whole("index_from", self.index_from, at_least=0)
        for field in ("noise_is_std", "resample", "in_file_order"):
            checks.boolean(field, getattr(self, field))

    def draw(
        self, rng: np.random.Generator, dataset: datasets.Dataset, num_clients: int
    ) -> base.Partition:
        """Draws the partition; the noise itself is drawn where a batch is formed."""
        base.require_samples(self.name, dataset, num_clients, 1)
        if dataset.x.dtype == np.int32:
            raise checks.InputError(
                f"Partition {self.name!r} adds noise to numbers, but the inputs of data"
                f" set {dataset.name!r} are whole numbers such as words of a text."
            )
        rows = np.arange(dataset.num_samples)
        if not self.in_file_order:
            rows = rng.permutation(rows)
        parts = base.Partition.from_rows(np.array_split(rows, num_clients))
        scale = self.sigma * (np.arange(num_clients) + self.index_from) / num_clients
        if not self.noise_is_std:
            scale = np.sqrt(scale)
        return dataclasses.replace(
            parts,
            noise_scale=scale.astype(np.float32),
            resample_noise=self.resample,
        )

"""What a partition is, and what all partitions are made with."""

import abc
import dataclasses
from collections.abc import Sequence
from typing import Any, ClassVar, Protocol

import numpy as np

from fedjax_pfl.core import checks, struct
from fedjax_pfl.data import dataset as datasets

__all__ = [
    "DirichletDrawn",
    "Drawn",
    "Partition",
    "Partitioner",
    "require_samples",
]


@dataclasses.dataclass(frozen=True, eq=False)
class Partition:
    """Which rows of the pool belong to which client, on the host.

    Attributes:
      index: `int32[N, M]` rows; entries past `num_examples` are 0.
      num_examples: `int32[N]` rows of each client.
      noise_scale: `float32[N]` std of the noise on scaled inputs, or None.
      resample_noise: this noise is drawn anew at every access.
      leaky: clients may share rows, so that one client may train on what another is
        tested on.
      cluster: `int32[N]` known group of similar clients, or None.
    """

    index: np.ndarray
    num_examples: np.ndarray
    noise_scale: np.ndarray | None = None
    resample_noise: bool = False
    leaky: bool = False
    cluster: np.ndarray | None = None

    __repr__ = struct.array_repr

    @classmethod
    def from_rows(cls, rows: Sequence[Any], *, leaky: bool = False) -> "Partition":
        """Makes a partition from one list of rows per client.

        Args:
          rows: `N` sequences of whole numbers.
          leaky: clients may share rows.

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
        return cls(index, num_examples, leaky=leaky)

    @classmethod
    def from_sizes(cls, rows: np.ndarray, sizes: np.ndarray) -> "Partition":
        """Cuts a list of rows into consecutive parts; what is left over is unused.

        Args:
          rows: `int[S]`.
          sizes: `int[N]` rows of each client, at most S together.

        Returns:
          The partition.

        Example:
          >>> Partition.from_sizes(np.array([4, 2, 0, 1]), np.array([1, 2])).index
          array([[4, 0],
                 [2, 0]], dtype=int32)
        """
        index = np.zeros((len(sizes), max(1, sizes.max())), np.int32)
        is_real = np.arange(index.shape[1]) < sizes[:, None]
        index[is_real] = rows[: sizes.sum()]
        return cls(index, sizes.astype(np.int32))

    def rows(self, client: int) -> np.ndarray:
        """Rows `int32[n]` of one client, without padding."""
        return self.index[client, : self.num_examples[client]]

    def validate(self, num_samples: int, num_clients: int) -> None:
        """Checks shapes, that rows are in range, and that no row has two owners.

        Args:
          num_samples: size of the pool.
          num_clients: expected number of clients.

        Raises:
          InputError: if the partition is not one; a leaky one may give a row to many
            clients, but to each of them once.
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
        is_real = np.arange(num_rows) < self.num_examples[:, None]
        used = self.index[is_real]
        if used.size and (used.min() < 0 or used.max() >= num_samples):
            raise checks.InputError(
                f"Expected rows of a partition from 0 to {num_samples - 1}, got values"
                f" from {used.min()} to {used.max()}."
            )
        self._check_owners(used, np.nonzero(is_real)[0], num_samples)
        self._check_noise(num_clients)

    def _check_owners(
        self, used: np.ndarray, client: np.ndarray, num_samples: int
    ) -> None:
        """Checks that no row has two owners or, if leaky, one owner twice."""
        if self.leaky:
            slot, times = np.unique(client * num_samples + used, return_counts=True)
            if times.max(initial=0) > 1:
                owner, row = divmod(int(slot[times.argmax()]), num_samples)
                raise checks.InputError(
                    "Expected a partition without repetitions within a client, got row"
                    f" {row} {times.max()} times in client {owner}."
                )
            return
        owners = np.bincount(used, minlength=num_samples)
        if owners.max() > 1:
            raise checks.InputError(
                f"Expected a partition with disjoint clients, got row {owners.argmax()}"
                f" {owners.max()} times."
            )

    def _check_noise(self, num_clients: int) -> None:
        """Checks the standard deviations of the noise."""
        if self.noise_scale is None:
            return
        if self.noise_scale.shape != (num_clients,):
            raise checks.InputError(
                f"Expected noise_scale of a partition to have shape ({num_clients},),"
                f" got {self.noise_scale.shape}."
            )
        checks.number("noise_scale of a partition", self.noise_scale, at_least=0)


class Partitioner(Protocol):
    """A frozen, hashable dataclass that distributes examples."""

    name: ClassVar[str]

    def __call__(
        self,
        rng: np.random.Generator,
        dataset: datasets.Dataset,
        num_clients: int | None,
    ) -> Partition:
        """Draws a partition; None is as many clients as the data set has."""
        ...


class Drawn(abc.ABC):
    """A partition over a number of clients that somebody else has to give."""

    name: ClassVar[str]

    def __call__(
        self,
        rng: np.random.Generator,
        dataset: datasets.Dataset,
        num_clients: int | None,
    ) -> Partition:
        """Draws a partition; refuses None, which only natural clients have."""
        if num_clients is None:
            raise checks.InputError(
                f"Partition {self.name!r} needs num_clients, a whole number of at least"
                " 1, got None; only by_client and feature_skew can count the clients"
                " themselves."
            )
        checks.positive_int("num_clients", num_clients)
        return self.draw(rng, dataset, num_clients)

    @abc.abstractmethod
    def draw(
        self, rng: np.random.Generator, dataset: datasets.Dataset, num_clients: int
    ) -> Partition:
        """Draws the partition."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class DirichletDrawn(Drawn):
    """A partition in proportions of a Dirichlet distribution.

    Attributes:
      concentration: of the Dirichlet distribution, > 0; small means strong skew.
      min_examples: examples that every client gets at least.
    """

    concentration: float = 0.5
    min_examples: int = 10

    def __post_init__(self):
        checks.number("concentration", self.concentration, above=0)
        checks.positive_int("min_examples", self.min_examples)


def require_samples(
    name: str, dataset: datasets.Dataset, num_clients: int, min_examples: int
) -> None:
    """Checks that there are enough samples for every client."""
    if dataset.num_samples < num_clients * min_examples:
        raise checks.InputError(
            f"Partition {name!r} needs at least {num_clients * min_examples} samples"
            f" for {num_clients} clients with {min_examples} or more each, but data set"
            f" {dataset.name!r} has {dataset.num_samples}."
        )

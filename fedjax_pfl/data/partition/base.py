"""Partitions of a pool over clients, and the base classes of partitioners."""

import abc
import dataclasses
from collections.abc import Sequence
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.random import Generator

from fedjax_pfl.core import checks, struct
from fedjax_pfl.data.dataset import Dataset
from fedjax_pfl.data.partition import draws

__all__ = [
    "DirichletDrawn",
    "Drawn",
    "Partition",
    "Partitioner",
    "option",
]


@dataclasses.dataclass(frozen=True, eq=False)
class Partition:
    """Assignment of pool rows to clients, on the host.

    Attributes:
      index: `int32[N, M]` rows; entries past `num_examples` are 0.
      num_examples: `int32[N]` rows of each client.
      noise_scale: `float32[N]` std of the noise on scaled inputs, or None.
      resample_noise: redraw this noise at every access.
      leaky: clients may share rows, so that one may train on another's test examples.
      cluster: `int32[N]` known group of similar clients, or None.
      extra_examples: `int[N]` examples that each client got beyond its draw, to reach
        `min_examples`; or None for partitions that give none.
      natural: `int[N]` natural client of the data set that each client is, or None.
    """

    index: np.ndarray
    num_examples: np.ndarray
    noise_scale: np.ndarray | None = None
    resample_noise: bool = False
    leaky: bool = False
    cluster: np.ndarray | None = None
    extra_examples: np.ndarray | None = None
    natural: np.ndarray | None = None

    __post_init__ = struct.check_fields

    __repr__ = struct.array_repr

    @classmethod
    def from_rows(cls, rows: Sequence[Any], **fields: Any) -> "Partition":
        """Builds a partition from one list of rows per client.

        Args:
          rows: `N` sequences of whole numbers.
          **fields: other fields of the partition, such as `leaky`.

        Returns:
          The padded partition, with `M >= 1`.

        Example:
          >>> Partition.from_rows([[3, 1], [2]]).index.tolist()
          [[3, 1], [2, 0]]
        """
        sizes = np.array(list(map(len, rows)))
        return cls.from_sizes(np.concatenate(rows), sizes, **fields)

    @classmethod
    def from_sizes(
        cls, rows: np.ndarray, sizes: np.ndarray, **fields: Any
    ) -> "Partition":
        """Cuts a list of rows into consecutive parts; rows left over are unused.

        Args:
          rows: `int[S]`.
          sizes: `int[N]` rows of each client, at most S together.
          **fields: other fields of the partition.

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
        return cls(index, sizes.astype(np.int32), **fields)

    @classmethod
    def dealt(
        cls, classes: Sequence[np.ndarray], counts: np.ndarray, **fields: Any
    ) -> "Partition":
        """Deals the rows of every class in their order; rows left over are unused.

        Args:
          classes: rows `int[n_c]` of each of C classes.
          counts: `int[C, N]` rows that each client gets of each class.
          **fields: other fields of the partition.

        Returns:
          The partition, the rows of a client in the order of the classes.

        Example:
          >>> counts = np.array([[1, 1], [0, 2]])
          >>> Partition.dealt([np.arange(3), np.arange(3, 5)], counts).index.tolist()
          [[0, 0, 0], [1, 3, 4]]
        """
        totals = counts.sum(axis=1)
        rows = [pool[:total] for pool, total in zip(classes, totals, strict=True)]
        client = np.repeat(np.indices(counts.shape)[1].ravel(), counts.ravel())
        # Stable, so that a client's rows stay in the order of the classes.
        order = np.argsort(client, kind="stable")
        return cls.from_sizes(np.concatenate(rows)[order], counts.sum(axis=0), **fields)

    def rows(self, client: int) -> np.ndarray:
        """Returns the rows `int32[n]` of one client, without padding."""
        return self.index[client, : self.num_examples[client]]

    def validate(self, num_samples: int, num_clients: int) -> None:
        """Validates shapes, ranges and noise, and that no row has two owners.

        Args:
          num_samples: size of the pool.
          num_clients: expected number of clients.

        Raises:
          InputError: if the partition is invalid. Clients of a leaky one may share a
            row, but no client may have it twice.
        """
        num_rows = self.index.shape[-1]
        if not self.index.shape[:-1] == self.num_examples.shape == (num_clients,):
            raise checks.InputError(
                f"Expected a partition over {num_clients} clients, got index of shape"
                f" {self.index.shape} and num_examples of shape"
                f" {self.num_examples.shape}."
            )
        _check_range("num_examples", self.num_examples, num_rows)
        owner, slot = np.nonzero(np.arange(num_rows) < self.num_examples[:, None])
        rows = self.index[owner, slot]
        _check_range("rows", rows, num_samples - 1)
        # Clients of a leaky partition may share rows: then pairs of both are unique.
        scope = owner if self.leaky else np.zeros_like(owner)
        entry, times = np.unique(scope * num_samples + rows, return_counts=True)
        if times.max(initial=0) > 1:
            client, row = divmod(int(entry[times.argmax()]), num_samples)
            rule, where = "with disjoint clients", ""
            if self.leaky:
                rule, where = "without repeated rows", f" in client {client}"
            raise checks.InputError(
                f"Expected a partition {rule}, got row {row} {times.max()}"
                f" times{where}."
            )
        if self.noise_scale is not None:
            checks.numbers("noise_scale of a partition", self.noise_scale, at_least=0)
            if self.noise_scale.shape != (num_clients,):
                raise checks.InputError(
                    "Expected noise_scale of a partition to have shape"
                    f" ({num_clients},), got {self.noise_scale.shape}."
                )


def _check_range(name: str, values: np.ndarray, largest: int) -> None:
    """Checks that whole numbers are from 0 to `largest`."""
    if values.size and (values.min() < 0 or values.max() > largest):
        raise checks.InputError(
            f"Expected {name} of a partition from 0 to {largest}, got values from"
            f" {values.min()} to {values.max()}."
        )


class Partitioner(Protocol):
    """A frozen, hashable dataclass that distributes examples."""

    def __call__(
        self, rng: Generator, dataset: Dataset, num_clients: int | None
    ) -> Partition:
        """Draws a partition; None means as many clients as the data set has."""
        ...


@dataclasses.dataclass(frozen=True, kw_only=True)
class Drawn(abc.ABC):
    """Base class of partitions that need a number of clients."""

    name: ClassVar[str]

    __post_init__ = struct.check_fields

    def __call__(
        self, rng: Generator, dataset: Dataset, num_clients: int | None
    ) -> Partition:
        """Draws a partition; rejects None, which only natural clients allow."""
        if num_clients is None:
            raise checks.InputError(
                f"Partition {self.name!r} needs num_clients, a whole number of at least"
                " 1, got None; only by_client and feature_skew can count the clients"
                " themselves."
            )
        checks.positive_int("num_clients", num_clients)
        return self.draw(rng, dataset, num_clients)

    @abc.abstractmethod
    def draw(self, rng: Generator, dataset: Dataset, num_clients: int) -> Partition:
        """Draws the partition."""

    def require_samples(
        self,
        dataset: Dataset,
        num_clients: int = 1,
        each: int = 1,
        num_samples: int | None = None,
    ) -> None:
        """Checks that the data set or `num_samples` rows suffice for the clients."""
        available = dataset.num_samples if num_samples is None else num_samples
        if available < num_clients * each:
            raise checks.InputError(
                f"Partition {self.name!r} needs at least {num_clients * each} samples"
                f" for {num_clients} clients with {each} or more each, but data set"
                f" {dataset.name!r} has {available} for them."
            )

    def require_examples(
        self,
        dataset: Dataset,
        classes: Sequence[np.ndarray],
        needed: Sequence[int],
        *,
        smaller: str = "min_examples",
    ) -> None:
        """Checks that every class has as many examples as its clients need."""
        for label, (rows, count) in enumerate(zip(classes, needed, strict=True)):
            if len(rows) < count:
                raise checks.InputError(
                    f"Partition {self.name!r} needs at least {count} examples of class"
                    f" {label} of {dataset.name}, got {len(rows)}; use"
                    f" fewer clients or a smaller {option(smaller)}."
                )

    def class_rows(
        self, dataset: Dataset, rng: Generator | None = None
    ) -> list[np.ndarray]:
        """Returns the rows `int64[n_c]` of each class, shuffled by a generator."""
        num_classes = dataset.num_classes
        if num_classes is None or dataset.y.ndim != 1:
            raise checks.InputError(
                f"Partition {self.name!r} needs one class label per example, which data"
                f" set {dataset.name!r} does not have; use 'iid' or 'by_client'."
            )
        labels_per_client = getattr(self, "labels_per_client", 1)
        if labels_per_client > num_classes:
            raise checks.InputError(
                f"Expected {option('labels_per_client')} to be at most {num_classes},"
                f" the number of classes of {dataset.name}, got {labels_per_client}."
            )
        rows = np.arange(dataset.num_samples)
        rows = rows if rng is None else rng.permutation(rows)
        by_class = rows[np.argsort(dataset.y[rows], kind="stable")]
        sizes = np.bincount(dataset.y, minlength=num_classes)
        return np.split(by_class, np.cumsum(sizes)[:-1])


@dataclasses.dataclass(frozen=True, kw_only=True)
class DirichletDrawn(Drawn):
    """Base class of partitions in Dirichlet proportions.

    Attributes:
      concentration: of the Dirichlet distribution, > 0; small means strong skew.
      min_examples: minimum number of examples of a client.
    """

    concentration: float = struct.static_field(default=0.5, above=0)
    min_examples: int = struct.static_field(default=10, at_least=1)

    def draw_counts(
        self,
        rng: Generator,
        sizes: Sequence[int],
        num_clients: int,
        *,
        disjoint: bool = True,
    ) -> np.ndarray:
        """Draws how many examples `int64[C, N]` of every class each client gets."""
        total, counts = np.array(sizes)[:, None], np.zeros(0)
        # Redraws while a client has fewer than `min_examples`, 100 times at most.
        for _ in range(draws.MAX_DRAWS):
            shape = (len(sizes), num_clients)
            shares = draws.dirichlet(rng, self.concentration, shape)
            # Cuts at `floor(cumsum(p) n)` leave no row over; otherwise every client has
            # `floor(p n)`.
            if disjoint:
                shares = np.cumsum(shares, axis=1)
                shares /= shares[:, -1:]  # the last cut is the end of the class
            counts = np.floor(shares * total).astype(np.int64)
            if disjoint:
                counts = np.diff(counts, axis=1, prepend=0)
            if counts.sum(axis=0).min() >= self.min_examples:
                break
        return counts


def option(field: str) -> str:
    """Returns how a user names a field of a partition: in Python, or in a command."""
    return checks.setting(f"federation.partition.{field}", "").partition("=")[0]

"""Natural clients, one by one or in groups."""

import dataclasses

import numpy as np
from numpy.random import Generator

from fedjax_pfl.core import checks, struct
from fedjax_pfl.data.dataset import Dataset
from fedjax_pfl.data.partition.base import Partition, option

__all__ = ["ByClient", "FeatureSkew"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ByClient:
    """The natural clients of the data set, in the order of their ids.

    A smaller number of clients is drawn at random; without a number, all are used.

    Attributes:
      min_examples: natural clients with fewer examples are left out.
    """

    min_examples: int = struct.static_field(default=1, at_least=1)
    name = "by_client"

    __post_init__ = struct.check_fields

    def __call__(
        self, rng: Generator, dataset: Dataset, num_clients: int | None
    ) -> Partition:
        """Groups the examples by natural client."""
        client = _natural_clients(self.name, dataset)
        ids, owner, sizes = np.unique(client, return_inverse=True, return_counts=True)
        large = np.flatnonzero(sizes >= self.min_examples)
        if len(large) == 0:
            raise checks.InputError(
                f"Expected {option('min_examples')} to be at most {sizes.max()}, the"
                f" size of the largest natural client of {dataset.name}, got"
                f" {self.min_examples}."
            )
        num_clients = len(large) if num_clients is None else num_clients
        checks.positive_int("num_clients", num_clients)
        if num_clients > len(large):
            raise checks.InputError(
                f"Expected num_clients to be at most {len(large)}, the number of"
                f" natural clients of {dataset.name} with {self.min_examples} or more"
                f" examples, got {num_clients};"
                f" {checks.setting('federation.num_clients', None)} takes all of them."
            )
        if num_clients < len(large):
            # Ascending like the owners of `rows` below.
            large = np.sort(rng.choice(large, num_clients, replace=False))
        rows = np.argsort(owner, kind="stable")
        rows = rows[np.isin(owner[rows], large)]
        cluster, natural = None, ids[large]
        if dataset.cluster is not None:
            cluster = dataset.cluster[natural].astype(np.int32)
        return Partition.from_sizes(
            rows, sizes[large], cluster=cluster, natural=natural
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class FeatureSkew:
    """Natural clients ("writers") in file order, g of them for each client.

    Client i gets the writers `i g .. (i + 1) g - 1`; the rest is unused. The order is
    that of the first examples.

    Attributes:
      clients_per_client: g, or None for `floor(writers / N)`. Without a number of
        clients there are `floor(writers / g)`, and g is 1 by default.
    """

    clients_per_client: int | None = struct.static_field(default=None, at_least=1)
    name = "feature_skew"

    __post_init__ = struct.check_fields

    def __call__(
        self, rng: Generator, dataset: Dataset, num_clients: int | None
    ) -> Partition:
        """Groups the natural clients; `rng` is not used."""
        client = _natural_clients(self.name, dataset)
        ids, start, owner = np.unique(client, return_index=True, return_inverse=True)
        num_writers, group = len(start), self.clients_per_client
        if num_clients is None:
            num_clients = max(1, num_writers // (group or 1))
        checks.positive_int("num_clients", num_clients)
        group = group or num_writers // num_clients
        if not 1 <= group <= num_writers // num_clients:
            raise checks.InputError(
                f"Partition {self.name!r} needs {num_clients * max(1, group)} natural"
                f" clients for {num_clients} clients of {max(1, group)} each, but data"
                f" set {dataset.name!r} has {num_writers}."
            )
        position = np.argsort(np.argsort(start))[owner]  # of the writer, in file order
        rows = np.argsort(position, kind="stable")
        sizes = np.bincount(position // group, minlength=num_clients)[:num_clients]
        # Groups of several writers are no natural clients, and have no names.
        natural = None if group > 1 else ids[np.argsort(start)][:num_clients]
        return Partition.from_sizes(rows, sizes, natural=natural)


def _natural_clients(name: str, dataset: Dataset) -> np.ndarray:
    """Returns the natural client `int[S]` of each example; rejects data without any."""
    if dataset.client is None:
        raise checks.InputError(
            f"Partition {name!r} needs natural clients, which data set"
            f" {dataset.name!r} does not have."
        )
    return dataset.client

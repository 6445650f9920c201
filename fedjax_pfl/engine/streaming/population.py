"""The federation of a streamed training, and refusals of other trainings."""

import dataclasses
import functools
import operator
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_pfl import core
from fedjax_pfl.core import checks, sharding
from fedjax_pfl.engine import stacking
from fedjax_pfl.engine.streaming import cohort_programs
from fedjax_pfl.round.process import FederatedProcess

__all__ = ["Population", "check"]

PARTS = stacking.ROWS


def check(process: FederatedProcess) -> None:
    """Refuses methods that need the rows of all clients at once."""
    algorithm = process.algorithm
    name = type(algorithm).__name__
    if algorithm.reads == "all":
        raise checks.InputError(
            f"A streamed training holds the rows of the cohort only, but {name} reads"
            " those of all clients in every round; use simulate."
        )
    if algorithm.aggregate_over == "all" and not process.keeps_mean:
        rule = type(process.used_aggregator()).__name__
        raise checks.InputError(
            f"A streamed training keeps the mean of all clients' messages and no other"
            f" rule over all of them, but {name} wants {rule}; use simulate."
        )


class Population:
    """A federation with its rows of clients on the host and its pool on devices."""

    def __init__(self, federation: core.Federation, execution: sharding.Execution):
        rows, pool = stacking.split(federation)
        self._execution = execution
        self.pool = jax.tree.map(jnp.asarray, pool)
        self._parts = {name: jax.tree.map(np.asarray, rows[name]) for name in PARTS}
        self._malicious = np.asarray(rows["malicious"])
        # Which other clients' test examples belong to a client.
        self._others = {
            name: jax.tree.map(np.asarray, rows[name]) for name in ("others", "samples")
        }
        self._names = federation.client_names
        self._unseen = None  # rows of clients that never train
        if federation.unseen is not None:
            newcomers = stacking.split(federation.unseen)[0]
            self._unseen = jax.tree.map(np.asarray, newcomers)
        # Training examples `int32[N]` of every client, and numbers over all clients.
        self.counts = self._parts["train"]["num_examples"]
        self.total = core.Population(
            num_clients=len(self._malicious),
            num_examples=np.asarray(self.counts.sum(), np.int32),  # pyright: ignore
        )
        self.shared = self.everywhere(self.pool)

    def everywhere(self, tree: core.Tree) -> core.Tree:
        """Puts arrays on all devices that share clients, if there are several."""
        return cohort_programs.everywhere(tree, self._execution)

    def _placed(self, rows: core.Tree, count: int) -> core.Tree:
        """Puts rows `[K, ...]` on the devices of their places."""
        if sharding.num_devices(self._execution) == 1:
            return rows
        return sharding.shard_rows(rows, count, self._execution)

    def fields(self, rows: np.ndarray, *parts: str) -> dict[str, Any]:
        """Returns rows `int[K]` of parts of the federation, at their places."""
        chosen = {name: self._parts[name] for name in parts or PARTS}
        taken = jax.tree.map(lambda leaf: leaf[rows], chosen)
        return self._placed(taken, len(rows))

    def malicious(self, rows: np.ndarray) -> core.Tree:
        """Returns which of the rows are malicious, `bool[K]`."""
        return self._placed(self._malicious[rows], len(rows))

    def train(self, rows: np.ndarray) -> core.ClientData:
        """Returns the training examples of some clients `int[K]`, at their places."""
        return self.shared.train.with_rows(self.fields(rows, "train")["train"])

    def first(self) -> core.ClientData:
        """Returns the training examples of one client, on the first device."""
        fields = jax.tree.map(lambda leaf: leaf[:1], self._parts["train"])
        return self.pool.train.with_rows(fields)

    def unseen(self, size: int) -> Iterator[tuple[core.Tree, int]]:
        """Yields rows of up to `size` clients that never train, and how many count."""
        if self._unseen is None:
            return
        count = len(self._unseen["malicious"])
        size = min(size, count)
        for start in range(0, count, size):
            block = np.arange(start, min(start + size, count))
            # One program for all blocks.
            chosen = operator.itemgetter(np.resize(block, size))
            rows = jax.tree.map(chosen, self._unseen)
            yield self.everywhere(rows), len(block)

    @functools.cached_property
    def tested(self) -> core.Tree:
        """Rows of all clients' test examples, on all devices."""
        return self.everywhere(jax.tree.map(jnp.asarray, self._parts["test"]))

    def of(self, rows: np.ndarray) -> core.Federation:
        """Returns the federation of some clients `int[K]`, at their places."""
        fields, malicious = self.fields(rows), self.malicious(rows)
        federation = cohort_programs.federation_of(self.shared, fields, malicious)
        others = jax.tree.map(lambda leaf: leaf[rows], self._others)
        return dataclasses.replace(federation, **self._placed(others, len(rows)))

    def sample(self, rows: np.ndarray) -> core.Federation:
        """Returns the federation of some clients `int[K]`, on the first device."""
        fields = {
            name: jax.tree.map(lambda leaf: jnp.asarray(leaf[rows]), part)
            for name, part in self._parts.items()
        }
        sample = cohort_programs.federation_of(self.pool, fields, self._malicious[rows])
        if self._names is None:
            return sample
        names = tuple(self._names[row] for row in rows)
        return dataclasses.replace(sample, client_names=names)

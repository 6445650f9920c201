"""A training whose clients' rows are in a file: a host loop over one compiled round.

    cohort of round k+1 (from the key)   --+
    rows of round k+1 (from the file)    --+--> compiled round k+1 --> rows k+1
    rows of round k (still on the device) -+

While the device computes round k+1, the host writes the rows of round k and reads those
of round k+2. Clients of two cohorts in a row get theirs on the device.
"""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_pfl import core
from fedjax_pfl.core import checks, client_rows, sharding
from fedjax_pfl.engine import privacy, stacking
from fedjax_pfl.engine.process import FederatedProcess
from fedjax_pfl.engine.streaming import programs, row_store

__all__ = ["Population", "Training", "check"]

BLOCK = 1024
"""Clients looked at together outside rounds."""


def check_attack(process: FederatedProcess, messages: Any) -> None:
    """Refuses attacks that keep something for every client.

    Args:
      process: what is to be trained.
      messages: shapes `[1, *P]` of one client's message.

    Raises:
      InputError: in one sentence.
    """

    def shapes(count: int) -> Any:
        rows = jax.tree.map(
            lambda s: jax.ShapeDtypeStruct((count, *s.shape[1:]), s.dtype), messages
        )
        return jax.eval_shape(process.attack.init, rows)

    if process.attack is not None and shapes(1) != shapes(2):
        raise checks.InputError(
            f"A streamed training keeps nothing of an attack for every client, but"
            f" {type(process.attack).__name__} does; use simulate."
        )


def check(process: FederatedProcess) -> None:
    """Refuses what needs the rows of all clients at once, or more than two per client.

    Args:
      process: what is to be trained.

    Raises:
      InputError: in one sentence.
    """
    for transform in process.transforms:
        if jax.tree.leaves(jax.eval_shape(transform.init, jnp.zeros(1))):
            raise checks.InputError(
                "A streamed training keeps nothing of transforms for every client, but"
                f" {type(transform).__name__} with error_feedback does; use simulate."
            )
    algorithm = process.algorithm
    name = type(algorithm).__name__
    if getattr(process.participation, "max_staleness", 0):
        raise checks.InputError(
            "Expected a participation without old models of the server in a streamed"
            f" training, got {type(process.participation).__name__}."
        )
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
    """A federation whose rows of clients are on the host and whose pool is not."""

    def __init__(self, federation: core.Federation):
        """Takes the rows to the host."""
        rows, pool = stacking.split(federation)
        self.pool = jax.tree.map(jnp.asarray, pool)
        self._parts = {name: jax.tree.map(np.asarray, rows[name]) for name in PARTS}
        self._malicious = np.asarray(rows["malicious"])
        self.counts = self._parts["train"]["num_examples"]
        self.total = core.Population(
            num_clients=len(self._malicious),
            num_examples=jnp.asarray(self.counts.sum(), jnp.int32),
        )

    def fields(self, rows: np.ndarray, *parts: str) -> dict[str, Any]:
        """Rows `int[K]` of some parts of the federation."""
        chosen = {name: self._parts[name] for name in parts or PARTS}
        return jax.tree.map(lambda leaf: leaf[rows], chosen)

    def malicious(self, rows: np.ndarray) -> np.ndarray:
        """Returns which of the rows are malicious, `bool[K]`."""
        return self._malicious[rows]

    def of(self, rows: np.ndarray) -> core.Federation:
        """Returns the federation of some clients."""
        fields = jax.tree.map(jnp.asarray, self.fields(rows))
        return programs.federation_of(self.pool, fields, self.malicious(rows))


PARTS = stacking.ROWS


class Training:
    """State of a training: what has no row per client on the device, rows in a file."""

    def __init__(
        self,
        process: FederatedProcess,
        model: Any,
        population: Population,
        key: core.Key,
        execution: sharding.Execution,
        store: row_store.RowStore,
    ):
        """Makes the first state; the file is still empty.

        Args:
          process: its numbers as arrays.
          model: given the shapes of the data.
          population: the federation.
          key: `[]` key of the run.
          execution: how the map over a cohort is run.
          store: where rows `(client, message)` are kept.
        """
        self._process, self._model, self._population = process, model, population
        self._execution, self.store, self._key = execution, store, key
        self._pending: tuple[np.ndarray, Any] | None = None  # rows to be written
        server, row = self._start(np.zeros(1, np.int64))
        message = process.messages_of(*row)
        self._mean_size = jax.tree.map(lambda leaf: jnp.zeros_like(leaf[0]), message)
        check_attack(process, message)
        self._first_message = None
        if process.starts_with_one_message(model, population.total, self._data([0])):
            self._first_message = jax.tree.map(lambda leaf: leaf[0], message)
        self.state = core.State(
            server=server,
            clients=None,
            messages=None,
            aggregate=None,
            aggregate_peak=None,
            attack=None if process.attack is None else process.attack.init(message),
            nonfinite=jnp.zeros((), jnp.int32),
            round=jnp.zeros((), jnp.int32),
            key=key,
            optimizer=process.first_optimizer(server),
            steps=process.first_steps(population.total.num_clients),
            statistics=process.first_statistics(model, population.pool.train),
            clip=privacy.first_clip(process),
            draws=process.first_draws(server),
        )
        if process.keeps_mean:
            mean = self._mean_of_all()
            self.state = dataclasses.replace(
                self.state, aggregate=mean, aggregate_peak=client_rows.magnitude(mean)
            )

    @staticmethod
    def row_of(
        process: FederatedProcess, model: Any, population: Population, key: core.Key
    ) -> Any:
        """Shapes of one row `(client, message)`."""
        fields = population.fields(np.zeros(1, np.int64), "train")["train"]
        data = population.pool.train.with_rows(fields)
        start = functools.partial(programs.first, process, model, key)
        shapes = jax.eval_shape(start, population.total, data)[1]
        return jax.tree.map(
            lambda s: jax.ShapeDtypeStruct(s.shape[1:], s.dtype), shapes
        )

    def _start(self, rows: np.ndarray) -> tuple[Any, Any]:
        """Returns the server, and some clients' rows, before the first round."""
        total = self._population.total
        return programs.first(
            self._process, self._model, self._key, total, self._data(rows)
        )

    def _data(self, rows: Any) -> core.ClientData:
        """Returns the training examples of some clients."""
        fields = self._population.fields(np.asarray(rows), "train")["train"]
        return self._population.pool.train.with_rows(fields)

    def rows(self, rows: np.ndarray) -> Any:
        """Rows `(client, message)` of some clients now, `[K, ...]`."""
        self.write_back()
        stored, is_stored = self.store.read(rows), self.store.is_written(rows)
        if is_stored.all():
            return jax.device_put(stored)
        return client_rows.select_rows(
            jnp.asarray(is_stored), stored, self._start(rows)[1]
        )

    def _mean_of_all(self) -> Any:
        """Computes the mean of all messages, from the file and the first rows."""
        self.write_back()
        every = self.store.written()
        mean = self._mean_size
        if self._first_message is None:
            every = np.arange(self._population.total.num_clients)
        else:
            share = self._share_of_others(every)
            mean = jax.tree.map(lambda leaf: share * leaf, self._first_message)
        for block in range(0, len(every), BLOCK):
            rows = every[block : block + BLOCK]
            filled = np.resize(rows, BLOCK)  # one program for all blocks
            more = programs.message_sum(
                self._process,
                self.rows(filled),
                jnp.asarray(self._population.counts[filled]),
                jnp.arange(BLOCK) < len(rows),
                self._population.total,
            )
            mean = jax.tree.map(jnp.add, mean, more)
        return mean

    def _share_of_others(self, rows: np.ndarray) -> float:
        """Returns the share in the mean of the clients that are not among `rows`."""
        counts = self._population.counts
        if self._process.used_aggregator().incremental == "uniform":
            return 1 - len(rows) / len(counts)
        return 1 - counts[rows].sum() / counts.sum()

    def run(self, start: int, count: int) -> core.RoundInfo:
        """Runs rounds.

        Args:
          start: number of finished rounds.
          count: rounds to run.

        Returns:
          The rounds' reports, leaves `[count, ...]`.
        """
        infos = []
        members = self._cohort(start)
        inputs = self._inputs(members)
        for number in range(start, start + count):
            before = self._pending
            self.state, rows, info = self._round(members, inputs, before)
            infos.append(info)
            self.write_back()
            self._pending = (members, rows)
            if number + 1 < start + count:
                members = self._cohort(number + 1)
                inputs = self._inputs(members)
        return jax.tree.map(lambda *leaves: np.stack(leaves), *infos)

    def _cohort(self, number: int) -> np.ndarray:
        """Rows of the members of a round's cohort."""
        round = jnp.asarray(number, jnp.int32)
        total = self._population.total.num_clients
        return np.asarray(programs.cohort(self._process, self._key, round, total))

    def _inputs(self, members: np.ndarray) -> programs.Inputs:
        """Returns everything that the host hands to a round."""
        source = np.full(len(members), -1, np.int32)
        if self._pending is not None:
            both, here, there = np.intersect1d(
                members, self._pending[0], return_indices=True
            )
            del both
            source[here] = there
        population = self._population
        return programs.Inputs(
            members=core.Members(
                cohort=jnp.asarray(members, jnp.int32),
                population=population.total,
                mean=self._mean_size if self._process.keeps_mean else None,
                use_mean=jnp.zeros((), bool),
            ),
            fields=population.fields(members, "train"),
            malicious=jnp.asarray(population.malicious(members)),
            rows=self.store.read(members),
            is_stored=jnp.asarray(self.store.is_written(members)),
            source=jnp.asarray(source),
        )

    def _round(
        self,
        members: np.ndarray,
        inputs: programs.Inputs,
        before: tuple[np.ndarray, Any] | None,
    ) -> tuple[core.State, Any, core.RoundInfo]:
        """Runs a round, again with the mean of all messages where that is asked for."""
        held = inputs.rows if before is None else before[1]

        def run(inputs: programs.Inputs) -> Any:
            return programs.round(
                self._process,
                self._model,
                self._execution,
                self.state,
                held,
                inputs,
                self._population.pool,
            )

        after, rows, info = run(inputs)
        if after.aggregate_peak is None or np.isfinite(after.aggregate_peak):
            return after, rows, info
        self.write_back()
        self._pending = (members, rows)
        recomputed = dataclasses.replace(
            inputs.members, mean=self._mean_of_all(), use_mean=jnp.ones((), bool)
        )
        return run(dataclasses.replace(inputs, members=recomputed))

    def write_back(self) -> None:
        """Writes the rows of the last round, which waits for the device."""
        if self._pending is not None:
            members, rows = self._pending
            self._pending = None
            self.store.write(members, jax.tree.map(np.asarray, rows))

    def trained(self, names: tuple[str, ...], rows: np.ndarray) -> dict[str, Any]:
        """Returns parameters `[K, *P]` of predictors of clients `int[K]`."""
        federation = self._population.of(rows)
        now = (self.state, self.rows(rows), federation)
        return programs.trained(self._process, self._model, names, *now)

    def evaluate(self, data: tuple[str, ...], rows: np.ndarray) -> dict[str, Any]:
        """Metrics by name, each `[predictors, data, K]`, of clients `int[K]`."""
        per_block = []
        blocks = np.array_split(rows, -(-len(rows) // BLOCK))
        for block in blocks:
            # Blocks of one size share a program.
            filled = np.resize(block, len(blocks[0]))
            values = programs.evaluated(
                self._process,
                self._model,
                data,
                self.state,
                self.rows(filled),
                self._population.of(filled),
            )
            per_block.append({n: v[..., : len(block)] for n, v in values.items()})
        return {
            name: np.concatenate([values[name] for values in per_block], axis=-1)
            for name in per_block[0]
        }

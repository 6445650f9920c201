"""A training with clients' rows in files: a host loop over one compiled round.

    cohort of round k+1 (from the key)   --+
    rows of round k+1 (from the files)   --+--> compiled round k+1 --> rows k+1
    rows of round k (still on the device) -+

While devices compute round k+1, the host writes rows k and reads rows k+2.
"""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_pfl import core
from fedjax_pfl.core import client_rows, sharding
from fedjax_pfl.engine import evaluation, schedule
from fedjax_pfl.engine.streaming import cohort_programs, divided_rows, routes
from fedjax_pfl.engine.streaming import population as populations
from fedjax_pfl.round.process import FederatedProcess

__all__ = ["Training", "row_of"]

BLOCK = 1024
"""Clients processed together outside rounds."""


def row_of(
    process: FederatedProcess,
    model: core.Model,
    population: populations.Population,
    key: core.Key,
) -> core.Tree:
    """Returns shapes of one client's rows by name, as in `State.of_clients`."""
    start = functools.partial(cohort_programs.first, process, model, key)
    shapes = jax.eval_shape(start, population.total, population.first())[1]
    return jax.tree.map(lambda s: jax.ShapeDtypeStruct(s.shape[1:], s.dtype), shapes)


@dataclasses.dataclass(frozen=True)
class _HandedIn:
    """Rows of a cohort on their way from the host."""

    route: routes.Route
    rows: core.Tree  # from the files, `[n * C, ...]`
    source: np.ndarray  # `int32[n * C]` positions of newer rows on the devices, or -1


class Training:
    """State of a training: rows of clients in files, all else on the devices."""

    def __init__(
        self,
        process: FederatedProcess,
        model: core.Model,
        population: populations.Population,
        key: core.Key,
        execution: sharding.Execution,
        files: divided_rows.DividedRows,
    ):
        """Makes the first state; the files are still empty."""
        self._model, self._population = model, population
        self._execution, self.files = execution, files
        self._drawn = (process, key)  # on the first device, for draws of cohorts
        self._process, self._key = population.everywhere((process, key))
        self._total = population.everywhere(population.total)
        self._pending: tuple[routes.Route, Any] | None = None  # rows to be written
        train = population.first()
        server, rows = cohort_programs.first(
            process, model, key, population.total, train
        )
        state = core.State(
            round=jnp.zeros((), jnp.int32), key=key, server=server, clients=None
        ).at(rows)
        memory = process.first_memory(model, state, train, population.total.num_clients)
        message = process.messages_of(state)
        size = jax.tree.map(lambda leaf: jnp.zeros_like(leaf[0]), message)
        self._mean_size = population.everywhere(size)
        # If all clients start with one message, their mean needs no rows of theirs.
        self._first_message = None
        if process.starts_with_one_message(model, population.total, train):
            self._first_message = jax.tree.map(lambda leaf: leaf[0], message)
        self.state = population.everywhere(state.at(None).with_memory(**memory))
        if process.keeps_mean:
            mean = self._mean_of_all()
            peak = client_rows.magnitude(
                jax.tree.map(jnp.asarray, sharding.fetch(mean))
            )
            peak = population.everywhere(peak)
            self.state = self.state.with_memory(mean=mean, peak=peak)

    def take(self, state: core.State) -> None:
        """Continues from a state on this process's first device."""
        self.state = self._population.everywhere(state)

    def rows(self, clients: np.ndarray) -> core.Tree:
        """Returns current rows `[K, ...]` of clients `int[K]`; devices divide K."""
        self.write_back()
        rows = self._arrive(self._hand_in(clients), None)
        return cohort_programs.filled(
            self._process,
            self._model,
            self._execution,
            self._key,
            self._total,
            self._population.train(clients),
            rows,
            self.files.is_written[clients],
        )

    def _hand_in(self, clients: np.ndarray) -> _HandedIn:
        """Reads rows from the files, and finds newer ones on the devices."""
        router = self.files.router
        route = router.route(clients)
        # Rows of the last round are newer on the devices than in the files.
        last_route = None if self._pending is None else self._pending[0]
        return _HandedIn(
            route, self.files.read(route), route.source(last_route, router.count)
        )

    def _arrive(self, handed_in: _HandedIn, last_rows: core.Tree) -> core.Tree:
        """Brings rows to the places of their clients."""
        return cohort_programs.arrived(
            self._execution,
            handed_in.rows if last_rows is None else last_rows,
            handed_in.rows,
            handed_in.source,
            handed_in.route.arriving,
        )

    def _full(self, count: int) -> int:
        """Rounds a number of clients up to a multiple of the devices."""
        return count + -count % self.files.router.count

    def _mean_of_all(self) -> core.Message:
        """Computes the mean of all messages, from the files and the first rows."""
        self.write_back()
        population, mean = self._population, self._mean_size
        clients, size = np.flatnonzero(self.files.is_written), self._full(BLOCK)
        if self._first_message is None:
            clients = np.arange(population.total.num_clients)
        else:
            share = self._share_of_others(clients)
            mean = population.everywhere(
                jax.tree.map(lambda leaf: share * leaf, self._first_message)
            )
        for block in range(0, len(clients), size):
            rows = clients[block : block + size]
            filled = np.resize(rows, size)  # one program for all blocks
            mean = cohort_programs.message_sum(
                self._process,
                self._execution,
                self.state,
                mean,
                self.rows(filled),
                population.counts[filled],
                np.arange(size) < len(rows),
                self._total,
            )
        return mean

    def _share_of_others(self, rows: np.ndarray) -> float:
        """Returns the share in the mean of the clients that are not among `rows`."""
        counts = self._population.counts
        if self._drawn[0].used_aggregator().incremental == "uniform":
            return 1 - len(rows) / len(counts)
        return 1 - counts[rows].sum() / counts.sum()

    def run(self, start: int, count: int) -> core.RoundInfo:
        """Runs rounds; returns their reports, leaves `[count, ...]`."""
        infos = []
        members = self._cohort(start)
        # Prepared a round ahead, so that the host reads while the devices compute.
        prepared = (self._hand_in(members), self._inputs(members))
        for number in range(start, start + count):
            last_rows = None if self._pending is None else self._pending[1]
            state, rows, info = self._round(*prepared, last_rows)
            self.state = self._population.everywhere(state)
            infos.append(info)
            # The devices compute this round while the host writes the last one's rows.
            self.write_back()
            self._pending = (prepared[0].route, rows)
            if number + 1 < start + count:
                members = self._cohort(number + 1)
                prepared = (self._hand_in(members), self._inputs(members))
        fetched = sharding.fetch(infos)
        return jax.tree.map(lambda *leaves: np.stack(leaves), *fetched)

    def _cohort(self, number: int) -> np.ndarray:
        """Returns rows of the members of a round's cohort, equal in all processes."""
        (process, key), total = self._drawn, self._population.total.num_clients
        round = jnp.asarray(number, jnp.int32)
        return np.asarray(cohort_programs.cohort(process, key, round, total))

    def _inputs(self, members: np.ndarray) -> cohort_programs.Inputs:
        """Returns the host's inputs of a round, except for rows."""
        population = self._population
        return cohort_programs.Inputs(
            members=core.Members(
                cohort=np.asarray(members, np.int32),  # pyright: ignore
                population=self._total,
                mean=self._mean_size if self._process.keeps_mean else None,
                use_mean=np.zeros((), bool),  # pyright: ignore
            ),
            fields=population.fields(members, "train"),
            malicious=population.malicious(members),
            is_known=self._is_known(members),  # pyright: ignore
        )

    def _is_known(self, members: np.ndarray) -> np.ndarray:
        """Returns `bool[K]`: which rows are in the files or queued for writing."""
        is_written = self.files.is_written[members]
        if self._pending is None:
            return is_written
        return is_written | np.isin(members, self._pending[0].members)

    def _round(
        self, handed_in: _HandedIn, inputs: cohort_programs.Inputs, last_rows: core.Tree
    ) -> tuple[core.State, Any, core.RoundInfo]:
        """Runs a round, and again with a new mean of all messages if that is needed."""

        def run(inputs: cohort_programs.Inputs) -> tuple[Any, ...]:
            state, rows, info = cohort_programs.round(
                self._process,
                self._model,
                self._execution,
                self.state,
                self._arrive(handed_in, last_rows),
                inputs,
                self._population.shared,
            )
            if handed_in.route.leaving is not None:
                rows = cohort_programs.left(
                    self._execution, rows, handed_in.route.leaving
                )
            return state, rows, info

        after, rows, info = run(inputs)
        # An infinite peak asks for a mean without accumulated rounding errors.
        peak = after.memory.get("peak")
        if peak is None or np.isfinite(sharding.fetch(peak)):
            return after, rows, info
        self.write_back()
        self._pending = (handed_in.route, rows)
        members = dataclasses.replace(
            inputs.members,
            mean=self._mean_of_all(),
            use_mean=np.ones((), bool),  # pyright: ignore
        )
        return run(dataclasses.replace(inputs, members=members))

    def write_back(self) -> None:
        """Writes the rows of the last round, which waits for the devices."""
        if self._pending is not None:
            route, rows = self._pending
            self._pending = None
            self.files.write(route, rows)

    def trained(self, names: tuple[str, ...], clients: np.ndarray) -> dict[str, Any]:
        """Returns parameters `[K, *P]` of predictors of clients `int[K]`."""
        filled = np.resize(clients, self._full(len(clients)))
        networks = cohort_programs.trained(
            self._process,
            self._model,
            names,
            self._execution,
            self.state,
            self.rows(filled),
            self._population.of(filled),
        )
        return jax.tree.map(lambda leaf: leaf[: len(clients)], sharding.fetch(networks))

    def unseen(self, rule: evaluation.Unseen) -> dict[str, Any]:
        """Returns metrics `[models, U]` of clients that never trained, by name."""
        per_block = []
        for rows, count in self._population.unseen(BLOCK):
            values = cohort_programs.unseen(
                self._process,
                self._model,
                rule,
                self.state,
                self._total,
                rows,
                self._population.shared,
            )
            values = sharding.fetch(values)
            per_block.append({n: v[..., :count] for n, v in values.items()})
        return _joined(per_block)

    def evaluate(self, data: tuple[str, ...], clients: np.ndarray) -> dict[str, Any]:
        """Returns metrics `[predictors, data, K]` of clients `int[K]`, by name."""
        per_block = []
        blocks = np.array_split(clients, -(-len(clients) // BLOCK))
        for block in blocks:
            # Blocks of one size share a program.
            filled = np.resize(block, self._full(len(blocks[0])))
            tested = None
            if schedule.POOLED & set(data):
                numbers = self._population.everywhere(filled.astype(np.int32))
                tested = evaluation.Tested(
                    clients=numbers, rows=self._population.tested
                )
            values = cohort_programs.evaluated(
                self._process,
                self._model,
                data,
                self._execution,
                self.state,
                self.rows(filled),
                self._population.of(filled),
                tested,
            )
            values = sharding.fetch(values)
            per_block.append({n: v[..., : len(block)] for n, v in values.items()})
        return _joined(per_block)


def _joined(per_block: list[dict[str, Any]]) -> dict[str, Any]:
    """Joins metrics `[..., K]` of blocks of clients, by name."""
    return {
        name: np.concatenate([values[name] for values in per_block], axis=-1)
        for name in per_block[0]
    }

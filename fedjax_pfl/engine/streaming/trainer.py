"""The trainer that keeps clients' rows in files."""

import contextlib
import dataclasses
import tempfile
from pathlib import Path
from typing import Any

import jax
import numpy as np

from fedjax_pfl import core, data
from fedjax_pfl.core import checks, processes, sharding
from fedjax_pfl.engine import trainer
from fedjax_pfl.engine.groups import PlannedGroup
from fedjax_pfl.engine.recorder import Recorder
from fedjax_pfl.engine.streaming import divided_rows, training
from fedjax_pfl.engine.streaming import population as populations
from fedjax_pfl.results import checkpoint

__all__ = ["Streamed"]


class Streamed:
    """One point with clients' rows in files, not on the device; a `Trainer`."""

    def __init__(self, planned: PlannedGroup, store: checkpoint.Store | None = None):
        """Opens the files and makes the first state.

        Args:
          planned: a group of one point.
          store: of its checkpoints and files; None keeps the files of this process in a
            temporary directory while the trainer lives.
        """
        self._resources = contextlib.ExitStack()
        self._compiling = self._resources.enter_context(trainer.compile_clock())
        self.planned = planned
        if store is None:
            folder = Path(
                self._resources.enter_context(
                    tempfile.TemporaryDirectory(prefix="fedjax_pfl-")
                )
            )
        else:
            folder = store.folder
        (process,), (federation,) = planned.processes, planned.group.federations
        model, key = planned.plan.model, planned.keys[0]
        execution = planned.plan.execution
        population = populations.Population(federation, execution)
        row_shapes = training.row_of(process, model, population, key)
        keep = 1 if store is None else store.keep
        with processes.together():
            files = divided_rows.DividedRows(
                folder, planned.num_clients, row_shapes, execution, keep
            )
        self._training = training.Training(
            process, model, population, key, execution, files
        )
        schedule = planned.plan.schedule
        # Evaluated clients are drawn from the key of the run, on the first device.
        self._first = dataclasses.replace(self._training.state, key=key)
        num_rounds = planned.options.num_rounds
        rounds = [*range(0, num_rounds, schedule.segment), num_rounds]
        if schedule.clients != "participants":
            rounds = rounds[:1]  # the same clients in every round
        self._sample = np.unique(np.concatenate(list(map(self._evaluated, rounds))))
        described = data.describe(population.sample(self._sample))
        self.recorder = Recorder(planned, [described], self._sample)
        self.execution = f"streamed, {execution}"
        self.identity = {}
        # Files of rows continue only with equal data, seeds and settings.
        if store is not None:
            digest = checkpoint.fingerprint((process, key, federation))
            self.identity["data, seeds and settings"] = digest

    @classmethod
    def check(cls, planned: PlannedGroup) -> PlannedGroup:
        """Refuses groups that cannot be streamed; returns the group."""
        # Refused before any file is made.
        populations.check(planned.processes[0])
        _check_devices(planned.plan.execution)
        return planned

    @property
    def compile_seconds(self) -> float:
        """Seconds that JAX has spent on compiling."""
        return self._compiling[0]

    @property
    def like(self) -> core.State:
        """Shapes of the state, which has no rows of clients."""
        return self._training.state

    def compile(self) -> None:
        """Compiles nothing: programs are compiled by their first calls."""

    def check_fits(self) -> None:
        """Refuses nothing: the device holds a cohort's rows only."""

    def begin(self) -> None:
        """Makes nothing: the first state was needed to describe the rows."""

    def restore(self, progress: checkpoint.Progress) -> None:
        """Restores the state and the rows of a checkpoint.

        All processes succeed, or all refuse it.
        """
        problem = None
        try:
            self._training.files.restore(progress.own)
        except (ValueError, KeyError) as error:
            problem = str(error)
        problem = processes.first(problem)  # then it is damaged for all of them
        if problem is not None:
            raise ValueError(problem)
        self._training.take(progress.states)

    def saved(self) -> tuple[core.State, dict[str, np.ndarray], checkpoint.Own]:
        """Returns the state, and which rows of the files are valid."""
        with processes.together():
            self._training.write_back()
            files = self._training.files.commit()
        return self._training.state, {}, files

    def advance(self, active: np.ndarray, done: int, count: int) -> core.RoundInfo:
        """Runs rounds one by one; leaves of the reports are `[1, count, ...]`."""
        del active
        infos = self._training.run(done, count)
        return jax.tree.map(lambda leaf: leaf[None], infos)

    def evaluate(self, data: tuple[str, ...], *, is_last: bool) -> tuple[Any, ...]:
        """Measures clients, and at the end those that never trained."""
        members = self.members(0)
        metrics, pairs = self._training.evaluate(data, members), {}
        if is_last and (rule := self.planned.unseen_rule) is not None:
            pairs = {"unseen": self._training.unseen(rule)}
        metrics, pairs = jax.tree.map(lambda leaf: leaf[None], (metrics, pairs))
        return self.recorder.places(members)[None], metrics, {}, pairs

    def members(self, point: int) -> np.ndarray:
        """Returns rows `int[K]` of the clients that are evaluated now."""
        del point
        # Only participants change, and a draw takes time in all clients.
        if self.planned.plan.schedule.clients != "participants":
            return self._sample
        return self._evaluated(int(sharding.fetch(self._training.state.round)))

    def _evaluated(self, round: int) -> np.ndarray:
        """Returns rows `int[K]` of the clients that are evaluated after a round."""
        state = dataclasses.replace(self._first, round=np.asarray(round, np.int32))
        process, count = self.planned.processes[0], self.planned.num_clients
        members = self.planned.plan.schedule.members(process, state, count)
        return np.arange(count) if members is None else np.sort(np.asarray(members))

    def trained(
        self, point: int, members: np.ndarray, names: tuple[str, ...]
    ) -> dict[str, Any]:
        """Returns trained parameters `[K, *P]` of predictors of clients `int[K]`."""
        del point
        return self._training.trained(names, members)

    def close(self) -> None:
        """Removes temporary files of rows."""
        self._resources.close()


def _check_devices(execution: sharding.Execution) -> None:
    """Refuses several processes whose devices do not all share the clients."""
    count = jax.process_count()
    is_all = sharding.num_devices(execution) == jax.device_count()
    if count > 1 and not is_all:
        raise checks.InputError(
            f"A streamed training of {count} processes needs execution='shard', with"
            f" all {jax.device_count()} devices, got {str(execution)!r}."
        )

"""One streamed training with its history and its checkpoints."""

import dataclasses
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_pfl import core, data
from fedjax_pfl.core import sharding, struct
from fedjax_pfl.engine import (
    auto_execution,
    driver,
    evaluation,
    groups,
    options,
    recorder,
)
from fedjax_pfl.engine.streaming import population as streamed
from fedjax_pfl.engine.streaming import row_store
from fedjax_pfl.results import checkpoint, history

__all__ = ["Run"]


class Run:
    """The training, its history and its checkpoints."""

    def __init__(
        self,
        group: groups.Group,
        settings: options.Settings,
        store: checkpoint.Store | None,
        path: Path,
        keep: int,
        compiling: list[float],
    ):
        """Makes the first state, or reads that of the newest checkpoint."""
        self._settings, self._store, self._compiling = settings, store, compiling
        self._started = time.perf_counter()
        federation, key = group.federations[0], groups.own_key(group.keys[0])
        model = group.model.for_federation(federation)
        dtype = jnp.zeros(()).dtype
        process = struct.as_arrays(group.processes[0], dtype)
        execution = settings.execution
        if isinstance(execution, str):
            execution = auto_execution.choose(process, model, federation)
        execution = auto_execution.form_chunks(execution, [federation])
        population = streamed.Population(federation)
        like = streamed.Training.row_of(process, model, population, key)
        self._rows = row_store.RowStore(path, federation.num_clients, like, keep)
        self._training = streamed.Training(
            process, model, population, key, execution, self._rows
        )
        state = self._training.state
        members = settings.schedule.members(process, state, federation.num_clients)
        self._members = np.sort(np.asarray(members))
        sample = population.of(self._members)
        self.recorder = recorder.Recorder(
            points=({},),
            models=self._predictors(process, model, sample),
            data=settings.schedule.data,
            num_rounds=settings.num_rounds,
            federations=[data.describe(sample)],
            stops=process.on_nonfinite == "stop",
            stop_when=settings.stop_when,
            clients=self._members,
            num_clients=federation.num_clients,
        )
        how = f"streamed, {execution}"
        self.config = groups.configuration(group, settings, model, how)
        self._identity = self.config | {
            "dtype": str(dtype),
            "generator": core.GENERATOR,
            "stop_when": str(settings.stop_when),
            "data, seeds and settings": checkpoint.fingerprint(
                (process, key, federation)
            ),
        }
        self.done, self._earlier, self.ended = 0, (0.0, 0.0), False
        self._is_new = True
        self._go_on()

    def _predictors(self, process: Any, model: Any, sample: Any) -> tuple[str, ...]:
        """Names of what is evaluated."""
        rows = self._training.rows(self._members[:1])
        state = dataclasses.replace(self._training.state, clients=rows[0])
        return evaluation.predictor_names(process, state, model, sample)

    def _go_on(self) -> None:
        """Continues what the checkpoints have."""
        if self._store is None:
            return

        def accept(found: checkpoint.Progress) -> None:
            arrays = {
                name: found.arrays[f"rows/{name}"] for name in row_store.RowStore.ARRAYS
            }
            self._rows.restore(arrays)

        state = self._training.state
        found = self._store.latest(self._identity, state, accept)
        if found is not None:
            self._is_new = False
            self.recorder.restore(found.arrays)
            self._training.state = found.states
            self.done, self._earlier = found.done, found.seconds
            self.ended = found.ended

    def train(
        self,
        interrupt: Callable[[], str | None],
        evaluated: Callable[[recorder.Recorder, int], None],
    ) -> history.History:
        """Rounds and evaluations until the end."""
        if self._is_new:
            self._measure()
        for number in range(len(self.recorder.rounds)):
            evaluated(self.recorder, number)
        while not self.ended:
            reason = interrupt()
            if reason is not None:
                self._save()
                raise driver.Interrupted(reason, self.done)
            segment = self._settings.schedule.segment
            count = min(segment, self._settings.num_rounds - self.done)
            infos = self._training.run(self.done, count)
            self.recorder.ran(
                self.done, count, jax.tree.map(lambda leaf: leaf[None], infos)
            )
            self.done += count
            self._measure()
            is_due = self.ended or (self._store is not None and self._store.due())
            with checkpoint.kept(self._save, is_due=is_due):
                evaluated(self.recorder, len(self.recorder.rounds) - 1)
        return self.recorder.finish(self.config, *self._seconds())

    def members(self, point: int) -> np.ndarray:
        """Rows `int[K]` of the clients that are evaluated."""
        del point
        return self._members

    def trained(
        self, point: int, members: np.ndarray, names: tuple[str, ...]
    ) -> dict[str, Any]:
        """What was trained of some predictors `[K, *P]` of clients `int[K]`."""
        del point
        return sharding.fetch(self._training.trained(names, members))

    def _measure(self) -> None:
        """Evaluates what is due now, and everything at the end."""
        schedule, rounds = self._settings.schedule, self._settings.num_rounds

        def look(due: tuple[str, ...], again: np.ndarray | None) -> None:
            found = self._training.evaluate(due, self._members)
            metrics = {name: value[None] for name, value in found.items()}
            self.recorder.evaluated(self.done, due, None, metrics, {}, {}, again)

        def ended() -> bool:
            return self.done >= rounds or self.recorder.all_ended()

        due = schedule.due(self.done, ended())
        look(due, None)
        self.ended = ended()
        if self.ended and due != schedule.data:
            look(schedule.data, np.ones(1, bool))

    def _seconds(self) -> tuple[float, float]:
        """Compiling and running so far."""
        compiling = self._earlier[0] + self._compiling[0]
        total = sum(self._earlier) + time.perf_counter() - self._started
        return min(compiling, total), max(total - compiling, 0.0)

    def _save(self) -> None:
        """Writes a checkpoint, where there is a place for it."""
        if self._store is None:
            return
        self._training.write_back()
        rows = {f"rows/{name}": v for name, v in self._rows.commit().items()}
        self._store.save(
            self._identity,
            checkpoint.Progress(
                done=self.done,
                states=self._training.state,
                arrays=self.recorder.arrays() | rows,
                seconds=self._seconds(),
                ended=self.ended,
            ),
        )

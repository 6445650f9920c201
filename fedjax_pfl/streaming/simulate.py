"""What a user calls for populations beyond the device's memory."""

import contextlib
import dataclasses
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_pfl import callbacks as callbacks_
from fedjax_pfl import (
    checkpoint,
    checks,
    clients,
    data,
    driver,
    evaluate,
    folders,
    given,
    grids,
    history,
    planning,
    results,
    stopping,
    struct,
    training,
    types,
)
from fedjax_pfl import execution as execution_
from fedjax_pfl import recorder as recorder_
from fedjax_pfl import settings as settings_
from fedjax_pfl.process import FederatedProcess
from fedjax_pfl.streaming import driver as streamed
from fedjax_pfl.streaming import rows as rows_

__all__ = ["EVAL_CLIENTS", "check", "run", "simulate_streamed"]

EVAL_CLIENTS = 1000
"""Most clients evaluated by default."""

_UNAVAILABLE = ("others", "everybody")


def simulate_streamed(
    key: types.Key,
    process: FederatedProcess,
    model: Any,
    federation: types.Federation,
    num_rounds: int,
    *,
    eval_every: int | None = None,
    execution: str | clients.Execution = "auto",
    evaluate_on: Sequence[str] | Mapping[str, int | None] = settings_.EVALUATE_ON,
    eval_clients: int = EVAL_CLIENTS,
    stop_when: stopping.StopWhen | None = None,
    checkpoints: checkpoint.Checkpoints | None = None,
    max_minutes: float | None = None,
    callbacks: Sequence[callbacks_.Callback] = (),
    progress: bool = True,
) -> results.Result:
    """Runs one training whose clients' states are in a file, not on the device.

    For populations that do not fit in the device's memory: a round reads and writes the
    rows of its cohort only, and a client that never took part takes no space. Clients,
    cohorts and minibatches are those of `simulate`; results agree to rounding. The pool
    of examples stays on the device. Methods that look at all clients in a round, and
    rules other than means over all clients' messages, are refused.

    Args:
      key: see `simulate`.
      process: see `simulate`.
      model: see `simulate`.
      federation: data of N clients; rows of clients may be NumPy arrays.
      num_rounds: rounds R, at least 1.
      eval_every: rounds between evaluations; None gives about 20 evaluations.
      execution: of a cohort, as in `simulate`.
      evaluate_on: `test`, `validation` or `train`, as in `simulate`.
      eval_clients: size of the sample of clients that is evaluated, drawn once per
        seed; all clients where there are no more. The result is about these clients.
      stop_when: see `simulate`.
      checkpoints: see `simulate`; the file with the rows is kept there, too. None
        keeps it in a temporary directory for as long as the training runs.
      max_minutes: see `simulate`.
      callbacks: see `simulate`.
      progress: see `simulate`.

    Returns:
      The result for the sample of clients, which `client` names by their rows.

    Raises:
      InputError: if an argument does not fit, in one sentence.
      Interrupted: after `max_minutes`.
    """
    given.check(key, process, model, federation)
    checks.positive_int("eval_clients", eval_clients)
    settings = settings_.Settings.parse(
        num_rounds,
        eval_every=eval_every,
        execution=execution,
        evaluate_on=evaluate_on,
        eval_clients=eval_clients,
        stop_when=stop_when,
    )
    group = planning.Group(
        points=[{}],
        processes=[process],
        model=model,
        federations=[federation],
        described=[],
        keys=[key],
        config=grids.config_of(process, model, federation),
    )
    return run(
        group,
        settings,
        checkpoints=checkpoints,
        interrupt=training.time_limit(max_minutes),
        callbacks=callbacks,
        progress=progress,
    )


def run(
    group: planning.Group,
    settings: settings_.Settings,
    *,
    checkpoints: checkpoint.Checkpoints | None = None,
    interrupt: Callable[[], str | None] = lambda: None,
    callbacks: Sequence[callbacks_.Callback] = (),
    progress: bool = True,
) -> results.Result:
    """Trains a group of one point.

    Args:
      group: the point; what is `described` of it is not needed.
      settings: how it is trained; a number of clients is evaluated.
      checkpoints: where it is saved, and continued from.
      interrupt: asked between evaluations; a reason ends the training.
      callbacks: told of the evaluations.
      progress: whether to show it.

    Returns:
      The result.

    Raises:
      Interrupted: if there was a reason to end.
      InputError: if something does not fit, in one sentence.
    """
    check(group, settings)
    training.warn_of_idle_attacks([group])
    settings = _with_sample(group, settings)
    provenance = training.provenance()
    name = type(group.processes[0].algorithm).__name__
    with contextlib.ExitStack() as stack:
        folder, store = Path(stack.enter_context(_temporary())), None
        if checkpoints is not None:
            stack.enter_context(folders.locked(checkpoints.path))
            checkpoints.check(1)
            store = checkpoints.store(0, name)
            folder = store.folder
        keep = 1 if checkpoints is None else checkpoints.keep
        watch = stack.enter_context(
            callbacks_.watching(callbacks, [group], settings, progress=progress)
        )
        with driver.compile_clock() as compiling:
            going = _Run(group, settings, store, folder / "rows.bin", keep, compiling)
            record = going.train(interrupt, watch.evaluated(0))
        watch.result = results.Result(groups=(record,), provenance=provenance)
    return watch.result


def _with_sample(
    group: planning.Group, settings: settings_.Settings
) -> settings_.Settings:
    """The settings with a sample of clients that is not larger than their number."""
    schedule, count = settings.schedule, group.federations[0].num_clients
    clients = min(int(schedule.clients), count)
    return dataclasses.replace(
        settings, schedule=dataclasses.replace(schedule, clients=clients)
    )


@contextlib.contextmanager
def _temporary() -> Iterator[str]:
    """A directory that goes with the training."""
    with tempfile.TemporaryDirectory(prefix="fedjax_pfl-") as folder:
        yield folder


def check(group: planning.Group, settings: settings_.Settings) -> None:
    """Lets every part object before anything is trained.

    Args:
      group: what is to be trained.
      settings: how.

    Raises:
      InputError: if something does not fit, in one sentence.
    """
    if len(group.points) != 1:
        raise checks.InputError(
            f"A streamed training has one grid point, got {len(group.points)}."
        )
    process, federation = group.processes[0], group.federations[0]
    streamed.check(process)
    if isinstance(group.model, types.SeriesModel):
        raise checks.InputError(
            "A streamed training keeps no memory of series, which"
            f" {type(group.model).__name__} trains with; expected another model, or"
            " `simulate`."
        )
    for name in _UNAVAILABLE:
        if name in settings.schedule.data:
            raise checks.InputError(
                f"A streamed training evaluates clients on their own train, validation"
                f" and test examples, not on {name!r}."
            )
    if not isinstance(settings.schedule.clients, int):
        raise checks.InputError(
            "A streamed training evaluates a sample of clients: expected a number of"
            f" eval_clients, got {settings.schedule.clients!r}."
        )
    planning.check_examples([federation])
    size = process.participation.cohort_size(federation.num_clients)
    process.check_cohort(size, federation.num_clients)


class _Run:
    """The training, its history and its checkpoints."""

    def __init__(
        self,
        group: planning.Group,
        settings: settings_.Settings,
        store: checkpoint.Store | None,
        path: Path,
        keep: int,
        compiling: list[float],
    ):
        """Makes the first state, or reads that of the newest checkpoint."""
        self._settings, self._store, self._compiling = settings, store, compiling
        self._started = time.perf_counter()
        federation, key = group.federations[0], planning.own_key(group.keys[0])
        model = group.model.for_federation(federation)
        dtype = jnp.zeros(()).dtype
        process = struct.as_arrays(group.processes[0], dtype)
        execution = settings.execution
        if isinstance(execution, str):
            execution = execution_.choose(process, model, federation)
        execution = execution_.form_chunks(execution, [federation])
        population = streamed.Population(federation)
        like = streamed.Training.row_of(process, model, population, key)
        self._rows = rows_.RowStore(path, federation.num_clients, like, keep)
        self._training = streamed.Training(
            process, model, population, key, execution, self._rows
        )
        state = self._training.state
        members = settings.schedule.members(process, state, federation.num_clients)
        self._members = np.sort(np.asarray(members))
        sample = population.of(self._members)
        self.recorder = recorder_.Recorder(
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
        self.config = planning.configuration(group, settings, model, how)
        self._identity = self.config | {
            "dtype": str(dtype),
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
        return evaluate.predictor_names(process, state, model, sample)

    def _go_on(self) -> None:
        """Continues what the checkpoints have."""
        if self._store is None:
            return

        def accept(found: checkpoint.Progress) -> None:
            arrays = {
                name: found.arrays[f"rows/{name}"] for name in rows_.RowStore.ARRAYS
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
        evaluated: Callable[[recorder_.Recorder, int], None],
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

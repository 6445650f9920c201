"""What a user calls for populations beyond the device's memory."""

import contextlib
import dataclasses
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedjax_pfl import core, results
from fedjax_pfl.core import checks, sharding
from fedjax_pfl.engine import (
    driver,
    grids,
    groups,
    options,
    save_models,
    simulation,
    stopping,
    validate,
)
from fedjax_pfl.engine.callbacks import Callback, watching
from fedjax_pfl.engine.process import FederatedProcess
from fedjax_pfl.engine.streaming import population as streamed
from fedjax_pfl.engine.streaming.run import Run
from fedjax_pfl.results import checkpoint, directories

__all__ = ["EVAL_CLIENTS", "check", "run", "simulate_streamed"]

EVAL_CLIENTS = 1000
"""Most clients evaluated by default."""

_UNAVAILABLE = ("others", "everybody")


def simulate_streamed(
    key: core.Key,
    process: FederatedProcess,
    model: Any,
    federation: core.Federation,
    num_rounds: int,
    *,
    eval_every: int | None = None,
    execution: str | sharding.Execution = "auto",
    evaluate_on: Sequence[str] | Mapping[str, int | None] = options.EVALUATE_ON,
    eval_clients: int = EVAL_CLIENTS,
    stop_when: stopping.StopWhen | None = None,
    checkpoints: checkpoint.Checkpoints | None = None,
    max_minutes: float | None = None,
    callbacks: Sequence[Callback] = (),
    models_to: str | os.PathLike[str] | None = None,
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
      models_to: see `simulate`; of the sample of clients that is evaluated.
      progress: see `simulate`.

    Returns:
      The result for the sample of clients, which `client` names by their rows.

    Raises:
      InputError: if an argument does not fit, in one sentence.
      Interrupted: after `max_minutes`.
    """
    validate.check(key, process, model, federation)
    checks.positive_int("eval_clients", eval_clients)
    settings = options.Settings.parse(
        num_rounds,
        eval_every=eval_every,
        execution=execution,
        evaluate_on=evaluate_on,
        eval_clients=eval_clients,
        stop_when=stop_when,
    )
    group = groups.Group(
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
        interrupt=simulation.time_limit(max_minutes),
        callbacks=callbacks,
        models_to=models_to,
        progress=progress,
    )


def run(
    group: groups.Group,
    settings: options.Settings,
    *,
    checkpoints: checkpoint.Checkpoints | None = None,
    interrupt: Callable[[], str | None] = lambda: None,
    callbacks: Sequence[Callback] = (),
    models_to: str | os.PathLike[str] | None = None,
    progress: bool = True,
) -> results.Result:
    """Trains a group of one point.

    Args:
      group: the point; what is `described` of it is not needed.
      settings: how it is trained; a number of clients is evaluated.
      checkpoints: where it is saved, and continued from.
      interrupt: asked between evaluations; a reason ends the training.
      callbacks: told of the evaluations.
      models_to: new directory for the trained models, or None.
      progress: whether to show it.

    Returns:
      The result.

    Raises:
      Interrupted: if there was a reason to end.
      InputError: if something does not fit, in one sentence.
    """
    check(group, settings, models_to)
    simulation.warn_of_idle_parts([group])
    settings = _with_sample(group, settings)
    provenance = simulation.provenance()
    name = type(group.processes[0].algorithm).__name__
    with contextlib.ExitStack() as stack:
        folder, store = Path(stack.enter_context(_temporary())), None
        if checkpoints is not None:
            stack.enter_context(directories.locked(checkpoints.path))
            checkpoints.check(1)
            store = checkpoints.store(0, name)
            folder = store.folder
        keep = 1 if checkpoints is None else checkpoints.keep
        models = stack.enter_context(save_models.writer(models_to))
        watch = stack.enter_context(
            watching(callbacks, [group], settings, progress=progress)
        )
        with driver.compile_clock() as compiling:
            going = Run(group, settings, store, folder / "rows.bin", keep, compiling)
            record = going.train(interrupt, watch.evaluated(0))
        models.add(0, group, record, going)
        watch.result = results.Result(groups=(record,), provenance=provenance)
        models.finish(watch.result)
    return watch.result


def _with_sample(group: groups.Group, settings: options.Settings) -> options.Settings:
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


def check(
    group: groups.Group,
    settings: options.Settings,
    models_to: str | os.PathLike[str] | None = None,
) -> None:
    """Lets every part object before anything is trained.

    Args:
      group: what is to be trained.
      settings: how.
      models_to: see `simulate`.

    Raises:
      InputError: if something does not fit, in one sentence.
    """
    if len(group.points) != 1:
        raise checks.InputError(
            f"A streamed training has one grid point, got {len(group.points)}."
        )
    process, federation = group.processes[0], group.federations[0]
    streamed.check(process)
    if isinstance(group.model, core.SequenceModel):
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
    groups.check_examples([federation])
    size = process.participation.cohort_size(federation.num_clients)
    process.check_cohort(size, federation.num_clients)
    if models_to is not None:
        save_models.check([group], settings, models_to)

"""Trainings of a benchmark: a search for every method, then new seeds of its best.

A directory has one folder per data set, with one folder per row:

    search/      all trainings of the search, if the method has settings to search
    learning/    the training with the searched path, if fields are learned
    final/       trainings of the best setting, with seeds outside of the search
    method.json  written last: it completes the method
"""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fedjax_pfl import algorithms, engine, local
from fedjax_pfl.benchmark import choice, tasks
from fedjax_pfl.core import checks, struct, temporaries
from fedjax_pfl.engine import budgets
from fedjax_pfl.engine.options import time_left
from fedjax_pfl.results import (
    checkpoint,
    directories,
    documents,
    metrics,
    plain_files,
)

__all__ = ["DEVICES", "Method", "is_finished", "read", "run"]

DEVICES = local.Devices(examples_per_second=100.0, spread=1.0, upload=1e5, download=1e6)
"""Clients' devices in virtual time: some take ten times as long as others."""
EVALUATIONS = 20
"""Evaluations of a training; the last ones determine whether it has converged."""
_WORK = ".work"  # a method's unfinished trainings


class Method(documents.Document):
    """Content of `method.json`."""

    name: str  # of the method, or of its row with learned fields
    model: str  # that ranks the method
    settings: dict[str, Any]  # the best values by dotted name
    tried: int  # settings of the search; 0 without one
    budget: float  # gradients of single examples allowed for the search
    spent: float  # gradients that the search took
    command: str  # repeats the row; empty for a program


_METHOD = documents.Sealed("method.json", "fedjax_pfl method 1", Method)


def run(
    directory: str | Path,
    task: tasks.Task,
    *,
    say: Callable[[str], None] = print,
    max_minutes: float | None = None,
    resume_anyway: bool = False,
    **options: Any,
) -> None:
    """Tunes and trains every method of a task that is not finished.

    Repeat an interrupted call to continue: finished methods stay unchanged, and the
    unfinished one continues from its checkpoints.

    Args:
      directory: directory of the benchmark.
      task: the comparison.
      say: receives a line about every method.
      max_minutes: minutes after which the call ends with an error, or None.
      resume_anyway: whether to continue from checkpoints of other code.
      **options: `execution`, `memory_limit`, `progress` and `callbacks` of `grid`.

    Raises:
      InputError: if an argument does not fit.
      Interrupted: after `max_minutes`.
    """
    if task.spec.build().num_classes is None:
        raise checks.InputError(
            "Expected data with classes, since a benchmark ranks classifiers, got"
            f" {task.spec!r}."
        )
    if max_minutes is not None:
        checks.number("max_minutes", max_minutes, above=0)
    minutes_left = time_left(max_minutes)
    folder = Path(directory) / task.name
    places = {name: folder / plain_files.plain_name(name) for name in task.rows}
    left = [name for name, place in places.items() if not is_finished(place)]
    if not left:
        say(f"{task.name} is finished: {folder}")
        return
    # Asks for the costs of all methods, so a finished task returns before.
    budget = tasks.budget_of(task)
    say(f"{task.name}: every search has {budget.count:,.0f} gradients.")
    for number, name in enumerate(places, start=1):
        head = f"{task.name} {number}/{len(places)} {name}"
        if name not in left:
            say(f"{head} is finished.")
            continue
        say(head)
        _train(places[name], task, name, budget, minutes_left, resume_anyway, options)


def is_finished(folder: Path) -> bool:
    """Returns whether a method's trainings are complete."""
    return _METHOD.is_in(folder)


def read(folder: Path) -> Method:
    """Reads the file of a method's folder."""
    try:
        return _METHOD.read(folder)
    except (OSError, ValueError) as error:
        path = folder / _METHOD.name
        raise checks.InputError(f"Cannot read '{path}': {error}.") from error


def _train(
    folder: Path,
    task: tasks.Task,
    name: str,
    budget: budgets.Gradients,
    minutes_left: Callable[[], float | None],
    resume_anyway: bool,
    options: dict[str, Any],
) -> None:
    """Searches or learns a method's settings, and trains the best with other seeds."""
    work = folder.with_name(f"{folder.name}{_WORK}")

    def options_of(part: str, *evaluated: str) -> dict[str, Any]:
        place = checkpoint.Checkpoints(work / part, resume_anyway=resume_anyway)
        values = {"checkpoints": place, "max_minutes": minutes_left()}
        values["metric"] = task.metric
        return options | values | {"evaluate_on": evaluated}

    # A fine-tuned model ranks its method, and so chooses its settings.
    process = task.rows[name]
    model = None if process.algorithm.fine_tune is None else "fine-tuned"
    if name.endswith(tasks.START):
        best = choice.middle(process)
    else:
        choose = choice.learn if name.endswith(tasks.LEARNED) else choice.search
        best = choose(
            (tasks.key(), process, task.model, task.spec),
            task.num_rounds,
            budget=budget,
            seeds=task.search_seeds,
            by_model=model,
            **options_of("search", "validation"),
        )
    final = engine.grid(
        tasks.key(),
        _on_devices(best.process, task.spec.build().num_clients),
        task.model,
        task.spec,
        {"seed": task.seeds},
        task.num_rounds,
        eval_every=max(1, task.num_rounds // EVALUATIONS),
        **options_of("final", "validation", "test"),
    )
    judged = model or metrics.judge(final.groups[0].models)
    folder_name = plain_files.plain_name(name.replace(tasks.START, tasks.LEARNED))
    command = task.command and f"{task.command} --only {folder_name}"
    content = {
        "name": name,
        "model": judged,
        "settings": {n: struct.plain(v) for n, v in best.settings.items()},
        "tried": best.tried,
        "spent": best.spent,
        "command": command,
    }
    # In one step: an interrupted call finds either no folder or a finished method.
    with directories.new(folder) as temporary:
        for part, result in best.trainings.items():
            result.save(temporary / part)
        final.save(temporary / "final")
        _METHOD.write(temporary, **content, budget=budget.count)
    temporaries.remove(work)


def _on_devices(
    process: engine.FederatedProcess, num_clients: int
) -> engine.FederatedProcess:
    """Adds the length of rounds in virtual time, without changing the training."""
    # Only rounds of all clients have one, without random work or training on a server.
    if (
        not isinstance(process.participation, local.AllClients)
        or not isinstance(process.work, local.FullWork)
        or isinstance(process.algorithm, algorithms.Centralized)
    ):
        return process
    timed = local.Synchronous(size=num_clients, devices=DEVICES)
    return dataclasses.replace(process, participation=timed)

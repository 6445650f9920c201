"""Trainings of a benchmark: a search for every method, then new seeds of its best.

Fields of some methods are learned, too, in rows of their own. A directory has one
folder per data set, and in it one per row:

    search/      all trainings of the search, if the method has anything to search
    learning/    the training whose path was searched, where fields are learned
    final/       trainings of the best setting, with seeds that the search did not see
    method.json  written last: with it the method is finished
"""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

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
"""Evaluations of a training, of which the last ones say whether it has converged."""
_FILE, _FORMAT = "method.json", "fedjax_pfl method 1"
_WORK = ".work"  # a method's unfinished trainings


class Method(documents.Document):
    """Content of `method.json`.

    Attributes:
      name: of the method, or of its row with learned fields.
      model: which of its models is judged.
      settings: the best values by dotted name.
      tried: settings of the search; 0 where there was none.
      budget: gradients of single examples that the search was allowed to take.
      spent: gradients that it took.
      command: line that repeats the method's row; empty for a program's.
    """

    format: Literal["fedjax_pfl method 1"]
    name: str
    model: str
    settings: dict[str, Any]
    tried: int
    budget: float
    spent: float
    command: str


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

    A call that was interrupted is repeated: finished methods are left as they are, and
    the one that was in training goes on from its checkpoints.

    Args:
      directory: of the benchmark.
      task: what is compared.
      say: is told of every method.
      max_minutes: after which the call ends with an error, or None.
      resume_anyway: whether to go on from checkpoints of other code.
      **options: `execution`, `memory_limit`, `progress` and `callbacks` of `grid`.

    Raises:
      InputError: if something does not fit, in one sentence.
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
    return (folder / _FILE).is_file()


def read(folder: Path) -> Method:
    """Reads what a method's folder says of itself."""
    try:
        return documents.read(folder / _FILE, Method)
    except (OSError, ValueError) as error:
        raise checks.InputError(f"Cannot read '{folder / _FILE}': {error}.") from error


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
        more = {"checkpoints": place, "max_minutes": minutes_left()}
        more["metric"] = task.metric
        return options | more | {"evaluate_on": evaluated}

    process = task.rows[name]
    model = None if process.algorithm.fine_tune is None else "fine-tuned"
    if name.endswith(tasks.START):
        chosen = choice.middle(process)
    else:
        choose = choice.learn if name.endswith(tasks.LEARNED) else choice.search
        chosen = choose(
            (tasks.key(), process, task.model, task.spec),
            task.num_rounds,
            budget=budget,
            seeds=task.search_seeds,
            by_model=model,
            **options_of("search", "validation"),
        )
    final = engine.grid(
        tasks.key(),
        _on_devices(chosen.process, task.spec.build().num_clients),
        task.model,
        task.spec,
        {"seed": task.seeds},
        task.num_rounds,
        eval_every=max(1, task.num_rounds // EVALUATIONS),
        **options_of("final", "validation", "test"),
    )
    judged = model or metrics.judge(final.groups[0].models)
    own = plain_files.plain_name(name.replace(tasks.START, tasks.LEARNED))
    command = task.command and f"{task.command} --only {own}"
    told = {
        "format": _FORMAT,
        "name": name,
        "model": judged,
        "settings": {n: struct.plain(v) for n, v in chosen.settings.items()},
        "tried": chosen.tried,
        "spent": chosen.spent,
        "command": command,
    }
    with directories.new(folder) as made:
        for part, result in chosen.trainings.items():
            result.save(made / part)
        final.save(made / "final")
        text = documents.seal(told | {"budget": budget.count})
        (made / _FILE).write_text(text, "utf-8")
    temporaries.remove(work)


def _on_devices(
    process: engine.FederatedProcess, num_clients: int
) -> engine.FederatedProcess:
    """Gives rounds of all clients their length in virtual time, and changes no more.

    Rounds of some clients, work of a random length and training on a server have none.
    """
    if (
        not isinstance(process.participation, local.AllClients)
        or not isinstance(process.work, local.FullWork)
        or isinstance(process.algorithm, algorithms.Centralized)
    ):
        return process
    timed = local.Synchronous(size=num_clients, devices=DEVICES)
    return dataclasses.replace(process, participation=timed)

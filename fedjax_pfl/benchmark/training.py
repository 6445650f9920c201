"""Trainings of a benchmark: a search for every method, then new seeds of its best.

Fields of some methods are learned, too, in rows of their own. A directory has one
folder per data set, and in it one per row:

    search/      all trainings of the search, if the method has anything to search
    learning/    the training whose path was searched, where fields are learned
    final/       trainings of the best setting, with seeds that the search did not see
    method.json  written last: with it the method is finished
"""

import dataclasses
import itertools
import statistics
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

import jax

from fedjax_pfl import core, engine
from fedjax_pfl.benchmark import choice
from fedjax_pfl.core import checks, struct
from fedjax_pfl.engine import budgets, grids, tuning
from fedjax_pfl.engine.options import Options, time_left
from fedjax_pfl.results import (
    checkpoint,
    directories,
    documents,
    metrics,
    plain_files,
)

__all__ = ["LEARNED", "Method", "Task", "budget_of", "is_finished", "name_of", "read"]
__all__ += ["run"]

LEARNED = " learned"
"""End of the names of rows whose fields were learned in place of searched."""
NUM_SEARCH_SEEDS = 3
EVALUATIONS = 20
"""Evaluations of a training, of which the last tenth says whether it has converged."""
_FILE, _FORMAT = "method.json", "fedjax_pfl method 1"
_WORK = ".work"  # a method's unfinished trainings


class Method(documents.Document):
    """Content of `method.json`.

    Attributes:
      name: of the method, or of its row with learned fields.
      model: which of its models is judged.
      settings: the best values by dotted name.
      tried: settings of the search; 0 where there was none.
      budget: client-steps that the search was allowed to take.
      spent: client-steps that it took.
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


@dataclasses.dataclass(frozen=True)
class Task:
    """Methods that are compared on one data set.

    Attributes:
      name: of the data set and its distribution; a folder's name.
      methods: processes by the names of methods, in the order of the page.
      model: what they train.
      spec: the federation, with validation examples.
      num_rounds: rounds R of a training.
      seeds: of the trainings that are compared, at least two.
      budget: of every method's search; None for what 27 settings of the usual method
        take (`budget_of`).
      command: line that repeats the task; empty for a program's.
      learned: processes of methods by name that have a row, called `NAME learned`, in
        which the fields that a search would vary are learned (`fp.learn`) with the same
        budget; see `benchmark.choice.learn`.
    """

    name: str
    methods: Mapping[str, engine.FederatedProcess]
    model: Any
    spec: core.Specification
    num_rounds: int
    seeds: tuple[int, ...] = (10, 11, 12, 13, 14)
    budget: budgets.ClientSteps | None = None
    command: str = ""
    learned: Mapping[str, engine.FederatedProcess] = dataclasses.field(
        default_factory=dict
    )

    def __post_init__(self):
        if plain_files.plain_name(self.name) != self.name:
            raise checks.InputError(
                "Expected a name of letters, digits and hyphens, which is a folder's,"
                f" got {self.name!r}."
            )
        names = [*self.methods, *(name + LEARNED for name in self.learned)]
        if not names:
            raise checks.InputError("Expected at least one method, got none.")
        if any(name.endswith(LEARNED) for name in self.methods):
            raise checks.InputError(
                f"Expected names that do not end in '{LEARNED}', as those of rows with"
                f" learned fields do, got {', '.join(self.methods)}."
            )
        if len(set(map(plain_files.plain_name, names))) < len(names):
            raise checks.InputError(
                "Expected names that differ in letters or digits, which folders have,"
                f" got {', '.join(names)}."
            )
        checks.positive_int("num_rounds", self.num_rounds)
        if len(set(self.seeds)) < max(2, len(self.seeds)):
            raise checks.InputError(
                f"Expected two or more different seeds, got {list(self.seeds)}: ranks"
                " are of differences paired by seed."
            )
        for name, process in self.learned.items():
            choice.check_learned(name, process)

    @property
    def rows(self) -> dict[str, engine.FederatedProcess]:
        """Processes by the names of rows: methods, then those whose fields learn."""
        learned = {name + LEARNED: process for name, process in self.learned.items()}
        return {**self.methods, **learned}

    @property
    def search_seeds(self) -> tuple[int, ...]:
        """The first seeds that are none of those compared."""
        others = (seed for seed in itertools.count() if seed not in self.seeds)
        return tuple(itertools.islice(others, NUM_SEARCH_SEEDS))


def name_of(process: engine.FederatedProcess) -> str:
    """Names a method by its class and what makes another method of it.

    Example:
      >>> import fedjax_pfl as fp
      >>> name_of(fp.FederatedProcess(algorithm=fp.FedAvg(fine_tune=fp.SGD())))
      'FedAvg fine-tuned'
    """
    algorithm = process.algorithm
    name = type(algorithm).__name__
    if getattr(algorithm, "search", None) is not None:
        name = f"S-{name}"
    if getattr(algorithm, "fine_tune", None) is not None:
        name = f"{name} fine-tuned"
    if process.aggregator is not None:
        name = f"{name} {type(process.aggregator).__name__}"
    return name


def budget_of(task: Task) -> budgets.ClientSteps:
    """Returns the client-steps that every method of a task may search with.

    If they are not given, those of a search over 27 settings for the method whose
    rounds take the median number of steps, or, if that is more, those of the smallest
    search for the method whose rounds take the most.
    """
    if task.budget is not None:
        return task.budget
    federations = grids.Federations()
    rule = engine.Halving()
    every = rule.first_rung(task.num_rounds)
    options = Options(num_rounds=task.num_rounds, stop_when=rule, eval_every=every)
    steps, least = [], [1]
    for name, process in {**task.learned, **task.methods}.items():
        if not tuning.search_space(process):
            continue
        point = [{"seed": task.search_seeds[0]}]
        base = (_key(), process, task.model, task.spec)
        (group,) = grids.groups_of(*base, point, federations)
        steps.append(tuning.local_steps(group, options))
        rounds = tuning.rounds_of(rule.eta, options)
        if name in task.learned:  # for a round of learning at least
            rounds += choice.trainings_of(process)
        least.append(steps[-1] * rounds)
    usual = statistics.median_low(steps or [1])
    usual *= tuning.rounds_of(tuning.NUM_SETTINGS, options)
    return budgets.ClientSteps(NUM_SEARCH_SEEDS * max(usual, *least))


def run(
    directory: str | Path,
    task: Task,
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
            "Expected data with classes, whose accuracy a benchmark ranks, got"
            f" {task.spec!r}."
        )
    checks.number("max_minutes", max_minutes, above=0)
    minutes_left = time_left(max_minutes)
    folder = Path(directory) / task.name
    places = {name: folder / plain_files.plain_name(name) for name in task.rows}
    left = [name for name, place in places.items() if not is_finished(place)]
    if not left:
        say(f"{task.name} is finished: {folder}")
        return
    budget = budget_of(task)
    say(f"{task.name}: every search has {budget.count:,.0f} client-steps.")
    for number, name in enumerate(places, start=1):
        head = f"{task.name} {number}/{len(places)} {name}"
        if name not in left:
            say(f"{head} is finished.")
            continue
        say(head)
        _train(places[name], task, name, budget, minutes_left, resume_anyway, options)


def is_finished(folder: Path) -> bool:
    """Tells whether a method's trainings are complete."""
    return (folder / _FILE).is_file()


def read(folder: Path) -> Method:
    """Reads what a method's folder says of itself.

    Raises:
      InputError: if it is damaged.
    """
    try:
        return documents.read(folder / _FILE, Method)
    except (OSError, ValueError) as error:
        raise checks.InputError(f"Cannot read '{folder / _FILE}': {error}.") from error


def _train(
    folder: Path,
    task: Task,
    name: str,
    budget: budgets.ClientSteps,
    minutes_left: Callable[[], float | None],
    resume_anyway: bool,
    options: dict[str, Any],
) -> None:
    """Searches or learns a method's settings, and trains the best with other seeds."""
    work = folder.with_name(f"{folder.name}{_WORK}")

    def options_of(part: str) -> dict[str, Any]:
        place = checkpoint.Checkpoints(work / part, resume_anyway=resume_anyway)
        more = {"checkpoints": place, "max_minutes": minutes_left()}
        return options | more | {"evaluate_on": ("validation", "test")}

    process = task.rows[name]
    fine_tune = getattr(process.algorithm, "fine_tune", None)
    model = None if fine_tune is None else "fine-tuned"
    choose = choice.learn if name.endswith(LEARNED) else choice.search
    chosen = choose(
        (_key(), process, task.model, task.spec),
        task.num_rounds,
        budget=budget,
        seeds=task.search_seeds,
        by_model=model,
        **options_of("search"),
    )
    final = engine.grid(
        *(_key(), chosen.process, task.model, task.spec),
        {"seed": task.seeds},
        task.num_rounds,
        eval_every=max(1, task.num_rounds // EVALUATIONS),
        **options_of("final"),
    )
    judged = model or metrics.judge(final.groups[0].models)
    command = task.command and f"{task.command} --only {folder.name}"
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
    directories.remove(work)


def _key() -> core.Key:
    """Key of all trainings, whose seeds tell them apart."""
    return jax.random.key(0, impl="threefry2x32")

"""Tasks of a benchmark: methods on one data set, with a budget for tuning."""

import dataclasses
import itertools
import statistics
from collections.abc import Mapping
from typing import Any

import jax

from fedjax_pfl import algorithms, core, engine
from fedjax_pfl.benchmark import choice
from fedjax_pfl.core import checks, struct
from fedjax_pfl.engine import budgets, grids, tuning
from fedjax_pfl.engine.options import Options
from fedjax_pfl.results import metrics, plain_files

__all__ = ["LEARNED", "START", "Task", "budget_of", "key", "name_of"]

LEARNED = " learned"
"""Suffix of the names of rows with fields that were learned instead of searched."""
START = " start"
"""Suffix of the names of rows with these fields where learning starts."""
NUM_SEARCH_SEEDS = 3
_CENTERS = {"L1": "coordinate median", "L2": "geometric median", "Squared": "mean"}


@dataclasses.dataclass(frozen=True)
class Task:
    """A comparison of methods on one data set.

    Attributes:
      name: name of the data set and its distribution, also of its folder.
      methods: processes by the names of methods, in the order of the page.
      model: the model to train.
      spec: the federation, with validation examples.
      num_rounds: rounds R of a training.
      seeds: seeds of the compared trainings, at least two.
      metric: one of `metrics.SHARES`, which chooses settings and ranks methods.
      budget: budget of every method's search; None for the cost of 27 settings of the
        usual method (`budget_of`).
      command: line that repeats the task; empty for a program.
      learned: processes by name of the methods with two more rows: in `NAME learned`,
        the fields that a search would vary are learned (`fp.learn`) with the same
        budget, see `benchmark.choice.learn`; in `NAME start`, the control, they stay
        where learning starts.
    """

    name: str
    methods: Mapping[str, engine.FederatedProcess]
    model: Any
    spec: core.Specification
    num_rounds: int = struct.static_field(at_least=1)
    seeds: tuple[int, ...] = (10, 11, 12, 13, 14)
    metric: str = "accuracy"
    budget: budgets.Gradients | None = None
    command: str = ""
    learned: Mapping[str, engine.FederatedProcess] = dataclasses.field(
        default_factory=dict
    )

    def __post_init__(self):
        struct.check_fields(self)
        checks.known(self.metric, metrics.SHARES, "metric of a benchmark")
        if plain_files.plain_name(self.name) != self.name:
            raise checks.InputError(
                "Expected a name of letters, digits and hyphens, which is a folder's,"
                f" got {self.name!r}."
            )
        names = [*self.rows]
        if not names:
            raise checks.InputError("Expected at least one method, got none.")
        if any(name.endswith((LEARNED, START)) for name in self.methods):
            raise checks.InputError(
                f"Expected names that do not end in '{LEARNED}' or '{START}', as those"
                f" of rows with learned fields do, got {', '.join(self.methods)}."
            )
        if len(set(map(plain_files.plain_name, names))) < len(names):
            raise checks.InputError(
                "Expected names that differ in letters or digits, which folders have,"
                f" got {', '.join(names)}."
            )
        if len(set(self.seeds)) < max(2, len(self.seeds)):
            raise checks.InputError(
                f"Expected two or more different seeds, got {list(self.seeds)}: ranks"
                " are of differences paired by seed."
            )
        for name, process in self.learned.items():
            choice.check_learned(name, process)

    @property
    def rows(self) -> dict[str, engine.FederatedProcess]:
        """Processes by the names of rows: methods, then rows with learned fields."""
        learned = {
            name + ending: process
            for ending in (LEARNED, START)
            for name, process in self.learned.items()
        }
        return {**self.methods, **learned}

    @property
    def search_seeds(self) -> tuple[int, ...]:
        """The first seeds that are not among the compared ones."""
        seeds = (seed for seed in itertools.count() if seed not in self.seeds)
        return tuple(itertools.islice(seeds, NUM_SEARCH_SEEDS))


def name_of(process: engine.FederatedProcess) -> str:
    """Names a method by its class and the settings that change the method."""
    algorithm = process.algorithm
    name = type(algorithm).__name__
    if algorithm.search is not None:
        name = f"S-{name}"
    if algorithm.fine_tune is not None:
        name = f"{name} fine-tuned"
    if isinstance(algorithm, algorithms.FedPlus):  # by its center
        phi = type(algorithm.phi).__name__
        name = f"{name} {_CENTERS.get(phi, phi)}"
    if process.aggregator is not None:
        name = f"{name} {type(process.aggregator).__name__}"
    return name


def budget_of(task: Task) -> budgets.Gradients:
    """Returns the budget of gradients for the search of every method of a task."""
    if task.budget is not None:
        return task.budget
    federations = grids.Federations()
    rule = engine.Halving()
    every = rule.first_rung(task.num_rounds)
    options = Options(num_rounds=task.num_rounds, stop_when=rule, eval_every=every)
    trials = [{"seed": seed} for seed in task.search_seeds]
    # A search over 27 settings for the method with the median cost or, if that is more,
    # the smallest search for the most expensive method.
    usual, smallest = [], [1]
    for name, process in {**task.learned, **task.methods}.items():
        if not tuning.search_space(process):
            continue
        base = (key(), process, task.model, task.spec)
        cost = tuning.search_cost(base, budgets.Gradients, options, trials, federations)
        usual.append(cost(tuning.NUM_SETTINGS))
        smallest.append(cost(rule.eta))
        if name in task.learned:  # for a round of learning at least
            (group,) = grids.groups_of(*base, trials[:1], federations)
            one_round = len(trials) * tuning.round_gradients(group, options)
            smallest[-1] += one_round * choice.trainings_of(process)
    return budgets.Gradients(max(statistics.median_low(usual or [1]), *smallest))


def key() -> core.Key:
    """Key of all trainings, which differ by their seeds."""
    return jax.random.key(0, impl="threefry2x32")

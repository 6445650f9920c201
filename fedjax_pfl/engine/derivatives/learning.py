"""Hyperparameters that are learned: moved by an optimizer along their derivatives."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from fedjax_pfl import core, results
from fedjax_pfl.core import checks, struct
from fedjax_pfl.engine import grids, simulation, validate
from fedjax_pfl.engine.derivatives import fields as fields_
from fedjax_pfl.engine.derivatives import forward, trainer
from fedjax_pfl.engine.derivatives.objective import Objective
from fedjax_pfl.engine.options import Options, as_keywords, time_limit
from fedjax_pfl.results import checkpoint, learned
from fedjax_pfl.round.process import FederatedProcess

if TYPE_CHECKING:
    import pandas as pd

    from fedjax_pfl.engine.groups import PlannedGroup

__all__ = [
    "OBJECTIVE",
    "Learned",
    "Learning",
    "check_points",
    "default_optimizer",
    "learn",
]

OBJECTIVE = "validation:loss"
"""What fields are moved by where nothing else is said."""

_RATE = 0.3
_LOST = 20.0  # relative change of the objective per e-fold that no smooth training has
_STATE = "rows/learning"


@dataclasses.dataclass(frozen=True, eq=False)
class Learning(trainer.Differentiation):
    """How fields are moved along the derivatives of an objective; makes trainers.

    Attributes:
      names: dotted names of the fields.
      objective: what is made small, or large where more of it is better.
      optimizer: of the numbers that stand for the fields; see `fields.Scale`.
      restart: rounds after which the fields move and the training starts again; None
        moves them at every evaluation, and the training goes on.
    """

    optimizer: optax.GradientTransformation
    restart: int | None

    def options(self, options: Options, num_trainings: int | None) -> Options:
        """Returns the options of all trainings one after the other."""
        if num_trainings is None:
            return options
        checks.positive_int("num_trainings", num_trainings)
        rounds = options.num_rounds
        if options.eval_every is None:
            options = dataclasses.replace(options, eval_every=rounds)
        if rounds % options.schedule.segment:
            raise checks.InputError(
                "Expected eval_every to divide num_rounds, after which fields move, got"
                f" {options.schedule.segment} and {rounds}."
            )
        return dataclasses.replace(options, num_rounds=rounds * num_trainings)

    @property
    def _trainer(self) -> "Callable[..., Learner]":
        """The trainer of groups with such fields."""
        return Learner


class Learner(trainer.Differentiated):
    """All points of a group whose fields are learned.

    Points that differ in their seeds only share the values of the fields, which move
    along the mean of their derivatives.
    """

    what: Learning

    def __init__(
        self, planned: "PlannedGroup", store: checkpoint.Store | None = None, **how: Any
    ):
        """Places the data on the devices; see `Differentiated`."""
        super().__init__(planned, store, **how)
        points = [planned.group.points[k] for k in planned.order]
        starts: dict[str, int] = {}
        settings = [str({n: v for n, v in p.items() if n != "seed"}) for p in points]
        self._start_of = np.array([starts.setdefault(s, len(starts)) for s in settings])
        firsts = [int(np.argmax(self._start_of == k)) for k in range(len(starts))]
        processes = [planned.group.processes[planned.order[k]] for k in firsts]
        names = self.what.names
        scales = [{n: fields_.scale_of(p, n) for n in names} for p in processes]
        self._scales = scales[0]  # limits are those of the class, for all of them
        self._first = {
            name: np.array([float(struct.get_field(p, name)) for p in processes])
            for name in names
        }
        self._free = {n: self._scales[n].free(v) for n, v in self._first.items()}
        self._last_good = {name: np.full(len(starts), np.nan) for name in names}
        self._memory = self.what.optimizer.init(self._params())
        self._slopes = {name: np.zeros(len(starts)) for name in names}
        self._training = 0 if self.what.restart is None else 1
        if not how.get("are_shapes", False):
            self.identity |= {"restart": self.what.restart}

    def _params(self) -> dict[str, jax.Array]:
        """Returns the numbers `[S]` that stand for the fields, as optax takes them."""
        return {name: jnp.asarray(free) for name, free in self._free.items()}

    def _use(self) -> None:
        """Puts the values that stand for the numbers into the processes."""
        processes, keys, rows, pool = self.start
        values = {}
        for name, like in fields_.taken(processes, self.what.names).items():
            scale, free, first = self._scales[name], self._free[name], self._first[name]
            # Starts as they are, without the way there and back, also when resumed.
            value = np.where(free == scale.free(first), first, scale.value(free))
            values[name] = jnp.asarray(value[self._start_of], like.dtype)
        processes = self._placed_processes(fields_.put(processes, values))
        self.start = (processes, keys, rows, pool)
        self.fixed = (processes, *self.fixed[1:])

    def _move(self) -> None:
        """Takes a step; back, half of the way, where the last one led too far.

        There values or derivatives explode, as at the edge of stability. Before any
        good step, a field above 0 goes down by an e-fold.
        """
        is_good = np.all([np.isfinite(s) for s in self._slopes.values()], axis=0)
        gradient = {
            name: jnp.asarray(np.where(is_good, slope, 0))
            for name, slope in self._slopes.items()
        }
        params = self._params()
        steps: Any
        steps, self._memory = self.what.optimizer.update(gradient, self._memory, params)
        for name, free in self._free.items():
            last = self._last_good[name]
            first = free - (self._scales[name].kind == "log")
            back = np.where(np.isfinite(last), (free + last) / 2, first)
            self._last_good[name] = np.where(is_good, free, last)
            step = np.asarray(steps[name], np.float64)
            self._free[name] = np.where(is_good, free + step, back)
        is_known = is_good[self._start_of]
        if not is_known.all():  # forgets the rounds before
            self.tangents = [
                jnp.where(is_known.reshape(-1, *[1] * (t.ndim - 2)), t, 0)
                for t in self.tangents
            ]
        self._use()

    def advance(self, active: np.ndarray, done: int, count: int) -> core.RoundInfo:
        """Moves the fields where it is time, and runs one segment."""
        restart = self.what.restart
        if restart is None:
            if done:
                self._move()
            return super().advance(active, done, count)
        self._training = done // restart + 1
        if done and done % restart == 0:
            self._move()
            self.begin()
        report = super().advance(active, done % restart, count)
        # Another training follows one that diverges.
        return dataclasses.replace(
            report,
            client_diverged=np.zeros_like(report.client_diverged),
            server_diverged=np.zeros_like(report.server_diverged),
        )

    def evaluate(self, data: tuple[str, ...], *, is_last: bool) -> tuple[Any, ...]:
        """Measures all points, and keeps the derivatives for the next step."""
        measured = super().evaluate(data, is_last=is_last)
        own, order = measured[2], self.planned.order
        size = np.abs(own[f"{learned.OBJECTIVE}{self.objective}"][order])
        for name, scale in self._scales.items():
            slope = own[f"{learned.DERIVATIVE}{name}"][order].astype(np.float64)
            value = own[f"{learned.VALUE}{name}"][order].astype(np.float64)
            slope = slope * scale.slope(value)
            slope = np.where(np.abs(slope) <= _LOST * size, slope, np.nan)
            sums = np.bincount(self._start_of, slope * self.what.objective.sign)
            self._slopes[name] = sums / np.bincount(self._start_of)
        own[learned.TRAINING] = np.full(len(size), self._training)
        return measured

    def saved(self) -> tuple[core.State, dict[str, np.ndarray], checkpoint.Own]:
        """Returns the states, and their derivatives and what is learned as arrays."""
        states, arrays, own = super().saved()
        leaves = jax.tree.leaves(self._learned())
        return states, arrays | trainer.numbered(_STATE, leaves), own

    def _learned(self) -> Any:
        """Returns all that changes from step to step."""
        return self._free, self._last_good, self._slopes, self._memory

    def restore(self, progress: checkpoint.Progress) -> None:
        """Places the states of a checkpoint, and takes up what was learned."""
        super().restore(progress)
        leaves, structure = jax.tree.flatten(self._learned())
        like = [np.asarray(leaf) for leaf in leaves]
        arrays = trainer.restored(progress.arrays, _STATE, like)
        parts = jax.tree.unflatten(structure, arrays)
        self._free, self._last_good, self._slopes, memory = parts
        self._memory = jax.tree.map(jnp.asarray, memory)
        self._use()


@dataclasses.dataclass(frozen=True)
class Learned:
    """Trainings whose fields were learned.

    Attributes:
      result: the trainings. Where they restart, its rounds go on from one to the next.
      process: the process with the values of the start that ended best.
      fields: dotted names of the fields.
      objective: what they were moved by, as a string.
      held_fixed: what the derivatives hold fixed; see `Hypergradients`.
    """

    result: results.Result
    process: FederatedProcess
    fields: tuple[str, ...]
    objective: str
    held_fixed: tuple[str, ...]

    __post_init__ = struct.check_fields

    def path(self) -> "pd.DataFrame":
        """Returns a row per start and step; see `results.learned.path`."""
        steps = learned.path(self.result)
        assert steps is not None
        return steps

    def settings(self) -> "pd.DataFrame":
        """Returns a row per start, the best first; see `results.learned.settings`."""
        found = learned.settings(self.result)
        assert found is not None
        return found

    @property
    def best(self) -> dict[str, float]:
        """Learned values of the start that ended best, by dotted name."""
        values = fields_.taken(self.process, self.fields)
        return {name: float(value) for name, value in values.items()}

    def __str__(self) -> str:
        values = ", ".join(f"{name} = {value:.4g}" for name, value in self.best.items())
        table = self.settings().to_string(index=False)
        return f"{table}\nLearned on {self.objective}: {values}."


def default_optimizer() -> optax.GradientTransformation:
    """Returns Adam with steps of at most a third of an e-fold in a field.

    A derivative of a training that is about to diverge is cut off, or Adam's memory of
    it would stop all steps.
    """
    return optax.chain(optax.clip(1.0), optax.adam(_RATE, b1=0.5, b2=0.9))


def check_points(seeds: Any, starts: Any, optimizer: Any) -> None:
    """Refuses what is no seed, no start or no optimizer."""
    if isinstance(seeds, int) or not len(seeds):
        raise checks.InputError(f"Expected at least one seed, got {seeds!r}.")
    is_listed = isinstance(starts, list | tuple) and starts
    if not is_listed or not all(isinstance(start, Mapping) for start in starts):
        raise checks.InputError(
            "Expected starts as a list of values by dotted name, such as"
            f" [{{'algorithm.lam': 0.1}}], got {starts!r}."
        )
    for name, value in ((n, v) for start in starts for n, v in start.items()):
        if not isinstance(value, int | float | np.number):
            raise checks.InputError(
                f"Expected starts that differ in numbers, got {name}={value!r}."
            )
    if optimizer is not None and not hasattr(optimizer, "update"):
        raise checks.InputError(
            "Expected an optimizer such as optax.adam(0.3), got"
            f" {checks.shown(optimizer)}."
        )


@as_keywords("stop_when")
def learn(
    key: core.Key,
    process: FederatedProcess,
    model: Any,
    spec: core.Specification | core.Federation,
    fields: str | Sequence[str],
    num_rounds: int,
    *,
    objective: str | Objective = OBJECTIVE,
    seeds: Sequence[int] = (0, 1, 2),
    starts: Sequence[Mapping[str, Any]] = ({},),
    optimizer: optax.GradientTransformation | None = None,
    num_trainings: int | None = None,
    **options: Any,
) -> Learned:
    """Learns fields of a process: moves them along the derivatives of an objective.

    A field above 0 moves in its logarithm, one between 0 and 1 in its log odds, others
    as they are; the process's values are where they begin. All seeds of a start share
    its values, and are trained in one program with those of the other starts.

    Args:
      key: `[]` key shared by all trainings.
      process: base process.
      model: the model.
      spec: the federation's specification, with validation examples.
      fields: dotted names of traced numbers, such as `algorithm.lam`.
      num_rounds: rounds R of a training.
      objective: see `hypergradients`.
      seeds: of every start, over which the objective is a mean.
      starts: values by dotted name with which each start differs from the process.
      optimizer: of optax, on the numbers without limits; None takes Adam.
      num_trainings: trainings one after the other, each with the fields that the
        derivative of the last one led to. None moves the fields during one training, at
        every evaluation, by the derivative of the objective now in a change of the
        fields since the first round; the training goes on.
      **options: those of `grid`, but `stop_when`. A call with `num_trainings` evaluates
        at the end of every training.

    Returns:
      The path of the fields, the learned values, and the trainings.

    Raises:
      InputError: if an argument does not fit, in one sentence; see `hypergradients`.
      Interrupted: after `max_minutes`.
    """
    validate.check(key, process, model, spec)
    check_points(seeds, starts, optimizer)
    what = Learning(
        names=fields_.check(process, fields),
        objective=Objective.parse(objective),
        optimizer=optimizer or default_optimizer(),
        restart=None if num_trainings is None else num_rounds,
    )
    options = forward.measured(options, what.objective)
    parsed = what.options(Options(num_rounds=num_rounds, **options), num_trainings)
    time_is_up = time_limit(parsed.max_minutes)
    points = [{**start, "seed": seed} for start in starts for seed in seeds]
    found = grids.groups_of(key, process, model, spec, points)
    planned = simulation.check_groups(found, parsed, trainer=what)
    result = simulation.run_groups(planned, parsed, trainer=what, interrupt=time_is_up)
    made = Learned(
        result=result,
        process=process,
        fields=what.names,
        objective=str(what.model_of(planned[0])),
        held_fixed=fields_.held_fixed(process),
    )
    best = made.settings().iloc[0]
    starting = dict.fromkeys(name for start in starts for name in start)
    values = {name: best[f"start {name}"] for name in starting}
    for name, value in (values | {n: float(best[n]) for n in what.names}).items():
        process = struct.replace_field(process, name, value)
    return dataclasses.replace(made, process=process)

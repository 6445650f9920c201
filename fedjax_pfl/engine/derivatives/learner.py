"""The trainer that moves fields along their derivatives while it trains."""

import dataclasses
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
import numpy as np
import optax

from fedjax_pfl import core
from fedjax_pfl.core import checks, struct
from fedjax_pfl.engine.derivatives import fields as fields_
from fedjax_pfl.engine.derivatives import trainer
from fedjax_pfl.engine.derivatives.values import Values
from fedjax_pfl.engine.options import Options
from fedjax_pfl.results import checkpoint, learned

if TYPE_CHECKING:
    from fedjax_pfl.engine.groups import PlannedGroup

__all__ = ["Learner", "Learning"]

_LOST = 20.0  # relative change of the objective per e-fold that no smooth training has
_STATE = "rows/learning"


class Learner(trainer.Differentiated):
    """All points of a group; points that differ in seeds only share learned values."""

    def __init__(
        self, planned: "PlannedGroup", store: checkpoint.Store | None = None, **how: Any
    ):
        """Places the data on the devices; see `Differentiated`."""
        super().__init__(planned, store, **how)
        points = [planned.group.points[k] for k in planned.order]
        starts: dict[str, int] = {}
        settings = [str({n: v for n, v in p.items() if n != "seed"}) for p in points]
        self._start_of = np.array([starts.setdefault(s, len(starts)) for s in settings])
        start_points = [int(np.argmax(self._start_of == k)) for k in range(len(starts))]
        processes = [planned.group.processes[planned.order[k]] for k in start_points]
        names = self.maker.names
        scales = [{n: fields_.scale_of(p, n) for n in names} for p in processes]
        start_values = {
            name: np.array([float(struct.get_field(p, name)) for p in processes])
            for name in names
        }
        # All processes have one class, and so the same limits.
        self._values = Values(scales[0], start_values, self.maker.optimizer)
        self._last_good = {name: np.full(len(starts), np.nan) for name in names}
        self._slopes = {name: np.zeros(len(starts)) for name in names}
        self._training = 0 if self.maker.restart is None else 1
        if not how.get("are_shapes", False):
            self.identity |= {"restart": self.maker.restart}

    def _use(self) -> None:
        """Puts the values into the processes."""
        processes, keys, rows, pool = self.start
        numbers = fields_.taken(processes, self.maker.names)
        values = {
            name: jnp.asarray(value[self._start_of], numbers[name].dtype)
            for name, value in self._values.now().items()
        }
        processes = self._placed_points(fields_.put(processes, values))
        self.start = (processes, keys, rows, pool)
        self.fixed = (processes, *self.fixed[1:])

    def _move(self) -> None:
        """Takes a step, or half of the way back if values or derivatives explode."""
        is_good = np.all([np.isfinite(s) for s in self._slopes.values()], axis=0)
        old_numbers = self._values.free
        self._values.step(
            {name: np.where(is_good, s, 0) for name, s in self._slopes.items()}
        )
        for name, free in old_numbers.items():
            last_good = self._last_good[name]
            # Before any good step, a field above 0 goes down by an e-fold.
            fallback = free - (self._values.scales[name].kind == "log")
            back = np.where(np.isfinite(last_good), (free + last_good) / 2, fallback)
            self._last_good[name] = np.where(is_good, free, last_good)
            stepped = self._values.free[name]
            self._values.free[name] = np.where(is_good, stepped, back)
        is_known = is_good[self._start_of]
        if not is_known.all():  # derivatives start again there
            self.tangents = [
                jnp.where(is_known.reshape(-1, *[1] * (t.ndim - 2)), t, 0)
                for t in self.tangents
            ]
        self._use()

    def advance(self, active: np.ndarray, done: int, count: int) -> core.RoundInfo:
        """Moves the fields if it is time, and runs one segment."""
        restart = self.maker.restart
        if restart is None:
            if done:
                self._move()
            return super().advance(active, done, count)
        self._training = done // restart + 1
        if done and done % restart == 0:
            self._move()
            self.begin()
        # Rounds of every training are numbered from 0, for schedules.
        report = super().advance(active, done % restart, count)
        # Another training follows one that diverges.
        return dataclasses.replace(
            report,
            client_diverged=np.zeros_like(report.client_diverged),
            server_diverged=np.zeros_like(report.server_diverged),
        )

    def evaluate(self, data: tuple[str, ...], *, is_last: bool) -> tuple[Any, ...]:
        """Measures all points, and keeps the derivatives for the next step."""
        measurements = super().evaluate(data, is_last=is_last)
        diagnostics, order = measurements[2], self.planned.order
        size = np.abs(diagnostics[f"{learned.OBJECTIVE}{self.objective}"][order])
        for name, scale in self._values.scales.items():
            slope = diagnostics[f"{learned.DERIVATIVE}{name}"][order].astype(np.float64)
            value = diagnostics[f"{learned.VALUE}{name}"][order].astype(np.float64)
            slope = slope * scale.slope(value)
            # Derivatives of a chaotic or diverging training explode, and count as
            # unknown.
            slope = np.where(np.abs(slope) <= _LOST * size, slope, np.nan)
            # The mean over the seeds of a start.
            sums = np.bincount(self._start_of, slope * self.maker.objective.sign)
            self._slopes[name] = sums / np.bincount(self._start_of)
        diagnostics[learned.TRAINING] = np.full(len(size), self._training)
        return measurements

    def saved(self) -> tuple[core.State, dict[str, np.ndarray], checkpoint.Own]:
        """Returns the states, their derivatives and the learned values."""
        states, arrays, files = super().saved()
        return states, arrays | trainer.numbered(_STATE, self._step_values()), files

    def _step_values(self) -> Any:
        """Returns all values that a step changes."""
        return self._last_good, self._slopes, self._values.state()

    def restore(self, progress: checkpoint.Progress) -> None:
        """Places the states of a checkpoint, and restores the learned values."""
        super().restore(progress)
        parts = trainer.restored(progress.arrays, _STATE, self._step_values())
        self._last_good, self._slopes, values = parts
        self._values.restore(values)
        self._use()


@dataclasses.dataclass(frozen=True, eq=False)
class Learning(trainer.Differentiation):
    """Makes trainers that move fields every `restart` rounds, or at evaluations."""

    optimizer: optax.GradientTransformation
    restart: int | None
    trainer = Learner

    def options(self, options: Options, num_trainings: int | None) -> Options:
        """Returns the options of consecutive trainings as those of one."""
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

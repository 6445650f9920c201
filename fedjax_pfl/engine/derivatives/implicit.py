"""The trainer that differentiates at the fixed point to which its rounds lead."""

import dataclasses
from collections.abc import Iterator
from typing import Any, ClassVar

import jax
import numpy as np

from fedjax_pfl.core import checks, sharding
from fedjax_pfl.engine import programs as compiled
from fedjax_pfl.engine.derivatives import fields, fixed_point, trainer
from fedjax_pfl.engine.groups import PlannedGroup
from fedjax_pfl.engine.resident import rounds
from fedjax_pfl.local import participation, schedules
from fedjax_pfl.numerics import gmres
from fedjax_pfl.results import checkpoint

__all__ = ["AtFixedPoint", "Implicit"]

_SHIFT: compiled.Name = ("shift",)
_SOLVE: compiled.Name = ("solve",)


class AtFixedPoint(trainer.WithObjective):
    """All points of a group, trained without derivatives and then differentiated."""

    def _names(self) -> list[compiled.Name]:
        return [*super()._names(), _SHIFT, _SOLVE]

    def _lowered(self, name: compiled.Name) -> jax.stages.Lowered:
        plan, inputs, last = self.planned.plan, self._with(self.like), self._numbers[1]
        if name == _SHIFT:
            return fixed_point.shift.lower(plan, *inputs, self._numbers)
        if name == _SOLVE:
            static = (plan, self.maker.names, self.objective)
            return fixed_point.solve.lower(*static, *inputs, last)
        return super()._lowered(name)

    @property
    def _numbers(self) -> tuple[np.ndarray, np.ndarray]:
        """Numbers of two rounds; the second follows the last round."""
        return rounds(1, max(self.planned.options.num_rounds, 2))

    def begin(self) -> None:
        """Makes the first states; refuses rounds that are not all alike."""
        super().begin()
        self._check_alike()

    def restore(self, progress: checkpoint.Progress) -> None:
        """Places the states of a checkpoint, and differentiates if it has ended."""
        super().restore(progress)
        self._check_alike()
        # The solution is no part of a checkpoint.
        if progress.ended:
            self._solve()

    def evaluate(self, data: tuple[str, ...], *, is_last: bool) -> tuple[Any, ...]:
        """Measures all points, and differentiates at the end."""
        measurements = super().evaluate(data, is_last=is_last)
        if is_last:
            self._solve()
        return measurements

    def _solve(self) -> None:
        """Differentiates at the current states."""
        arguments = self._with(self.states)
        solution = self.programs[_SOLVE](*arguments, self._numbers[1])
        self.maker.solutions[id(self.planned)] = self.by_point(solution)

    def _check_alike(self) -> None:
        """Refuses rounds with different results from equal states."""
        arguments = self._with(self.states)
        # Both rounds start at the same states: only draws, schedules or counters can
        # differ.
        shift = sharding.fetch(self.programs[_SHIFT](*arguments, self._numbers))
        worst = float(np.nanmax(shift, initial=0))
        if worst <= gmres.tolerance(shift.dtype):  # rounding, of medians too
            return
        start, end = map(int, self._numbers)
        causes = ", ".join(_causes(self.planned)) or "draws, or what changes by itself"
        raise checks.InputError(
            "Expected rounds that are all alike, since implicit=True differentiates at"
            f" their fixed point, got some of {self.planned.algorithm} with {causes}:"
            f" rounds {start} and {end} lead {worst:.1e} of the state apart."
        )


@dataclasses.dataclass(frozen=True, eq=False)
class Implicit(trainer.Differentiation):
    """Makes trainers, and keeps solutions by the `id` of the planned group."""

    solutions: dict[int, fixed_point.Solution] = dataclasses.field(default_factory=dict)
    implicit: ClassVar[bool] = True
    trainer = AtFixedPoint


def _causes(planned: PlannedGroup) -> Iterator[str]:
    """Yields reasons why rounds differ, in words."""
    process, count = planned.group.processes[0], planned.num_clients
    size = process.participation.cohort_size(count)
    if size < count:
        yield f"cohorts of {size} of {count} clients"
    if not isinstance(process.work, participation.FullWork):
        yield type(process.work).__name__
    largest = max(int(f.train.num_examples.max()) for f in planned.group.federations)
    for part in fields.parts(process):
        if isinstance(part, schedules.Schedule):
            yield "a schedule of the learning rate"
        ends = getattr(part, "forward_only", None) is not None  # on full batches
        batch = None if ends else getattr(part, "batch_size", None)
        if batch is not None and batch < largest:
            yield f"batches of {batch} of up to {largest} examples"
        if getattr(part, "decay", None) is not None:
            yield "a learning rate that decays"

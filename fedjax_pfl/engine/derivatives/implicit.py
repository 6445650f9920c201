"""Derivatives at the fixed point to which rounds lead, and their trainer.

With the state z, fields v and a round T, a training that has converged is a fixed point
`z = T(z, v)`. Its derivative in one of the fields solves

    (I - dT/dz) dz = dT/dv

by `numerics.gmres`, with products of the round's derivative in place of its matrix. The
search begins at the derivative of the first state, so that values that no round
changes, such as a radius of the server, keep theirs. Then

    d objective = d objective/dz dz + d objective/dv

and no round before the last one matters.
"""

import dataclasses
import functools
from collections.abc import Iterator
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import flatten_util, lax

from fedjax_pfl import core
from fedjax_pfl.core import checks, loops, sharding
from fedjax_pfl.engine import programs as compiled
from fedjax_pfl.engine import resident
from fedjax_pfl.engine.derivatives import differentiated, fields, trainer
from fedjax_pfl.engine.derivatives.objective import Objective
from fedjax_pfl.engine.groups import Plan, PlannedGroup
from fedjax_pfl.local import participation, schedules
from fedjax_pfl.numerics import gmres
from fedjax_pfl.results import checkpoint
from fedjax_pfl.round.process import FederatedProcess

__all__ = ["AtFixedPoint", "Implicit", "Solution", "shift", "solve"]

_AT_ONCE = 8  # systems that are solved side by side
_SHIFT: compiled.Name = ("shift",)
_SOLVE: compiled.Name = ("solve",)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Solution:
    """Objective, derivatives, `|T(z) - z| / |z|` and relative residuals of systems."""

    value: jax.Array
    derivatives: dict[str, Any]
    fixed_point: jax.Array
    residual: dict[str, Any]


def _solve_local(product: Any, right: core.Tree) -> core.Tree:
    """Solves the systems of local problems; NaN if that fails."""
    x, residual = gmres.solve(product, right, jax.tree.map(jnp.zeros_like, right))
    is_solved = residual <= gmres.tolerance(residual.dtype)
    return jax.tree.map(lambda leaf: jnp.where(is_solved, leaf, jnp.nan), x)


def _turn(
    plan: Plan,
    process: FederatedProcess,
    state: core.State,
    federation: core.Federation,
    floats: list[Any],
) -> list[Any]:
    """Runs a round from other floating-point leaves of a state, and returns them."""
    start = differentiated.with_floats(state, floats)
    new, _ = process.round(start, plan.model, federation, plan.execution)
    return differentiated.moving(new)


@functools.partial(jax.jit, static_argnames="plan")
def shift(
    plan: Plan,
    processes: FederatedProcess,
    states: core.State,
    rows: core.Tree,
    pool: core.Federation,
    rounds: tuple[Any, Any],
) -> jax.Array:
    """Returns differences `[G]` of rounds with two numbers, relative to the states."""

    def one(
        process: FederatedProcess,
        state: core.State,
        federation: core.Federation,
        rounds: tuple[jax.Array, jax.Array],
    ) -> jax.Array:
        def after(number: jax.Array) -> list[Any]:
            # Schedules may count rounds, or the steps of clients.
            later_state = dataclasses.replace(state, round=number)
            if "steps" in state.rows:
                later_state = later_state.with_rows(steps=state.rows["steps"] + number)
            floats = differentiated.moving(later_state)
            return _turn(plan, process, later_state, federation, floats)

        start, end = map(after, rounds)
        size = jnp.maximum(optax.tree.norm(start), optax.tree.norm(end))
        distance = optax.tree.norm(optax.tree.sub(start, end))
        return distance / jnp.where(size > 0, size, 1)

    return resident.map_points(one, (processes, states), rows, pool, plan, rounds)


@functools.partial(jax.jit, static_argnames=("plan", "names", "objective"))
def solve(
    plan: Plan,
    names: tuple[str, ...],
    objective: Objective,
    processes: FederatedProcess,
    states: core.State,
    rows: core.Tree,
    pool: core.Federation,
    round: jax.Array,
) -> Solution:
    """Differentiates at fixed points near states, with the `round` for T."""

    def one(
        process: FederatedProcess,
        state: core.State,
        federation: core.Federation,
        round: jax.Array,
    ) -> Solution:
        state = dataclasses.replace(state, round=round)  # as in `resident.segment`
        values, floats = fields.taken(process, names), differentiated.moving(state)

        def start(values: dict[str, jax.Array]) -> list[Any]:
            changed = fields.put(process, values)
            return differentiated.moving(
                changed.init(state.key, plan.model, federation)
            )

        def turn(values: dict[str, jax.Array], floats: list[Any]) -> list[Any]:
            return _turn(plan, fields.put(process, values), state, federation, floats)

        def measure(values: dict[str, jax.Array], floats: list[Any]) -> jax.Array:
            changed = fields.put(process, values)
            point = differentiated.with_floats(state, floats)
            return differentiated.measured(plan, objective, changed, point, federation)

        def apart(direction: list[Any]) -> list[Any]:
            # (I - dT/dz) applied to a direction, without the matrix.
            along = jax.jvp(lambda z: turn(values, z), (floats,), (direction,))[1]
            return optax.tree.sub(direction, along)

        def along(direction: dict[str, jax.Array]) -> tuple[jax.Array, jax.Array]:
            # Values that no round changes keep the derivative of the first state.
            guess = jax.jvp(start, (values,), (direction,))[1]
            right = jax.jvp(lambda v: turn(v, floats), (values,), (direction,))[1]
            tangent, residual = gmres.solve(apart, right, guess)
            # d objective/dz dz + d objective/dv.
            slope = jax.jvp(measure, (values, floats), (direction, tangent))[1]
            return slope, residual

        flat, by_name = flatten_util.ravel_pytree(values)
        directions = jax.vmap(by_name)(jnp.eye(flat.size, dtype=flat.dtype))
        at_once = min(_AT_ONCE, flat.size)
        slopes, residuals = lax.map(along, directions, batch_size=at_once)
        size = optax.tree.norm(floats)
        move = optax.tree.norm(optax.tree.sub(turn(values, floats), floats))
        return Solution(
            value=measure(values, floats),
            derivatives=by_name(slopes),
            fixed_point=move / jnp.where(size > 0, size, 1),
            residual=by_name(residuals),
        )

    # Local solvers that end by a tolerance count as exact: they are differentiated at
    # their solutions, not through their steps.
    with loops.at_solutions(_solve_local):
        return resident.map_points(one, (processes, states), rows, pool, plan, round)


class AtFixedPoint(trainer.WithObjective):
    """All points of a group, trained without derivatives and then differentiated."""

    def _names(self) -> list[compiled.Name]:
        return [*super()._names(), _SHIFT, _SOLVE]

    def _call(self, name: compiled.Name) -> tuple[Any, ...]:
        inputs = self._with(self.like)
        if name == _SHIFT:
            return shift, (), (*inputs, self._numbers)
        if name == _SOLVE:
            return (
                solve,
                (self.maker.names, self.objective),
                (*inputs, self._numbers[1]),
            )
        return super()._call(name)

    @property
    def _numbers(self) -> tuple[np.ndarray, np.ndarray]:
        """Numbers of two rounds; the second follows the last round."""
        return resident.rounds(1, max(self.planned.options.num_rounds, 2))

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

    solutions: dict[int, Solution] = dataclasses.field(default_factory=dict)
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
        batch = process.algorithm.batch_size if part is process.algorithm else None
        if isinstance(part, core.LocalSolver):
            # Solvers that end by a tolerance take all examples in every step.
            batch = None if part.forward_only else part.batch_size
        if batch is not None and batch < largest:
            yield f"batches of {batch} of up to {largest} examples"
        if isinstance(part, core.LocalSolver) and part.decay is not None:
            yield "a learning rate that decays"

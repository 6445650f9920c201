"""The traced programs of a group of trainings: what is known before compilation."""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend import core

from fedjax_pfl import clients, compiled, liveness, stacking, types

__all__ = ["Programs", "trace"]


@dataclasses.dataclass(frozen=True)
class Programs:
    """The traced programs of a group, and shapes of what they are given.

    Attributes:
      plan: everything static; `loop` has no program and is one client at a time here.
      rows: `[G, N, ...]` of the federations.
      pool: what they share.
      states: of all points.
      init: makes the first states.
      segment: trains between two evaluations.
      mixed: who learns from whom.
    """

    plan: compiled.Plan
    processes: Any
    rows: Any
    pool: Any
    states: types.State
    init: jax.stages.Traced
    segment: jax.stages.Traced
    mixed: jax.stages.Traced

    def evaluate(self, data: tuple[str, ...]) -> jax.stages.Traced:
        """The program that evaluates on some data."""
        now = (self.processes, self.states, self.rows, self.pool)
        return compiled.evaluate.trace(self.plan, data, *now)

    def num_equations(self) -> int:
        """Equations of all that is compiled."""
        measured = self.evaluate(self.plan.schedule.data)
        traced = (self.init, self.segment, self.mixed, measured)
        return sum(_num_equations(program.jaxpr.jaxpr) for program in traced)


def trace(
    plan: compiled.Plan, processes: Any, federations: Sequence[types.Federation]
) -> Programs:
    """Traces the programs of a group of grid points; JAX keeps the traces.

    Args:
      plan: everything static.
      processes: the points' processes, stacked.
      federations: one per point; shapes do.

    Returns:
      The programs.
    """
    if plan.execution.mode == "loop":
        one = clients.Execution(mode="chunk", chunk_size=1)
        plan = dataclasses.replace(plan, execution=one)
    leaves, structure = jax.tree.flatten(federations)
    given = {id(leaf): leaf for leaf in leaves}  # parts share the arrays of a pool

    def stacked(shared: dict[int, Any]) -> tuple[Any, Any]:
        known = [shared[id(leaf)] for leaf in leaves]
        return stacking.federation_rows(jax.tree.unflatten(structure, known))

    points = len(federations)
    rows, pool = jax.eval_shape(stacked, given)
    keys = jax.eval_shape(lambda: jax.random.split(_key(), points))
    going = jax.ShapeDtypeStruct((points,), bool)
    number = jax.ShapeDtypeStruct((), jnp.int32)
    start = (processes, keys, rows, pool)
    states = jax.eval_shape(functools.partial(compiled.init, plan), *start)
    now = (processes, states, rows, pool)
    return Programs(
        plan=plan,
        processes=processes,
        rows=rows,
        pool=pool,
        states=states,
        init=compiled.init.trace(plan, *start),
        segment=compiled.segment.trace(plan, *now, going, number, number),
        mixed=compiled.snapshot.trace(plan, *now),
    )


def _num_equations(program: core.Jaxpr) -> int:
    """Equations of a program and of those inside it."""
    return sum(
        1 + sum(map(_num_equations, liveness.inner_programs(equation.params)))
        for equation in program.eqns
    )


def _key() -> types.Key:
    """Some key of the kind that trainings have."""
    return jax.random.key(0, impl="threefry2x32")

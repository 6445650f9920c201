"""The trainer that trains states with their derivatives."""

import dataclasses
from typing import Any, ClassVar

import jax
import numpy as np

from fedjax_pfl import core
from fedjax_pfl.core import checks, sharding
from fedjax_pfl.engine import cost, layout
from fedjax_pfl.engine import programs as compiled
from fedjax_pfl.engine.derivatives import differentiated, fields
from fedjax_pfl.engine.derivatives.objective import Objective
from fedjax_pfl.engine.groups import PlannedGroup
from fedjax_pfl.engine.resident import Resident, rounds
from fedjax_pfl.results import checkpoint, learned, metrics

__all__ = [
    "Differentiated",
    "Differentiation",
    "WithObjective",
    "numbered",
    "restored",
]

_MEASURE: compiled.Name = ("measure",)
_TANGENTS = "rows/tangents"


class WithObjective(Resident):
    """All points of a group, with the objective that has derivatives in fields."""

    def __init__(
        self,
        planned: PlannedGroup,
        store: checkpoint.Store | None = None,
        *,
        maker: "Differentiation",
        are_shapes: bool = False,
    ):
        """Places the data on the devices; see `Resident`."""
        self.maker: Any = maker
        self.objective = maker.model_of(planned)
        super().__init__(planned, store, are_shapes=are_shapes)

    def changed(self, **changes: Any) -> Resident:
        """Returns a trainer of shapes, for the group with other fields."""
        planned = dataclasses.replace(self.planned, **changes)
        return type(self)(planned, maker=self.maker, are_shapes=True)


class Differentiated(WithObjective):
    """All points of a group, with derivatives `[p, G, ...]` of their states' floats."""

    def __init__(
        self, planned: PlannedGroup, store: checkpoint.Store | None = None, **how: Any
    ):
        """Places the data on the devices; see `Resident`."""
        super().__init__(planned, store, **how)
        self.extra_shapes = self._spread(self.programs.shapes(("init",))[1])
        if not how.get("are_shapes", False):
            self.identity |= {
                "fields": list(self.maker.names),
                "objective": str(self.objective),
            }

    def _spread(self, tangents: list[Any]) -> list[Any]:
        """Places leaves `[p, G, ...]` on the devices of the states."""
        return sharding.shard_stacked(tangents, differentiated.moving(self.like))

    def _with_tangents(self, states: Any, tangents: list[Any]) -> tuple[Any, ...]:
        """Returns processes, states, tangents, rows and pool for the programs."""
        processes, states, *arrays = self._with(states)
        return (processes, states, tangents, *arrays)

    def _names(self) -> list[compiled.Name]:
        return [*super()._names(), _MEASURE]

    def _call(self, name: compiled.Name) -> tuple[Any, ...]:
        static = (self.maker.names,)
        arguments = self._with_tangents(self.like, self.extra_shapes)
        if name == ("init",):
            return differentiated.init, static, self.start
        if name == ("segment",):
            active = np.ones(len(self.planned.group.points), bool)
            return differentiated.segment, static, (*arguments, active, *rounds())
        if name == _MEASURE:
            return differentiated.measure, (*static, self.objective), arguments
        return super()._call(name)

    def begin(self) -> None:
        """Makes the first states and their derivatives."""
        states, tangents = self.programs[("init",)](*self.start)
        self.states, self.tangents = self._placed_states(states), self._spread(tangents)

    def restore(self, progress: checkpoint.Progress) -> None:
        """Places the states of a checkpoint, and their derivatives."""
        super().restore(progress)
        arrays = restored(progress.arrays, _TANGENTS, self.extra_shapes)
        self.tangents = self._spread(jax.tree.map(jax.numpy.asarray, arrays))

    def saved(self) -> tuple[core.State, dict[str, np.ndarray], checkpoint.Own]:
        """Returns the states, and their derivatives as arrays."""
        return self.states, numbered(_TANGENTS, sharding.fetch(self.tangents)), {}

    def advance(self, active: np.ndarray, done: int, count: int) -> core.RoundInfo:
        """Runs one segment; leaves of the reports are `[G, segment, ...]`."""
        arguments = self._with_tangents(self.states, self.tangents)
        limits = (active[self.planned.order], *rounds(done, done + count))
        states, tangents, reports = self.programs[("segment",)](*arguments, *limits)
        self.states, self.tangents = self._placed_states(states), self._spread(tangents)
        return self.by_point(reports)

    def evaluate(self, data: tuple[str, ...], *, is_last: bool) -> tuple[Any, ...]:
        """Measures all points, the objective and its derivatives included."""
        members, metrics, values, snapshot = super().evaluate(data, is_last=is_last)
        arguments = self._with_tangents(self.states, self.tangents)
        objective, slopes = sharding.fetch(self.programs[_MEASURE](*arguments))
        objectives = {f"{learned.OBJECTIVE}{self.objective}": objective}
        taken = sharding.fetch(fields.taken(self.fixed[0], self.maker.names))
        for name, slope in zip(self.maker.names, slopes, strict=True):
            objectives |= {
                f"{learned.VALUE}{name}": taken[name],
                f"{learned.DERIVATIVE}{name}": slope,
            }
        return members, metrics, values | self.by_point(objectives), snapshot


@dataclasses.dataclass(frozen=True)
class Differentiation:
    """Objective and fields; makes trainers, plain ones for groups without fields."""

    names: tuple[str, ...]
    objective: Objective
    implicit: ClassVar[bool] = False
    trainer: ClassVar[type[WithObjective]] = Differentiated

    def __call__(
        self, planned: PlannedGroup, store: checkpoint.Store | None = None, **how: Any
    ) -> Resident:
        """Returns the trainer of a group."""
        if store is not None and jax.process_count() > 1:
            raise checks.InputError(
                "Checkpoints of several processes have no derivatives; expected one"
                f" process for this training, got {jax.process_count()}."
            )
        # In a grid of methods a field may be missing in some of them.
        names = fields.names_of(planned.group.processes[0], self.names)
        if not names:
            return Resident(planned, store, **how)
        return self.trainer(
            planned, store, maker=dataclasses.replace(self, names=names), **how
        )

    def check(self, planned: PlannedGroup) -> PlannedGroup:
        """Refuses a group without such derivatives, or too large for the memory."""
        names = fields.names_of(planned.group.processes[0], self.names)
        if not names:
            return Resident.check(planned)
        for process in planned.group.processes:
            fields.check(process, names, implicit=self.implicit)
        if planned.plan.execution.mode == "loop":
            raise checks.InputError(
                "Expected a compiled execution for derivatives, got 'loop'."
            )
        if planned.options.stop_when is not None:
            raise checks.InputError(
                "Expected stop_when=None with derivatives, which are those of all"
                f" rounds, got {planned.options.stop_when}."
            )
        self.model_of(planned)
        for federation in planned.group.federations:
            self._check_clients(federation, planned.options.eval_clients)
        cost.check_arrays(self(planned, are_shapes=True))
        return layout.laid_out(planned)

    def _check_clients(self, federation: core.Federation, clients: str | int) -> None:
        """Refuses an objective about no client."""
        if isinstance(federation.malicious, jax.ShapeDtypeStruct):
            return
        data, over = self.objective.data, self.objective.over
        if isinstance(over, int) and clients != "all":
            raise checks.InputError(
                "Expected eval_clients='all' with an objective about one client, got"
                f" {clients!r}."
            )
        count = np.asarray(getattr(federation, data).num_examples)
        counted = (count > 0) & ~np.asarray(federation.malicious)
        if isinstance(over, int):
            if over >= len(counted) or not counted[over]:
                raise checks.InputError(
                    f"Expected an honest client with {data} examples below"
                    f" {len(counted)} in the objective, got client {over}."
                )
        elif not counted.any():
            advice = "; give the federation a validation_fraction above 0"
            raise checks.InputError(
                f"Expected honest clients with {data} examples, which the objective"
                f" '{self.objective}' is about, got none"
                + (advice if data == "validation" else "")
                + "."
            )

    def model_of(self, planned: PlannedGroup) -> Objective:
        """Returns the objective with the name of one of the method's models."""
        model = self.objective.model
        if model is None:
            model = metrics.judge(planned.names)
        checks.known(model, planned.names, "model of an objective")
        return dataclasses.replace(self.objective, model=model)


def numbered(prefix: str, tree: core.Tree) -> dict[str, np.ndarray]:
    """Returns the leaves of a tree by name, as arrays of a checkpoint."""
    leaves = jax.tree.leaves(tree)
    return {f"{prefix}/{n:04d}": np.asarray(leaf) for n, leaf in enumerate(leaves)}


def restored(arrays: dict[str, np.ndarray], prefix: str, template: Any) -> Any:
    """Inverts `numbered`; raises ValueError if arrays are damaged."""
    leaves, structure = jax.tree.flatten(template)
    new_leaves = []
    for number, leaf in enumerate(leaves):
        name = f"{prefix}/{number:04d}"
        value = arrays.get(name)
        if value is None or value.shape != leaf.shape or value.dtype != leaf.dtype:
            raise ValueError(f"other derivatives: {name}")
        new_leaves.append(value)
    return jax.tree.unflatten(structure, new_leaves)

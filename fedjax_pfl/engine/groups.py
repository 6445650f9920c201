"""Grid points that share a program: whether they can be trained, and how."""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_pfl import core
from fedjax_pfl.core import checks, client_rows, struct
from fedjax_pfl.data import statistics
from fedjax_pfl.engine import (
    auto_execution,
    compiled,
    evaluation,
    programs,
    stacking,
    trained_parameters,
    validate,
)
from fedjax_pfl.engine.options import Options
from fedjax_pfl.engine.process import FederatedProcess

__all__ = ["Group", "PlannedGroup", "plan", "single"]


@dataclasses.dataclass(frozen=True)
class Group:
    """Grid points that share one compiled program.

    Attributes:
      points: swept field -> value, one dict per point.
      processes: one process per point, of one structure.
      model: the model they share.
      federations: one per point, of one number of clients.
      described: statistics of each point's federation.
      keys: one key per point.
      config: flat configuration of what the points share.
    """

    points: Sequence[dict[str, Any]]
    processes: Sequence[FederatedProcess]
    model: Any
    federations: Sequence[core.Federation]
    described: Sequence[statistics.PartitionStatistics]
    keys: Sequence[core.Key]
    config: dict[str, Any]


def single(
    key: core.Key,
    process: FederatedProcess,
    model: Any,
    federation: core.Federation,
    config: dict[str, Any],
    *,
    is_described: bool = True,
) -> Group:
    """Returns the group of one training.

    Args:
      key: `[]` key of the training.
      process: what is trained.
      model: which model.
      federation: on which data.
      config: flat configuration of the three.
      is_described: whether to compute the statistics of the federation.
    """
    return Group(
        points=[{}],
        processes=[process],
        model=model,
        federations=[federation],
        described=[statistics.describe(federation)] if is_described else [],
        keys=[key],
        config=config,
    )


@dataclasses.dataclass(frozen=True, eq=False)
class PlannedGroup:
    """A validated group and how it is run; made once, by `plan`.

    Attributes:
      group: points of one structure.
      options: of the call.
      plan: everything static.
      processes: the points' processes, numbers as arrays.
      keys: `[G]` keys of the package's own generator.
    """

    group: Group
    options: Options
    plan: compiled.Plan
    processes: Sequence[FederatedProcess]
    keys: core.Key

    @property
    def algorithm(self) -> str:
        """Class name of the points' algorithm."""
        return type(self.group.processes[0].algorithm).__name__

    @property
    def num_clients(self) -> int:
        """Clients N of every point."""
        return self.group.federations[0].num_clients

    @functools.cached_property
    def names(self) -> tuple[str, ...]:
        """Names of the algorithm's predictors."""
        return evaluation.predictor_names(*self._shapes())

    @functools.cached_property
    def kinds(self) -> dict[str, trained_parameters.Kind]:
        """Shapes of what is trained of every predictor; see `trained_parameters`."""
        return trained_parameters.kinds(*self._shapes())

    def _shapes(self) -> tuple[FederatedProcess, core.State, Any, Any]:
        """Process, shapes of its state, model and federation of the first point."""
        process, federation = self.group.processes[0], self.group.federations[0]

        def init(key: core.Key, federation: core.Federation) -> core.State:
            return process.init(key, self.plan.model, federation)

        state = jax.eval_shape(init, self.keys[0], federation)
        return process, state, self.plan.model, federation

    def programs(self, *, are_shapes: bool = False) -> programs.Programs:
        """Places the data on the devices; compiles nothing yet.

        Args:
          are_shapes: whether shapes of the data are enough, so that nothing is placed.

        Returns:
          The group's programs.
        """
        federations = self.group.federations
        if are_shapes:
            federations = programs.shapes_of(federations)
        stacked = stacking.stack(self.processes)
        num_rounds = self.options.num_rounds
        return programs.Programs(self.plan, stacked, federations, self.keys, num_rounds)

    def configuration(self, execution: str) -> dict[str, Any]:
        """Returns the flat configuration of the group and of how it is run.

        Args:
          execution: how the map over clients is run, in words.

        Returns:
          Values as JSON knows them, by dotted name.
        """
        schedule = self.plan.schedule
        params = jax.eval_shape(self.plan.model.init, self.keys[0])
        return self.group.config | {
            "num_rounds": self.options.num_rounds,
            "eval_every": schedule.segment,
            "evaluate_on": dict(schedule.every),
            "eval_clients": schedule.clients,
            "execution": execution,
            "num_parameters": client_rows.size(params),
        }


def plan(group: Group, options: Options) -> PlannedGroup:
    """Validates a group and decides how it is run.

    Args:
      group: points of one structure; shapes in place of its federations' arrays do.
      options: of the call.

    Returns:
      The planned group.

    Raises:
      InputError: if a part does not fit, in one sentence.
    """
    _check(group, options)
    first, process = group.federations[0], group.processes[0]
    model = group.model.for_federation(first)
    execution = options.parsed_execution
    if isinstance(execution, str):
        execution = auto_execution.choose(process, model, first, len(group.points))
    execution = auto_execution.form_chunks(execution, group.federations)
    points_per_chunk = options.points_per_chunk
    if points_per_chunk is None:
        points_per_chunk = auto_execution.points_at_once(
            execution, process, model, first
        )
    devices = auto_execution.devices_of_points(execution, len(group.points))
    dtype = jnp.zeros(()).dtype
    planned = PlannedGroup(
        group=group,
        options=options,
        plan=compiled.Plan(
            model=model,
            execution=execution,
            schedule=options.schedule,
            diagnostics=options.diagnostics,
            points_per_chunk=min(points_per_chunk, -(-len(group.points) // devices)),
            point_devices=devices,
            stops=options.stop_when is not None,
        ),
        processes=[struct.as_arrays(process, dtype) for process in group.processes],
        keys=jnp.stack([_own_key(key) for key in group.keys]),
    )
    if options.stop_when is not None:
        options.stop_when.model_of(planned.names)
    return planned


def _check(group: Group, options: Options) -> None:
    """Validates the data and all parts of a group; see `plan`."""
    for federation in group.federations:
        options.schedule.check(federation)
        _check_examples(federation)
    first = group.federations[0]
    size = group.processes[0].participation.cohort_size(first.num_clients)
    for process in group.processes:
        process.check_cohort(size, first.num_clients)


def _check_examples(federation: core.Federation) -> None:
    """Refuses clients that have nothing to train on."""
    if isinstance(federation.malicious, jax.ShapeDtypeStruct):
        return
    empty = np.flatnonzero(np.asarray(federation.train.num_examples) == 0)
    if empty.size:
        raise checks.InputError(
            f"Expected every client to have training examples, but {empty.size} of"
            f" {federation.num_clients} have none, the first of them client"
            f" {empty[0]}."
        )


def _own_key(key: core.Key) -> core.Key:
    """Returns the key of the package's generator that a caller's key stands for."""
    validate.check_key(key)
    return core.new_key(jax.random.key_data(key))

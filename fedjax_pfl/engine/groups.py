"""Grid points that share a program: whether they can be trained, and how."""

import dataclasses
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
    cost,
    evaluation,
    options,
    programs,
    stacking,
    trained_parameters,
    validate,
)
from fedjax_pfl.engine.process import FederatedProcess

__all__ = [
    "Group",
    "check",
    "check_examples",
    "check_parts",
    "configuration",
    "network_kinds",
    "own_key",
    "planned",
    "predictor_names",
    "programs_of",
]


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


def own_key(key: core.Key) -> core.Key:
    """The key of the package's generator that a caller's key stands for."""
    validate.check_key(key)
    return core.new_key(jax.random.key_data(key))


def check_examples(federations: Sequence[core.Federation]) -> None:
    """Refuses clients that have nothing to train on."""
    for federation in federations:
        if isinstance(federation.malicious, jax.ShapeDtypeStruct):
            continue
        empty = np.flatnonzero(np.asarray(federation.train.num_examples) == 0)
        if empty.size:
            raise checks.InputError(
                f"Expected every client to have training examples, but {empty.size} of "
                f"{federation.num_clients} have none, the first of them client "
                f"{empty[0]}."
            )


def check(group: Group, settings: options.Settings) -> None:
    """Validates the data and all parts of a group before anything is trained.

    Args:
      group: points of one structure.
      settings: how they are to be trained.

    Raises:
      InputError: if something does not fit, in one sentence.
    """
    check_parts(group, settings)
    shapes = programs_of(group, settings, are_shapes=True)
    cost.check_arrays(shapes, group.federations, settings)


def check_parts(group: Group, settings: options.Settings) -> None:
    """Checks everything but the memory; see `check`."""
    for federation in group.federations:
        settings.schedule.check(federation)
    check_examples(group.federations)
    first = group.federations[0]
    size = group.processes[0].participation.cohort_size(first.num_clients)
    for process in group.processes:
        process.check_cohort(size, first.num_clients)
    if settings.stop_when is not None:
        settings.stop_when.model_of(predictor_names(group))


def planned(
    group: Group, settings: options.Settings
) -> tuple[compiled.Plan, FederatedProcess]:
    """Says how a group will be run.

    Args:
      group: points of one structure; shapes in place of its federations' arrays do.
      settings: how they are to be trained.

    Returns:
      Everything static, and the processes with stacked values.
    """
    first = group.federations[0]
    model = group.model.for_federation(first)
    execution, process = settings.execution, group.processes[0]
    if isinstance(execution, str):
        execution = auto_execution.choose(process, model, first, len(group.points))
    execution = auto_execution.form_chunks(execution, group.federations)
    points_per_chunk = settings.points_per_chunk
    if points_per_chunk is None:
        points_per_chunk = auto_execution.points_at_once(
            execution, process, model, first
        )
    devices = auto_execution.devices_of_points(execution, len(group.points))
    plan = compiled.Plan(
        model=model,
        execution=execution,
        schedule=settings.schedule,
        diagnostics=settings.diagnostics,
        points_per_chunk=min(points_per_chunk, -(-len(group.points) // devices)),
        point_devices=devices,
        stops=settings.stop_when is not None,
    )
    dtype = jnp.zeros(()).dtype
    processes = [struct.as_arrays(process, dtype) for process in group.processes]
    return plan, stacking.stack(processes)


def programs_of(
    group: Group, settings: options.Settings, *, are_shapes: bool = False
) -> programs.Programs:
    """Plans a group and places its data on the devices; compiles nothing yet.

    Args:
      group: points of one structure; shapes in place of its federations' arrays do.
      settings: how they are to be trained.
      are_shapes: whether shapes of the data are enough, so that nothing is placed.

    Returns:
      Its programs.
    """
    keys = jnp.stack([own_key(key) for key in group.keys])
    plan, processes = planned(group, settings)
    federations = group.federations
    if are_shapes:
        federations = programs.shapes_of(federations)
    return programs.Programs(plan, processes, federations, keys, settings.num_rounds)


def predictor_names(group: Group) -> tuple[str, ...]:
    """Names of what the algorithm lets evaluate."""
    return evaluation.predictor_names(*_shapes(group))


def network_kinds(group: Group) -> dict[str, trained_parameters.Kind]:
    """What was trained of each of these, with shapes; see `networks.kinds`."""
    return trained_parameters.kinds(*_shapes(group))


def _shapes(group: Group) -> tuple[FederatedProcess, core.State, Any, Any]:
    """Process, shapes of its state, model and federation of the first point."""
    process, federation = group.processes[0], group.federations[0]
    model = group.model.for_federation(federation)

    def init(key, federation):
        return process.init(key, model, federation)

    state = jax.eval_shape(init, own_key(group.keys[0]), federation)
    return process, state, model, federation


def configuration(
    group: Group, settings: options.Settings, model: Any, execution: str
) -> dict[str, Any]:
    """Flat configuration of a group and of how it is run.

    Args:
      group: what is trained.
      settings: how.
      model: given the shapes of the data.
      execution: how the map over clients is run, in words.

    Returns:
      Values as JSON knows them, by dotted name.
    """
    return group.config | {
        "num_rounds": settings.num_rounds,
        "eval_every": settings.schedule.segment,
        "evaluate_on": dict(settings.schedule.every),
        "eval_clients": settings.schedule.clients,
        "execution": execution,
        "num_parameters": client_rows.size(jax.eval_shape(model.init, group.keys[0])),
    }

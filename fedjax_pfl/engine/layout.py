"""Layout of a group's data on the devices that share its clients."""

import dataclasses
from typing import Any

from fedjax_pfl import core
from fedjax_pfl.core import divided_examples, sharding
from fedjax_pfl.engine import schedule, stacking
from fedjax_pfl.engine.groups import PlannedGroup
from fedjax_pfl.results import checkpoint

__all__ = [
    "digest",
    "federations",
    "laid_out",
    "placed_states",
    "shares",
    "start",
    "unseen_rows",
]


def shares(planned: PlannedGroup, count: int) -> divided_examples.Shares | None:
    """Returns the examples of n devices; None if clients need those of others."""
    if schedule.POOLED & set(planned.plan.schedule.data):
        return None
    sources = planned.group.federations
    cohort = planned.processes[0].participation.cohort_size(planned.num_clients)
    num_slots = 0
    if cohort < planned.num_clients:
        # Examples of a cohort pass through two buffers; each member has a slot for
        # every example of the largest client.
        places = -(-cohort // count) * count
        num_slots = 2 * places * max(f.train.index.shape[1] for f in sources)
    return divided_examples.shares(sources, count, num_slots)


def federations(
    planned: PlannedGroup, *, are_shapes: bool = False
) -> list[core.Federation]:
    """Returns the federations of all points, with examples next to their clients."""
    execution, sources = planned.plan.execution, list(planned.group.federations)
    if execution.mode != "shard":
        return sources
    parts = shares(planned, sharding.client_mesh(execution.num_devices).size)
    if parts is None:
        return sources
    return divided_examples.divided(sources, parts, execution, are_shapes=are_shapes)


def placed_states(
    states: core.State, num_clients: int, execution: sharding.Execution
) -> core.State:
    """Places states `[G, ...]`: rows of clients on their devices, the rest on all."""
    # By name: shapes do not identify rows of clients, since a model of N outputs has N
    # rows, too.
    rows = sharding.shard_rows(states.of_clients(), num_clients, execution, axis=1)
    return sharding.replicate(states.at(None), execution).at(rows)


def start(
    planned: PlannedGroup, data: list[core.Federation]
) -> tuple[Any, core.Key, Any, Any]:
    """Returns processes, keys, rows and pool, in the order of the programs' points."""
    # Points that are alike lie next to each other in the programs.
    ordered = [data[point] for point in planned.order]
    rows, pool = stacking.federation_rows(ordered)
    of_points = [(planned.processes[k], planned.keys[k]) for k in planned.order]
    return *stacking.stack(of_points), rows, pool


def unseen_rows(planned: PlannedGroup, data: list[core.Federation]) -> core.Tree:
    """Returns the rows `[G, U, ...]` of clients that never train, or None."""
    groups = [data[k].unseen for k in planned.order if data[k].unseen is not None]
    return stacking.rows_of(groups) if groups else None


def digest(planned: PlannedGroup) -> str:
    """Returns SHA-256 of the data, seeds and settings, for any layout."""
    if planned.digest is not None:
        return planned.digest
    data = list(planned.group.federations)
    return checkpoint.fingerprint((start(planned, data), unseen_rows(planned, data)))


def laid_out(planned: PlannedGroup) -> PlannedGroup:
    """Moves examples to the devices of their clients; no process then has all."""
    data = federations(planned)
    if all(a is b for a, b in zip(data, planned.group.federations, strict=True)):
        return planned
    # Saves memory only once the caller drops the old federations.
    group = dataclasses.replace(planned.group, federations=data)
    return dataclasses.replace(planned, group=group, digest=digest(planned))

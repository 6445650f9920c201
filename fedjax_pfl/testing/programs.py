"""The compiled programs that properties share, and groups of trainings."""

import functools
from collections.abc import Sequence
from typing import Any

import jax

from fedjax_pfl import core, data
from fedjax_pfl.core import sharding
from fedjax_pfl.engine import groups
from fedjax_pfl.engine.process import FederatedProcess

__all__ = ["group", "init", "run_round"]


@functools.partial(jax.jit, static_argnames=("model", "execution"))
def run_round(
    process: FederatedProcess,
    state: core.State,
    model: core.Model,
    federation: core.Federation,
    execution: sharding.Execution,
) -> tuple[core.State, core.RoundInfo]:
    """Runs one compiled round."""
    return process.round(state, model, federation, execution)


@functools.partial(jax.jit, static_argnames="model")
def init(
    process: FederatedProcess,
    key: core.Key,
    model: core.Model,
    federation: core.Federation,
) -> core.State:
    """Returns the first state, compiled."""
    return process.init(key, model, federation)


def group(
    key: core.Key,
    process: FederatedProcess,
    model: core.Model,
    federation: core.Federation,
    *others: FederatedProcess,
    points: Sequence[dict[str, Any]] | None = None,
) -> groups.Group:
    """Groups a process, or several that a grid trains on one federation."""
    processes = [process, *others]
    count = len(processes)
    return groups.Group(
        points=points or [{}] * count,
        processes=processes,
        model=model,
        federations=[federation] * count,
        described=[data.describe(federation)] * count,
        keys=[key] * count,
        config={},
    )

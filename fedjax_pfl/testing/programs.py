"""The compiled programs that properties share, and groups of trainings."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.export

from fedjax_pfl import core, data
from fedjax_pfl.core import sharding
from fedjax_pfl.engine import groups
from fedjax_pfl.engine.process import FederatedProcess

__all__ = ["export", "group", "init", "round_again", "run_round"]


@functools.partial(jax.jit, static_argnames=("model", "execution"))
def run_round(
    process: FederatedProcess,
    state: core.State,
    model: core.Model,
    federation: core.Federation,
    execution: sharding.Execution,
) -> tuple[core.State, core.RoundInfo]:
    """One compiled round."""
    return process.round(state, model, federation, execution)


def round_again(
    process: FederatedProcess,
    state: core.State,
    model: core.Model,
    federation: core.Federation,
) -> tuple[core.State, core.RoundInfo]:
    """One round, traced and compiled anew in every call."""

    @jax.jit
    def run(process: Any, state: Any, federation: Any):
        return process.round(state, model, federation)

    return run(process, state, federation)


@functools.partial(jax.jit, static_argnames="model")
def init(
    process: FederatedProcess,
    key: core.Key,
    model: core.Model,
    federation: core.Federation,
) -> core.State:
    """The compiled first state."""
    return process.init(key, model, federation)


def export(
    fn: Callable[..., Any], platforms: Sequence[str], *arguments: Any
) -> jax.export.Exported:
    """A function lowered for other platforms than this machine's."""
    return jax.export.export(jax.jit(fn), platforms=platforms)(*arguments)


def group(
    key: core.Key,
    process: FederatedProcess,
    model: core.Model,
    federation: core.Federation,
    *others: FederatedProcess,
    points: Sequence[dict[str, Any]] | None = None,
) -> groups.Group:
    """The group of a process, or of several that a grid trains on one federation."""
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

"""The compiled programs that properties share, and groups of trainings."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.export

from fedjax_pfl import clients, data, planning, types
from fedjax_pfl.process import FederatedProcess

__all__ = ["export", "group", "init", "round_again", "run_round"]


@functools.partial(jax.jit, static_argnames=("model", "execution"))
def run_round(
    process: FederatedProcess,
    state: types.State,
    model: types.Model,
    federation: types.Federation,
    execution: clients.Execution,
) -> tuple[types.State, types.RoundInfo]:
    """One compiled round."""
    return process.round(state, model, federation, execution)


def round_again(
    process: FederatedProcess,
    state: types.State,
    model: types.Model,
    federation: types.Federation,
) -> tuple[types.State, types.RoundInfo]:
    """One round, traced and compiled anew in every call."""

    @jax.jit
    def run(process: Any, state: Any, federation: Any):
        return process.round(state, model, federation)

    return run(process, state, federation)


@functools.partial(jax.jit, static_argnames="model")
def init(
    process: FederatedProcess,
    key: types.Key,
    model: types.Model,
    federation: types.Federation,
) -> types.State:
    """The compiled first state."""
    return process.init(key, model, federation)


def export(
    fn: Callable[..., Any], platforms: Sequence[str], *arguments: Any
) -> jax.export.Exported:
    """A function lowered for other platforms than this machine's."""
    return jax.export.export(jax.jit(fn), platforms=platforms)(*arguments)


def group(
    key: types.Key,
    process: FederatedProcess,
    model: types.Model,
    federation: types.Federation,
    *others: FederatedProcess,
    points: Sequence[dict[str, Any]] | None = None,
) -> planning.Group:
    """The group of a process, or of several that a grid trains on one federation."""
    processes = [process, *others]
    count = len(processes)
    return planning.Group(
        points=points or [{}] * count,
        processes=processes,
        model=model,
        federations=[federation] * count,
        described=[data.describe(federation)] * count,
        keys=[key] * count,
        config={},
    )

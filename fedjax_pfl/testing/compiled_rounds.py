"""The compiled programs that properties share, and groups of trainings."""

from collections.abc import Callable, Sequence
from typing import Any

import jax

from fedjax_pfl import core, data
from fedjax_pfl.engine import groups
from fedjax_pfl.round.process import FederatedProcess

__all__ = ["group", "init", "run_round", "text"]


run_round = jax.jit(FederatedProcess.round, static_argnames=("model", "execution"))
"""One compiled round of a process, whose arguments are those of its method."""

init = jax.jit(FederatedProcess.init, static_argnames="model")
"""The first state of a process, compiled."""


def text(fn: Callable[..., Any], *args: Any) -> str:
    """Returns the program of a function of arrays, or their shapes; not compiled."""
    return jax.jit(fn).lower(*args).as_text()


def group(
    key: core.Key,
    process: FederatedProcess,
    model: core.Model,
    federation: core.Federation,
    *peers: FederatedProcess,
    points: Sequence[dict[str, Any]] | None = None,
) -> groups.Group:
    """Groups a process, or several that a grid trains on one federation."""
    processes = [process, *peers]
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

"""Catalog of all that can be timed."""

from experiments.bench import (
    adapters,
    backward,
    contenders,
    delays,
    populations,
    portfolios,
    quadratic_programs,
    rules,
    transforms,
    workloads,
)
from fedjax_pfl.core import checks

__all__ = ["TIMED", "find", "peers"]

_COLD = workloads.ColdStart.of(workloads.WORKLOADS["W6"])
TIMED: dict[str, contenders.Timed] = {
    **workloads.WORKLOADS,
    **adapters.ADAPTERS,
    _COLD.name: _COLD,
    **rules.RULES,
    **quadratic_programs.PROGRAMS,
    **portfolios.PORTFOLIOS,
    **populations.POPULATIONS,
    **delays.DELAYS,
    **transforms.TRANSFORMED,
    **backward.BACKWARD,
}


def peers() -> tuple[str, ...]:
    """Returns the names of all peers."""
    return tuple(
        dict.fromkeys(peer for timed in TIMED.values() for peer in timed.peers)
    )


def find(name: str) -> contenders.Timed:
    """Returns the workload of a name."""
    checks.known(name, TIMED, "workload")
    return TIMED[name]

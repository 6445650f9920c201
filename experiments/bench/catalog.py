"""Catalog of all that can be timed."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from experiments.bench import (
    adapters,
    backward,
    cold,
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

__all__ = ["TIMED", "ColdStart", "find", "peers"]


@dataclasses.dataclass(frozen=True)
class ColdStart(workloads.Workload):
    """A whole training, from the start of its process on."""

    def contender(self, name: str) -> contenders.Contender:
        """Makes a contender, which starts a process with every call."""
        return cold.Cold(self, name)

    def agreement(self, results: Mapping[str, Any]) -> dict[str, dict[str, float]]:
        """Returns accuracy and loss."""
        return self.quality(results)


_WARM = workloads.WORKLOADS["W6"]
_COLD = workloads.converted(
    ColdStart,
    _WARM,
    name="W6cold",
    title=f"the process of {_WARM.rounds} rounds of W6, from its start on",
    peers=("torch", "pfl", "flwr"),
)
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

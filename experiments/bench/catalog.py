"""Catalog of all that can be timed, and of what it can be compared with."""

from collections.abc import Callable, Sequence
from typing import Any

from experiments.bench import (
    agreement,
    cold,
    contenders,
    portfolios,
    programs,
    rules,
    workloads,
)
from fedjax_pfl.core import checks

__all__ = ["compare", "find", "fitting", "make", "names", "peers"]

Timed = workloads.Workload | rules.Rule | programs.Program | portfolios.Portfolio
_COLD = cold.workload(workloads.WORKLOADS["W6"])
TIMED: dict[str, Timed] = {
    **workloads.WORKLOADS,
    _COLD.name: _COLD,
    **rules.RULES,
    **programs.PROGRAMS,
    **portfolios.PORTFOLIOS,
}
_MAKERS: dict[type, tuple[Callable[[Any], Any], dict[str, Callable[[Any], Any]]]] = {
    workloads.Workload: (contenders.Ours, contenders.PEERS),
    rules.Rule: (rules.OurRule, rules.PEERS),
    programs.Program: (programs.OurProgram, programs.PEERS),
    portfolios.Portfolio: (contenders.Ours, portfolios.PEERS),
}


def names() -> tuple[str, ...]:
    """Returns the names of everything that can be timed."""
    return tuple(TIMED)


def peers() -> tuple[str, ...]:
    """Returns the names of all peers."""
    return tuple(
        dict.fromkeys(peer for timed in TIMED.values() for peer in timed.peers)
    )


def find(name: str) -> Timed:
    """Returns the workload of a name.

    Raises:
      InputError: if there is none.
    """
    checks.known(name, TIMED, "workload")
    return TIMED[name]


def fitting(asked: Sequence[str], timed: Timed) -> list[str]:
    """Returns the requested peers that a workload can be compared with."""
    return [name for name in asked if name in timed.peers]


def make(name: str, timed: Timed, threads: int) -> contenders.Contender:
    """Makes a contender.

    Args:
      name: `ours` or the name of a peer.
      timed: what it is to do.
      threads: CPUs that it may use.

    Returns:
      The contender; it has trained nothing yet.

    Raises:
      UnavailableError: if it cannot run here.
    """
    if timed is _COLD:
        return cold.Cold(_COLD, name, threads)
    if name not in ("ours", "vmap", "loop-jit", "floor", "scipy"):
        contenders.imported("torch_core").torch.set_num_threads(threads)
    ours, peers = _MAKERS[type(timed)]
    return ours(timed) if name == "ours" else peers[name](timed)


def compare(
    timed: Timed, results: dict[str, Any], threads: int
) -> dict[str, dict[str, float]]:
    """Measures whether contenders compute the same.

    Args:
      timed: what they do.
      results: what each has after one call.
      threads: CPUs that may be used.

    Returns:
      Numbers by contender; see `agreement`.
    """
    if isinstance(timed, rules.Rule):
        return agreement.of_rules(timed, results)
    if isinstance(timed, programs.Program):
        return agreement.of_programs(results)
    if isinstance(timed, portfolios.Portfolio):
        return agreement.differences(results)
    numbers = agreement.of_trainings(timed, results)
    if timed is _COLD:
        return numbers
    peers = [n for n in results if n != "ours" and n not in contenders.INEXACT]
    different = agreement.without_order(
        timed, peers, lambda name, workload: make(name, workload, threads)
    )
    for name, difference in different.items():
        numbers[name]["difference"] = difference
    return numbers

"""Everything that can be timed, and everything that it can be compared with."""

from collections.abc import Sequence
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


def names() -> tuple[str, ...]:
    """Names of everything that can be timed."""
    return tuple(TIMED)


def peers() -> tuple[str, ...]:
    """Names of all peers."""
    return tuple(
        dict.fromkeys(peer for timed in TIMED.values() for peer in timed.peers)
    )


def find(name: str) -> Timed:
    """What has a name.

    Raises:
      InputError: if nothing has.
    """
    checks.known(name, TIMED, "workload")
    return TIMED[name]


def fitting(asked: Sequence[str], timed: Timed) -> list[str]:
    """Those of the peers that were asked for that a workload can be compared with."""
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
    if isinstance(timed, programs.Program):
        kinds = {"ours": programs.OurProgram, **programs.PEERS}
        return kinds[name](timed)
    if name not in ("ours", "vmap", "loop-jit", "floor"):
        contenders.imported("torch_core").torch.set_num_threads(threads)
    if isinstance(timed, portfolios.Portfolio):
        kinds = {"ours": contenders.Ours, **portfolios.PEERS}
        return kinds[name](timed)
    if isinstance(timed, rules.Rule):
        return rules.OurRule(timed) if name == "ours" else rules.PEERS[name](timed)
    if name == "ours":
        return contenders.Ours(timed)
    return contenders.PEERS[name](timed)


def compare(
    timed: Timed, results: dict[str, Any], threads: int
) -> dict[str, dict[str, float]]:
    """Whether contenders compute the same.

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
        return agreement.of_portfolios(results)
    found = agreement.of_trainings(timed, results)
    if timed is _COLD:
        return found
    peers = [n for n in results if n != "ours" and n not in contenders.INEXACT]
    different = agreement.without_order(
        timed, peers, lambda name, workload: make(name, workload, threads)
    )
    for name, difference in different.items():
        found[name]["difference"] = difference
    return found

"""Differential privacy of whole clients: what a process guarantees, and refusals."""

from typing import Any

import numpy as np

from fedjax_pfl.core import checks
from fedjax_pfl.local.participation import AllClients, UniformCohort
from fedjax_pfl.messages import ClipNorm, GaussianNoise, accounting

__all__ = ["check", "epsilons", "noise_of"]


def noise_of(process: Any) -> GaussianNoise | None:
    """Returns the noise of what has `transforms`, or None."""
    found = (t for t in process.transforms if isinstance(t, GaussianNoise))
    return next(found, None)


def check(process: Any) -> None:
    """Refuses noise that would guarantee nothing, or of which epsilon is not known.

    Args:
      process: the process.

    Raises:
      InputError: in one sentence.
    """
    kinds = [type(transform) for transform in process.transforms]
    if GaussianNoise not in kinds:
        return
    if kinds[0] is not ClipNorm or kinds.count(GaussianNoise) > 1:
        names = ", ".join(kind.__name__ for kind in kinds)
        raise checks.InputError(
            "Expected one GaussianNoise behind ClipNorm, which comes first and which"
            f" noise is measured in, got {names}."
        )
    method = type(process.algorithm).__name__
    if process.algorithm.released is None:
        raise checks.InputError(
            "Expected a method of which nothing but the aggregate of bounded messages"
            " leaves the server, such as FedAvg, to make it private by GaussianNoise,"
            f" got {method}."
        )
    rule = process.used_aggregator()
    name = type(rule).__name__
    weighs = rule.incremental == "weighted"
    if weighs or getattr(rule, "weighting", None) == "examples":
        raise checks.InputError(
            "Expected clients of equal weights under GaussianNoise, as with"
            f" aggregator=Mean(), got {name}, where one with many examples can move the"
            " result by more than the clip."
        )
    if hasattr(rule, "encoding"):
        raise checks.InputError(
            f"Expected an aggregator that sees messages, to clip them, got {name}."
        )
    if not isinstance(process.participation, AllClients | UniformCohort):
        raise checks.InputError(
            "Expected AllClients or UniformCohort under GaussianNoise, whose epsilon is"
            f" known, got {type(process.participation).__name__}."
        )
    if process.on_nonfinite == "freeze":
        raise checks.InputError(
            "Expected on_nonfinite='stop' or 'drop' under GaussianNoise, got 'freeze',"
            " with which one client can undo a round."
        )
    accounting.check_installed()


def epsilons(process: Any, num_clients: int, num_rounds: int) -> np.ndarray:
    """Computes epsilon after every round of a process with noise.

    Args:
      process: a checked one, with concrete numbers.
      num_clients: N.
      num_rounds: R.

    Returns:
      `[R]`. Where messages of all clients are aggregated, everybody takes part in
      every round.
    """
    noise: Any = noise_of(process)
    cohort = process.participation.cohort_size(num_clients)
    drawn_from = getattr(process.participation, "among", None) or num_clients
    if process.algorithm.aggregate_over == "all":
        cohort = drawn_from
    values = float(noise.multiplier), float(noise.delta)
    return accounting.epsilons(*values, cohort, drawn_from, num_rounds)

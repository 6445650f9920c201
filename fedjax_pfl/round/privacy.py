"""Client-level differential privacy: checks of a process, and its epsilon."""

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from fedjax_pfl.core import checks
from fedjax_pfl.local import CyclicCohorts, PoissonCohort
from fedjax_pfl.local.participation import AllClients, UniformCohort
from fedjax_pfl.messages import (
    AdaptiveClip,
    BandedNoise,
    ClipNorm,
    ServerNoise,
    TreeNoise,
    accounting,
)
from fedjax_pfl.round.parts.noise import noise_of

if TYPE_CHECKING:
    from fedjax_pfl.round.process import FederatedProcess

__all__ = [
    "adaptive_clip",
    "check",
    "check_bands",
    "epsilons",
]

_CLIPS = (ClipNorm, AdaptiveClip)
_KNOWN = (AllClients, UniformCohort, PoissonCohort, CyclicCohorts)


def adaptive_clip(process: "FederatedProcess") -> AdaptiveClip | None:
    """Returns the adaptive clip of a process, or None."""
    clip = process.transforms[0] if process.transforms else None
    return clip if isinstance(clip, AdaptiveClip) else None


def check(process: "FederatedProcess") -> None:
    """Raises an `InputError` if noise gives no guarantee, or an unknown epsilon."""
    participation, method = process.participation, type(process.algorithm).__name__
    if isinstance(participation, PoissonCohort) and not process.algorithm.is_usual:
        raise checks.InputError(
            "Expected a method of one exchange per round with PoissonCohort, whose rows"
            f" may be empty, got {method}."
        )
    if AdaptiveClip in map(type, process.transforms[1:]):
        raise checks.InputError(
            "Expected AdaptiveClip to be the first of the transforms, got"
            f" {_names(process)}."
        )
    noise = noise_of(process)
    # Without noise there is no guarantee to protect: all other rules are allowed.
    if noise is None:
        return
    kinds = [isinstance(transform, ServerNoise) for transform in process.transforms]
    if not isinstance(process.transforms[0], _CLIPS) or kinds.count(True) > 1:
        raise checks.InputError(
            f"Expected one {type(noise).__name__} behind ClipNorm, the first transform"
            f" and the unit of the noise, got {_names(process)}."
        )
    if process.algorithm.released is None:
        raise checks.InputError(
            "Expected a method that releases nothing but the aggregate of bounded"
            f" messages, such as FedAvg, under {type(noise).__name__}, got {method}."
        )
    _check_rule(process, noise)
    _check_participation(process, noise)
    if process.on_nonfinite == "freeze":
        raise checks.InputError(
            f"Expected on_nonfinite='stop' or 'drop' under {type(noise).__name__}, got"
            " 'freeze', with which one client can undo a round."
        )
    accounting.check_installed()


def _names(process: "FederatedProcess") -> str:
    """Returns the names of the transforms."""
    return ", ".join(type(transform).__name__ for transform in process.transforms)


def _check_rule(process: "FederatedProcess", noise: ServerNoise) -> None:
    """Refuses aggregators that undo the clip, or that noise does not reach."""
    rule, under = process.used_aggregator(), type(noise).__name__
    name = type(rule).__name__
    weighs = rule.incremental == "weighted"
    if weighs or rule.weighting == "examples":
        raise checks.InputError(
            f"Expected clients of equal weights under {under}, as with"
            f" aggregator=Mean(), got {name}, where one with many examples can move the"
            " result by more than the clip."
        )
    if not rule.sees_messages:
        raise checks.InputError(
            f"Expected an aggregator that sees messages, to clip them, got {name}."
        )
    is_mean = rule.incremental == "uniform"
    if not is_mean and noise.over_rounds:
        raise checks.InputError(
            f"Expected aggregator=Mean() under {under}, which is noise in sums over"
            f" rounds, got {name}."
        )
    if not is_mean and isinstance(process.participation, PoissonCohort):
        raise checks.InputError(
            "Expected aggregator=Mean() with PoissonCohort under noise, which divides"
            f" by a number that is no secret, got {name}."
        )


def _check_participation(process: "FederatedProcess", noise: ServerNoise) -> None:
    """Checks that the epsilon of the participation is known."""
    kind, under = type(process.participation), type(noise).__name__
    method, is_cohort = type(process.algorithm).__name__, True
    # With last messages of all clients, every client counts in every round.
    if process.algorithm.aggregate_over == "all":
        is_cohort = False
    if noise.over_rounds and (kind is not CyclicCohorts or not is_cohort):
        culprit = kind.__name__ if is_cohort else f"{method}, which takes those of all"
        raise checks.InputError(
            f"Expected CyclicCohorts under {under}, and a method that aggregates the"
            " messages of the cohort, so that rounds of a client are far apart, got"
            f" {culprit}."
        )
    if noise.over_rounds and adaptive_clip(process) is not None:
        raise checks.InputError(
            f"Expected ClipNorm under {under}, whose sums over rounds have one clip,"
            " got AdaptiveClip."
        )
    if not isinstance(process.participation, _KNOWN):
        raise checks.InputError(
            "Expected AllClients, UniformCohort, PoissonCohort or CyclicCohorts under"
            f" {under}, whose epsilon is known, got {kind.__name__}."
        )
    if not is_cohort and kind is PoissonCohort:
        raise checks.InputError(
            "Expected a method that aggregates the messages of the cohort with"
            f" PoissonCohort under {under}, got {method}, in which every client counts"
            " in every round."
        )
    if not is_cohort and adaptive_clip(process) is not None:
        raise checks.InputError(
            f"Expected ClipNorm under {under} with {method}, which aggregates messages"
            " of earlier rounds, too, got AdaptiveClip."
        )


def check_bands(process: "FederatedProcess", num_clients: int) -> None:
    """Refuses correlated noise over more rounds than a client pauses."""
    noise = noise_of(process)
    if not isinstance(noise, BandedNoise):
        return
    separation = process.participation.separation(num_clients)
    if noise.bands > separation:
        raise checks.InputError(
            f"Expected bands of BandedNoise to be at most {separation}, the rounds in a"
            " row of which CyclicCohorts puts no client into two, got"
            f" bands={noise.bands}."
        )


def epsilons(
    process: "FederatedProcess", num_clients: int, num_rounds: int
) -> np.ndarray:
    """Computes epsilon `[R]` after every round of a process with noise."""
    noise: Any = noise_of(process)
    plan: Any = process.participation
    cohort = plan.cohort_size(num_clients)
    drawn_from = plan.eligible(num_clients)
    multiplier, delta = _multiplier(process), float(noise.delta)
    if process.algorithm.aggregate_over == "all":
        # Every client then takes part in every round.
        cohort, plan = drawn_from, AllClients()
    if isinstance(noise, TreeNoise):
        period = plan.separation(num_clients)
        counts = accounting.tree_participations(period, num_rounds)
        return accounting.gaussian_epsilons(multiplier, delta, counts)
    if isinstance(noise, BandedNoise):
        squares = accounting.banded_squares(
            noise.strategy, cohort, num_clients, num_rounds
        )
        return accounting.gaussian_epsilons(multiplier, delta, squares)
    if isinstance(plan, CyclicCohorts):
        counts = accounting.cyclic_participations(cohort, num_clients, num_rounds)
        return accounting.gaussian_epsilons(multiplier, delta, counts)
    if isinstance(plan, PoissonCohort):
        return accounting.poisson_epsilons(
            multiplier, delta, float(plan.rate), cohort, num_clients, num_rounds
        )
    return accounting.epsilons(multiplier, delta, cohort, drawn_from, num_rounds)


def _multiplier(process: "FederatedProcess") -> float:
    """Returns the deviation of the noise in clips, of sum and number together."""
    noise: Any = noise_of(process)
    clip, multiplier = adaptive_clip(process), float(noise.multiplier)
    if clip is None:
        return multiplier
    # Centered at half a client, the count moves by 1/2 when the sum moves by a clip.
    of_count = 2 * float(clip.count_noise)
    if not multiplier or not of_count:
        return 0.0
    return 1 / math.hypot(1 / multiplier, 1 / of_count)

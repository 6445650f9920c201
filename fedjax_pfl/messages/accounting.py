"""Epsilon of trainings with Gaussian noise, by dp-accounting (extra `privacy`).

Neighbors are federations of N clients that differ in one client. The sum of a cohort's
clipped messages then differs by two clips at most, so that noise of z clips is z / 2 of
its sensitivity. Rounds without sampling are one Gaussian mechanism with an exact
epsilon: n sums that contain the client have `sqrt(n)` times the sensitivity of one. For
cohorts drawn without replacement, Rényi divergences at many orders are added up; for
clients drawn independently, privacy loss distributions are convolved.

Neighbors have the same clients in every round, since draws do not depend on data. Given
the draws, a training is a Gaussian mechanism of at most as many sums as rounds, and
hockey-stick divergences are jointly convex: the epsilon for all clients in every round
also bounds the epsilon for sampled clients, and the smaller bound is reported.

References: Balle, Wang, "Improving the Gaussian Mechanism for Differential Privacy";
Wang, Balle, Kasiviswanathan, "Subsampled Rényi Differential Privacy and Analytical
Moments Accountant"; Doroshenko, Ghazi, Kamath, Kumar, Manurangsi, "Connect the Dots:
Tighter Discrete Approximations of Privacy Loss Distributions".
"""

import functools
import importlib.util
import math
from collections.abc import Sequence

import numpy as np

from fedjax_pfl.core import checks

__all__ = [
    "banded_squares",
    "check_installed",
    "cyclic_participations",
    "epsilon_after",
    "epsilons",
    "gaussian_epsilons",
    "poisson_epsilons",
    "tree_participations",
]

INTERVAL = 1e-3
"""Steps in which privacy losses are rounded up, which raises epsilon by less."""

_CLIPS = 2  # by which a replaced client moves a sum
_ALL_UNTIL = 16  # up to this round, epsilon is computed by convolution for every round
_RATIO = 1.1  # between later rounds for which epsilon is computed


def check_installed() -> None:
    """Checks that dp-accounting is installed.

    Raises:
      InputError: if it is not installed.
    """
    if importlib.util.find_spec("dp_accounting") is None:
        raise checks.InputError(
            "Expected dp-accounting to be installed for the epsilon of noise;"
            " pip install 'fedjax_pfl[privacy]' brings it."
        )


def gaussian_epsilons(
    multiplier: float, delta: float, participations: Sequence[float]
) -> np.ndarray:
    """Computes epsilon of rounds without sampled participants.

    Args:
      multiplier: z, deviation of the noise in clips, at least 0.
      delta: in (0, 1).
      participations: `[R]` largest number of sums with one client, after 1, ..., R
        rounds; for correlated noise the result of `banded_squares`.

    Returns:
      `[R]` epsilon, exact; infinite without noise.
    """
    values = [epsilon_after(multiplier, delta, 1, 1, n) for n in participations]
    return np.array(values, float)


def epsilons(
    multiplier: float, delta: float, cohort: int, num_clients: int, num_rounds: int
) -> np.ndarray:
    """Computes epsilon of rounds with cohorts of a fixed size.

    Args:
      multiplier: z, deviation of the noise in clips, at least 0.
      delta: in (0, 1).
      cohort: number of clients K of a round, drawn uniformly.
      num_clients: clients N that may be drawn.
      num_rounds: R.

    Returns:
      `[R]` epsilon after 1, ..., R rounds; infinite without noise.
    """
    values = [
        epsilon_after(multiplier, delta, cohort, num_clients, count)
        for count in range(1, num_rounds + 1)
    ]
    return np.array(values, float)


@functools.lru_cache(maxsize=2**16)
def epsilon_after(
    multiplier: float, delta: float, size: int, population: int, count: float
) -> float:
    """Computes epsilon of noisy sums over uniform samples.

    Args:
      multiplier: z, deviation of the noise in clips, at least 0.
      delta: in (0, 1).
      size: members of a sample, drawn without replacement.
      population: number of clients from which they are drawn.
      count: number of sums; if all clients are in every sum, any number >= 0, the
        squared sensitivity relative to that of one sum.

    Returns:
      Epsilon; infinite without noise, and 0 without sums.
    """
    if count == 0:
        return 0.0
    if multiplier == 0:
        return math.inf
    import dp_accounting  # pyright: ignore[reportMissingImports] (an extra)

    # n sums with the same client have sqrt(n) times the sensitivity of one.
    sigma = multiplier / _CLIPS / math.sqrt(count)
    gaussian_bound = float(dp_accounting.get_epsilon_gaussian(sigma, delta))
    if size == population:
        return gaussian_bound
    from dp_accounting import rdp  # pyright: ignore[reportMissingImports]

    orders, divergences = _fixed_size(multiplier, size, population)
    sampled_bound = rdp.compute_epsilon(orders, count * divergences, delta)[0]
    # Both bounds hold: all clients in every sum are the worst draw.
    return min(gaussian_bound, float(sampled_bound))


@functools.lru_cache(maxsize=1024)
def _fixed_size(
    multiplier: float, cohort: int, num_clients: int
) -> tuple[np.ndarray, np.ndarray]:
    """Returns orders, and the Rényi divergences of one sum."""
    import dp_accounting  # pyright: ignore[reportMissingImports]
    from dp_accounting import dp_event, rdp  # pyright: ignore[reportMissingImports]

    relation = dp_accounting.NeighboringRelation.REPLACE_ONE
    accountant = rdp.RdpAccountant(neighboring_relation=relation)
    noise = dp_event.GaussianDpEvent(multiplier / _CLIPS)
    accountant.compose(
        dp_event.SampledWithoutReplacementDpEvent(num_clients, cohort, noise)
    )
    return np.asarray(accountant.orders), np.asarray(accountant.rdp)


def poisson_epsilons(
    multiplier: float,
    delta: float,
    rate: float,
    capacity: int,
    num_clients: int,
    num_rounds: int,
) -> np.ndarray:
    """Computes epsilon of rounds with independently drawn clients.

    The guarantee includes the truncation to `capacity` clients per round.

    Args:
      multiplier: z, deviation of the noise in clips, at least 0.
      delta: in (0, 1).
      rate: probability q of every client.
      capacity: K, the most clients of a round; of more a uniform subset takes part.
      num_clients: N.
      num_rounds: R.

    Returns:
      `[R]` epsilon after 1, ..., R rounds; infinite without noise. Above 16 rounds it
      is computed for the last round and for others in steps of at most a tenth; a
      round in between has the value of the next computed one.
    """
    if multiplier == 0:
        return np.full(num_rounds, math.inf)
    # From the last round down in steps of a tenth: a convolution is slow, and epsilon
    # never falls, so that a later value bounds an earlier one.
    computed = [num_rounds]
    while computed[-1] > 1:
        last = computed[-1]
        candidate = last - 1 if last <= _ALL_UNTIL else math.ceil(last / _RATIO)
        computed.append(min(candidate, last - 1))
    computed = np.array(computed[::-1])
    setting = (multiplier, delta, rate, capacity, num_clients)
    values = [_poisson_epsilon(*setting, int(count)) for count in computed]
    rounds = np.arange(1, num_rounds + 1)
    return np.array(values)[np.searchsorted(computed, rounds)]


@functools.lru_cache(maxsize=4096)
def _poisson_epsilon(
    multiplier: float,
    delta: float,
    rate: float,
    capacity: int,
    num_clients: int,
    count: int,
) -> float:
    """Computes epsilon after `count` rounds."""
    gaussian_bound = epsilon_after(multiplier, delta, 1, 1, count)
    distribution = _poisson_round(multiplier, rate, capacity, num_clients)
    sampled_bound = distribution.self_compose(count).get_epsilon_for_delta(delta)
    return min(gaussian_bound, float(sampled_bound))


@functools.lru_cache(maxsize=16)
def _poisson_round(multiplier: float, rate: float, capacity: int, num_clients: int):
    """Returns the distribution of the privacy loss of one round; noise is in clips."""
    import dp_accounting  # pyright: ignore[reportMissingImports]
    from dp_accounting.pld import (  # pyright: ignore[reportMissingImports]
        privacy_loss_distribution as pld,
    )

    # The replaced client moves a sum by two clips: dp-accounting counts that itself.
    return pld.from_truncated_subsampled_gaussian_mechanism(
        dataset_size=num_clients,
        sampling_probability=rate,
        truncated_batch_size=capacity,
        noise_multiplier=multiplier,
        value_discretization_interval=INTERVAL,
        neighboring_relation=dp_accounting.NeighboringRelation.REPLACE_ONE,
    )


def cyclic_participations(cohort: int, num_clients: int, num_rounds: int) -> list[int]:
    """Bounds the number of sums with one client when cohorts take turns.

    Args:
      cohort: K.
      num_clients: N.
      num_rounds: R.

    Returns:
      `[R]`, after 1, ..., R rounds.
    """
    return [-(-r * cohort // num_clients) for r in range(1, num_rounds + 1)]


def tree_participations(period: int, num_rounds: int) -> list[int]:
    """Bounds the number of nodes with one client, over all trees.

    Args:
      period: rounds b of a tree; a client takes part in one of them at most.
      num_rounds: R.

    Returns:
      `[R]`, after 1, ..., R rounds: the first leaf is in the most nodes.

    Example:
      >>> tree_participations(4, 6)
      [1, 2, 2, 3, 4, 5]
    """
    # A leaf is in one node of every level of its tree.
    depth = period.bit_length()
    return [
        r // period * depth + (r % period).bit_length()
        for r in range(1, num_rounds + 1)
    ]


def banded_squares(
    strategy: np.ndarray, cohort: int, num_clients: int, num_rounds: int
) -> list[float]:
    """Computes the squared sensitivity under banded noise when cohorts take turns.

    If no two of a client's rounds `t_1, t_2, ...` are closer than the bands, the
    columns `t_1, t_2, ...` of the strategy's matrix have no row in common, and squares
    of their norms add up. After R rounds a column has R rows. The client of the first
    place reaches its m-th round no later than any other, and has the most influence.

    Args:
      strategy: `[b]`, b at most `floor(N / K)`.
      cohort: K.
      num_clients: N.
      num_rounds: R.

    Returns:
      `[R]` squared sensitivities after 1, ..., R rounds, in squares of two clips; for
      a strategy of norm 1 the number of the client's rounds.

    Example:
      >>> squares = banded_squares(np.array([0.6, 0.8]), 1, 2, 4)
      >>> [round(square, 9) for square in squares]
      [0.36, 1.0, 1.36, 2.0]
    """
    # After R rounds a column of the strategy's matrix has R rows.
    column = np.zeros(num_rounds)
    column[: len(strategy)] = np.square(strategy)[:num_rounds]
    grown, total = np.cumsum(column), np.zeros(num_rounds)
    # The client of the first place: it reaches its m-th round before any other.
    turns = -(-num_rounds * cohort // num_clients)
    for start in (turn * num_clients // cohort for turn in range(turns)):
        total[start:] += grown[: num_rounds - start]
    return total.tolist()

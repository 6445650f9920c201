"""Epsilon of trainings with Gaussian noise, by dp-accounting (extra `privacy`).

Neighbors are federations of N clients of which one is replaced by another. The sum of
a cohort's clipped messages then moves by two clips at most, so that noise of z clips is
z / 2 of its sensitivity. What is not sampled is one Gaussian mechanism, whose epsilon
is known exactly: n sums with the client in it have `sqrt(n)` times the sensitivity of
one. A cohort of fixed size, drawn without replacement: Rényi divergences at many
orders, which add up. Clients that are drawn each by itself: privacy loss distributions,
which are convolved.

Neighbors have the same clients in every round, since draws do not depend on data. Given
the draws, a training is a Gaussian mechanism of at most as many sums as rounds, and
hockey-stick divergences are jointly convex: of the same neighbors, the epsilon of all
clients in every round bounds that of drawn ones, and the smaller bound is reported.

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
_ALL_UNTIL = 16  # rounds whose epsilon is computed by convolution, each of them
_RATIO = 1.1  # of the later ones that it is computed for


def check_installed() -> None:
    """Refuses to go on without dp-accounting.

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
    """Computes what rounds have spent whose participants are not drawn.

    Args:
      multiplier: z, deviation of the noise in clips, at least 0.
      delta: in (0, 1).
      participations: `[R]` most sums that one client is in, after 1, ..., R rounds; of
        sums that share their noise, what `banded_squares` counts.

    Returns:
      `[R]` epsilon, exact; infinite without noise.
    """
    each = [epsilon_after(multiplier, delta, 1, 1, n) for n in participations]
    return np.array(each, float)


def epsilons(
    multiplier: float, delta: float, cohort: int, num_clients: int, num_rounds: int
) -> np.ndarray:
    """Computes what rounds have spent whose cohorts have a fixed size.

    Args:
      multiplier: z, deviation of the noise in clips, at least 0.
      delta: in (0, 1).
      cohort: clients K of a round, of which a uniform draw decides.
      num_clients: clients N that may be drawn.
      num_rounds: R.

    Returns:
      `[R]` epsilon after 1, ..., R rounds; infinite without noise.
    """
    each = [
        epsilon_after(multiplier, delta, cohort, num_clients, count)
        for count in range(1, num_rounds + 1)
    ]
    return np.array(each, float)


@functools.lru_cache(maxsize=2**16)
def epsilon_after(
    multiplier: float, delta: float, size: int, population: int, count: float
) -> float:
    """Computes what noisy sums over uniform samples have spent.

    Args:
      multiplier: z, deviation of the noise in clips, at least 0.
      delta: in (0, 1).
      size: members of a sample, drawn without replacement.
      population: of how many.
      count: number of sums; where all are in every one, also a part of one, by the
        square of what it can be moved.

    Returns:
      Epsilon; infinite without noise, and 0 without sums.
    """
    if count == 0:
        return 0.0
    if multiplier == 0:
        return math.inf
    import dp_accounting  # pyright: ignore[reportMissingImports] (an extra)

    sigma = multiplier / _CLIPS / math.sqrt(count)
    whole = float(dp_accounting.get_epsilon_gaussian(sigma, delta))
    if size == population:
        return whole
    from dp_accounting import rdp  # pyright: ignore[reportMissingImports]

    orders, divergences = _fixed_size(multiplier, size, population)
    drawn = rdp.compute_epsilon(orders, count * divergences, delta)[0]
    return min(whole, float(drawn))


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
    """Computes what rounds have spent whose clients are drawn each by itself.

    That a round takes no more than `capacity` of them is accounted for.

    Args:
      multiplier: z, deviation of the noise in clips, at least 0.
      delta: in (0, 1).
      rate: probability q of every client.
      capacity: K, the most clients of a round, drawn uniformly of more.
      num_clients: N.
      num_rounds: R.

    Returns:
      `[R]` epsilon after 1, ..., R rounds, where above 16 rounds it is computed for
      the last, and for others of which each is at most a tenth later than the one
      before; in between it is that of the next one. Infinite without noise.
    """
    if multiplier == 0:
        return np.full(num_rounds, math.inf)
    computed = [num_rounds]
    while computed[-1] > 1:
        last = computed[-1]
        before = last - 1 if last <= _ALL_UNTIL else math.ceil(last / _RATIO)
        computed.append(min(before, last - 1))
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
    whole = epsilon_after(multiplier, delta, 1, 1, count)
    distribution = _poisson_round(multiplier, rate, capacity, num_clients)
    drawn = distribution.self_compose(count).get_epsilon_for_delta(delta)
    return min(whole, float(drawn))


@functools.lru_cache(maxsize=16)
def _poisson_round(multiplier: float, rate: float, capacity: int, num_clients: int):
    """Returns the distribution of the privacy loss of one round.

    The noise is in clips: a replacement, which moves the sum by two, is known to it.
    """
    import dp_accounting  # pyright: ignore[reportMissingImports]
    from dp_accounting.pld import (  # pyright: ignore[reportMissingImports]
        privacy_loss_distribution as pld,
    )

    return pld.from_truncated_subsampled_gaussian_mechanism(
        dataset_size=num_clients,
        sampling_probability=rate,
        truncated_batch_size=capacity,
        noise_multiplier=multiplier,
        value_discretization_interval=INTERVAL,
        neighboring_relation=dp_accounting.NeighboringRelation.REPLACE_ONE,
    )


def cyclic_participations(cohort: int, num_clients: int, num_rounds: int) -> list[int]:
    """Counts the sums that a client is in at most when cohorts take turns.

    Args:
      cohort: K.
      num_clients: N.
      num_rounds: R.

    Returns:
      `[R]`, after 1, ..., R rounds.
    """
    return [-(-r * cohort // num_clients) for r in range(1, num_rounds + 1)]


def tree_participations(period: int, num_rounds: int) -> list[int]:
    """Counts the nodes that a client is in at most, over all trees.

    Args:
      period: rounds b of a tree, in of which a client takes part in one.
      num_rounds: R.

    Returns:
      `[R]`, after 1, ..., R rounds: the first leaf is in the most nodes.

    Example:
      >>> tree_participations(4, 6)
      [1, 2, 2, 3, 4, 5]
    """
    whole = period.bit_length()
    return [
        r // period * whole + (r % period).bit_length()
        for r in range(1, num_rounds + 1)
    ]


def banded_squares(
    strategy: np.ndarray, cohort: int, num_clients: int, num_rounds: int
) -> list[float]:
    """Computes how far a client moves what banded noise hides, when cohorts take turns.

    With a client in rounds `t_1, t_2, ...`, of which no two are closer than the bands,
    the columns `t_1, t_2, ...` of the strategy's matrix have no row in common: squares
    of their norms add up. After R rounds a column has R rows. The first client of all
    is in its m-th round no later than any other, and so moves the most.

    Args:
      strategy: `[b]`, b at most `floor(N / K)`.
      cohort: K.
      num_clients: N.
      num_rounds: R.

    Returns:
      `[R]` squared sensitivities after 1, ..., R rounds, in squares of two clips: as
      many as the rounds that a client is in, where the strategy has norm 1.

    Example:
      >>> squares = banded_squares(np.array([0.6, 0.8]), 1, 2, 4)
      >>> [round(square, 9) for square in squares]
      [0.36, 1.0, 1.36, 2.0]
    """
    column = np.zeros(num_rounds)
    column[: len(strategy)] = np.square(strategy)[:num_rounds]
    grown, total = np.cumsum(column), np.zeros(num_rounds)
    turns = -(-num_rounds * cohort // num_clients)
    for first in (turn * num_clients // cohort for turn in range(turns)):
        total[first:] += grown[: num_rounds - first]
    return total.tolist()

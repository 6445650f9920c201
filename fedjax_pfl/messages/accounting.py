"""Epsilon of trainings with Gaussian noise, by dp-accounting (extra `privacy`).

Neighbors are federations of N clients of which one is replaced by another. The sum of
a cohort's clipped messages then moves by two clips at most, so that noise of z clips is
z / 2 of its sensitivity. Everybody in every round: R rounds are one Gaussian mechanism
with `sqrt(R)` times the sensitivity, whose epsilon is known exactly. A cohort of fixed
size, drawn without replacement: Rényi divergences at many orders, which add up.

References: Balle, Wang, "Improving the Gaussian Mechanism for Differential Privacy";
Wang, Balle, Kasiviswanathan, "Subsampled Rényi Differential Privacy and Analytical
Moments Accountant".
"""

import importlib.util
import math

import numpy as np

from fedjax_pfl.core import checks

__all__ = ["check_installed", "epsilons"]

_CLIPS = 2  # by which a replaced client moves a sum


def check_installed() -> None:
    """Refuses to go on without dp-accounting.

    Raises:
      InputError: if it is not installed.
    """
    if importlib.util.find_spec("dp_accounting") is None:
        raise checks.InputError(
            "Expected dp-accounting to be installed for the epsilon of GaussianNoise;"
            " pip install 'fedjax_pfl[privacy]' brings it."
        )


def epsilons(
    multiplier: float, delta: float, cohort: int, num_clients: int, num_rounds: int
) -> np.ndarray:
    """Computes what rounds have spent.

    Args:
      multiplier: z, deviation of the noise in clips, at least 0.
      delta: in (0, 1).
      cohort: clients K of a round, of which a uniform draw decides.
      num_clients: clients N that may be drawn.
      num_rounds: R.

    Returns:
      `[R]` epsilon after 1, ..., R rounds; infinite without noise.
    """
    import dp_accounting  # pyright: ignore[reportMissingImports] (an extra)
    from dp_accounting import dp_event, rdp  # pyright: ignore[reportMissingImports]

    rounds = np.arange(1, num_rounds + 1)
    sigma = multiplier / _CLIPS
    if sigma == 0:
        return np.full(num_rounds, math.inf)
    if cohort == num_clients:
        each = (sigma / math.sqrt(count) for count in rounds)
        exact = [dp_accounting.get_epsilon_gaussian(s, delta) for s in each]
        return np.array(exact, float)
    relation = dp_accounting.NeighboringRelation.REPLACE_ONE
    accountant = rdp.RdpAccountant(neighboring_relation=relation)
    noise = dp_event.GaussianDpEvent(sigma)
    event = dp_event.SampledWithoutReplacementDpEvent(num_clients, cohort, noise)
    accountant.compose(event)
    orders, divergences = accountant.orders, accountant.rdp
    each = [rdp.compute_epsilon(orders, n * divergences, delta)[0] for n in rounds]
    return np.array(each, float)

"""Descent and rates of FLAME.

Reference: Zhu et al., "On ADMM in Heterogeneous Federated Learning: Personalization,
Robustness, and Fairness"; the printed iota contradicts a direct computation.
"""

import dataclasses
import math

import numpy as np

from fedjax_pfl.core import checks

__all__ = [
    "PaperConditions",
    "convergence_factors",
    "descent_factors",
    "paper_conditions",
    "smallest_kappa",
]


def convergence_factors(kappa: float, ratio: float, center: str) -> tuple[float, float]:
    """Computes FLAME's error factors per round: `A_i = b I`, exact, all clients.

    The error of a coordinate splits into deviations from the mean, with state (x, y),
    and the mean, with state (x, y, w); x is that of `w_i`, y that of `kappa p`:

        deviation  x+ = (c - y) / (1 + kappa)               y+ = y + kappa x+
        mean       x+ = (c + kappa w - y) / (1 + kappa)     y+ = y + kappa (x+ - w)
                   w+ = x+ + y+ / kappa

    c is the error of theta: `x / (1 + h)` about the client's own center, 0 and
    `w / (1 + h)` about the received one.

    Args:
      kappa: `rho / (lam alpha)`, > 0.
      ratio: `h = b / lam`, > 0.
      center: `local` (prox center `w_i`) or `global` (the received w).

    Returns:
      Spectral radii of the deviations and of the mean; the larger one governs.

    Example:
      >>> [round(f, 4) for f in convergence_factors(2.0, 1.0, "local")]
      [0.4082, 0.8333]
    """
    checks.known(center, ("local", "global"), "prox center")
    pull = 1 / (1 + ratio)
    own, received = (pull, 0.0) if center == "local" else (0.0, pull)
    x = np.array([own, -1.0]) / (1 + kappa)
    deviation = np.stack([x, np.array([0.0, 1.0]) + kappa * x])
    x = np.array([own, -1.0, received + kappa]) / (1 + kappa)
    y = np.array([0.0, 1.0, -kappa]) + kappa * x
    mean = np.stack([x, y, x + y / kappa])
    radii = [float(np.abs(np.linalg.eigvals(a)).max()) for a in (deviation, mean)]
    return radii[0], radii[1]


@dataclasses.dataclass(frozen=True)
class PaperConditions:
    """The paper's sufficient conditions for descent, per client (`[m]` arrays).

    Attributes:
      c1: `a^2 (1 + rho) / rho^2 < (a + rho) / 2`, with `a = lam alpha`.
      c2: `rho >= a`.
      c3: `c > 0`.
      c: `(1 - rho^2) / rho^2 a^2 - (L alpha + rho) / 2`.
      iota: `1 / (4 c (1 - ups))`, the Lyapunov weight that the criterion needs.
      printed_iota: `alpha^2 / (c (1 - ups))`; with it the claim fails.
      descent: `[]` D1, `min_i {rho / 2, (a + rho) / 2 - a^2 (1 + rho) / rho^2}`.
    """

    c1: np.ndarray
    c2: np.ndarray
    c3: np.ndarray
    c: np.ndarray
    iota: np.ndarray
    printed_iota: np.ndarray
    descent: float


def paper_conditions(
    alpha: np.ndarray, lam: float, rho: float, smoothness: float, decay: float = 0.5
) -> PaperConditions:
    """Evaluates C1 to C3 and the constants of the paper's descent lemma.

    They are compatible only for `rho < (sqrt(17) - 3) / 4` and a narrow band of kappa.

    Args:
      alpha: `[m]` client weights.
      lam: weight of the distance to w.
      rho: penalty.
      smoothness: `[]` or `[m]` smoothness constants L of `f_i`.
      decay: factor ups in (0, 1) of the inexactness budget.

    Returns:
      The conditions; iota means something only where c3 holds.
    """
    a = lam * alpha
    slack = (a + rho) / 2 - a**2 * (1 + rho) / rho**2
    c = (1 - rho**2) / rho**2 * a**2 - (smoothness * alpha + rho) / 2
    return PaperConditions(
        c1=slack > 0,
        c2=rho >= a,
        c3=c > 0,
        c=c,
        iota=1 / (4 * c * (1 - decay)),
        printed_iota=alpha**2 / (c * (1 - decay)),
        descent=float(min(rho / 2, slack.min())),
    )


def descent_factors(
    alpha: np.ndarray,
    lam: float,
    rho: float,
    smoothness: float,
    *,
    balance: float = 1.0,
    slack: float = 0.0,
) -> tuple[np.ndarray, np.ndarray]:
    """Factors of the descent of the augmented Lagrangian, for any participation.

    If both are positive for every client, the Lagrangian, plus `ups / (4 s (1 - ups))`
    times the budgets where `s > 0`, falls by at least their products with `|dw_i|^2`
    and `|dtheta_i|^2` of the selected clients:

        (a + rho) / 2 - a^2 / rho (1 + 1 / k)
        alpha (lam - L) / 2 - a^2 / rho (1 + k) - s

    Args:
      alpha: `[m]` client weights; `a = lam alpha`.
      lam: weight of the distance to w.
      rho: penalty.
      smoothness: `[]` or `[m]` L; 0 will do for convex losses, -mu for strongly convex.
      balance: `[]` or `[m]` k > 0, free.
      slack: `[]` or `[m]` s >= 0, free; 0 is for exact solves.

    Returns:
      `[m]` factors of the clients' copies of w and of their personal parameters.
    """
    a = lam * alpha
    copies = (a + rho) / 2 - a**2 / rho * (1 + 1 / balance)
    personal = alpha * (lam - smoothness) / 2 - a**2 / rho * (1 + balance) - slack
    return copies, personal


def smallest_kappa(smoothness_ratio: float) -> float:
    """Returns the infimum of kappa with positive `descent_factors` for some k.

    With `g = 1 - L / lam`: the positive root of `g x^2 + (g - 2) x - 2 (1 + g) = 0`.

    Args:
      smoothness_ratio: `L / lam` < 1; 0 for convex losses, `-mu / lam` for strongly so.

    Returns:
      The bound on kappa. No kappa is enough for `L >= lam`, which is an error.

    Example:
      >>> round(smallest_kappa(0.0), 3)
      2.562
    """
    checks.number("smoothness_ratio", smoothness_ratio, below=1)
    g = 1 - smoothness_ratio
    return (2 - g + math.sqrt((g - 2) ** 2 + 8 * g * (1 + g))) / (2 * g)

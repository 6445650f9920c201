"""Strategies of correlated noise, for accurate sums over rounds.

A lower-triangular Toeplitz matrix C with b bands, `C[i, j] = c_{i-j}`, correlates
independent draws Z: rounds get the rows of `C^-1 Z` as noise, and the sum of the first
t rounds has a row of `A C^-1 Z`, where A has ones on and below its diagonal. With the
rounds' sums G the release is `A (G + C^-1 Z) = A C^-1 (C G + Z)`, a function of one
Gaussian mechanism for `C G`.

References: Choquette-Choo, Ganesh, McKenna, McMahan, Rush, Thakurta, Xu, "(Amplified)
Banded Matrix Factorization: A Unified Approach to Private Training"; McKenna, "Scaling
up the Banded Matrix Factorization Mechanism for Differentially Private ML".
"""

import functools

import numpy as np

from fedjax_pfl.core import checks

__all__ = ["banded_toeplitz", "squared_error"]

_HUGE = 700.0  # logarithm of an error near the largest 64-bit float


@functools.lru_cache(maxsize=64)
def banded_toeplitz(bands: int, rounds: int) -> tuple[float, ...]:
    """Computes the banded Toeplitz strategy with the smallest error of sums.

    Returns:
      `c_0, ..., c_{b-1}`, of norm 1 and `c_0 > 0`; with one band independent noise.

    Example:
      >>> banded_toeplitz(1, 100)
      (1.0,)
    """
    from scipy import optimize

    checks.positive_int("bands", bands)
    checks.positive_int("rounds", rounds)
    numbers = np.arange(1, bands)
    # For b = n the square root of A, 1, 1/2, 3/8, ..., is nearly optimal.
    start = np.cumprod((2 * numbers - 1) / (2 * numbers))
    if bands == 1:
        return (1.0,)
    best = optimize.minimize(
        _log_error,
        start,
        args=(rounds,),
        jac=True,
        method="L-BFGS-B",
        bounds=[(0, 1)] * len(start),
        options={"ftol": 0, "gtol": 1e-12, "maxiter": 1000},
    )
    # The error does not depend on the norm: c_0 = 1 in the search, norm 1 in the end.
    coefficients = np.array([1.0, *best.x])
    return tuple((coefficients / np.linalg.norm(coefficients)).tolist())


def squared_error(coefficients: np.ndarray, rounds: int) -> float:
    """Computes the variance of sums, relative to one round's squared sensitivity.

    Args:
      coefficients: `[b]` c_0, ..., c_{b-1}, of any norm, `c_0 > 0`.
      rounds: n.

    Returns:
      `|c|^2 / n` times the squared Frobenius norm of `A C^-1`.

    Example:
      >>> round(squared_error(np.ones(1), 9), 9)  # the mean of 1, ..., 9
      5.0
    """
    c = np.asarray(coefficients, float)
    return float(np.exp(_log_error(c[1:] / c[0], rounds)[0]))


def _log_error(tail: np.ndarray, rounds: int) -> tuple[float, np.ndarray]:
    """Returns the logarithm of the error at `(1, *tail)`, and its gradient."""
    from scipy import signal

    c = np.array([1.0, *tail])
    impulse = np.zeros(rounds)
    impulse[0] = 1
    with np.errstate(over="ignore", invalid="ignore"):
        inverse = np.asarray(signal.lfilter([1.0], c, impulse))  # a column of C^-1
        sums = inverse.cumsum()  # of A C^-1
        weights = np.arange(rounds, 0, -1) / rounds
        spread, norm = weights @ sums**2, c @ c
        if not np.isfinite(spread):  # C^-1 grows without bound
            return _HUGE, np.zeros_like(tail)
        # d sums / d c_j, shifted by j.
        slopes = np.asarray(signal.lfilter([1.0], c, sums))
        weighted = weights * sums
        gradient = np.array(
            [
                -2 * weighted[j:] @ slopes[: max(rounds - j, 0)] / spread
                for j in range(1, len(c))
            ]
        )
    value = np.log(spread) + np.log(norm)
    return float(value), gradient + 2 * np.asarray(tail) / norm

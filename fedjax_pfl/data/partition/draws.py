"""Random draws shared by several partitions."""

import heapq
from typing import Any

import numpy as np
from numpy.random import Generator

__all__ = [
    "MAX_DRAWS",
    "dirichlet",
    "fill",
    "lognormal",
    "lognormal_sizes",
    "raised",
]

MAX_DRAWS = 100


def dirichlet(
    rng: Generator, concentration: float, shape: tuple[int, int]
) -> np.ndarray:
    """Draws symmetric Dirichlet rows by logarithms of Gamma variates.

    With small concentrations the variates themselves underflow and rows become 0 / 0;
    here they tend to a single 1. (Gamma(a) equals Gamma(a + 1) * U^(1/a) in
    distribution.)
    """
    a = max(concentration, 1e-300)  # the division below must not overflow
    logs = np.log(rng.standard_gamma(a + 1, shape))
    return _shares(logs - rng.standard_exponential(shape) / a)


def lognormal(rng: Generator, sigma: float, count: int) -> np.ndarray:
    """Draws shares `[count]` in proportion to lognormal variates of scale `sigma`."""
    # A huge sigma makes a single share of 1 instead of inf / inf.
    return _shares(min(sigma, 1e300) * rng.standard_normal(count))


def lognormal_sizes(
    rng: Generator, mean: float, sigma: float, count: int
) -> np.ndarray:
    """Draws `lognormal(mean, sigma)` variates `int[count]`, rounded down.

    Capped at `exp(40)`, which is more than any data set has examples.
    """
    logs = mean + min(sigma, 1e300) * rng.standard_normal(count)
    return np.floor(np.exp(np.minimum(logs, 40.0))).astype(np.int64)


def _shares(logs: np.ndarray) -> np.ndarray:
    """Returns the softmax along the last axis."""
    shares = np.exp(logs - logs.max(axis=-1, keepdims=True))
    return shares / shares.sum(axis=-1, keepdims=True)


def raised(sizes: np.ndarray, minimum: int) -> np.ndarray:
    """Raises sizes `int[N]` to a minimum at the cost of the largest.

    Giving one at a time, the largest first, ends with a common level of the givers. The
    sum must be at least N times the minimum.
    """
    missing = np.maximum(minimum - sizes, 0).sum()
    low, high = minimum, int(sizes.max())  # levels that give enough, and too little
    while high - low > 1:
        level = (low + high) // 2
        enough = np.maximum(sizes - level, 0).sum() >= missing
        low, high = (level, high) if enough else (low, level)
    new = np.clip(sizes, minimum, max(low, minimum))
    surplus = sizes.sum() - new.sum()  # at most one of each giver
    new[np.flatnonzero(sizes > low)[:surplus]] += 1
    return new


def fill(rng: Generator, clients: list[np.ndarray], min_examples: int) -> list[Any]:
    """Moves random examples, one by one, from the largest clients to small ones."""
    if min(map(len, clients)) >= min_examples:
        return clients
    rows = [rng.permutation(client).tolist() for client in clients]
    largest = [(-len(client), i) for i, client in enumerate(rows)]
    heapq.heapify(largest)
    for client in rows:
        while len(client) < min_examples:
            # Receivers never exceed the minimum, so the first entry is up to date; it
            # is above the minimum because another client is below.
            donor = largest[0][1]
            client.append(rows[donor].pop())
            heapq.heapreplace(largest, (-len(rows[donor]), donor))
    return rows

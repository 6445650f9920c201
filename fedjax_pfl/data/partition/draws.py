"""Random draws shared by several partitions."""

import numpy as np
from numpy.random import Generator

__all__ = [
    "MAX_DRAWS",
    "dirichlet",
    "filled",
    "lognormal",
    "lognormal_sizes",
    "raised",
    "topped_up",
]

MAX_DRAWS = 100


def dirichlet(
    rng: Generator, concentration: float, shape: tuple[int, int]
) -> np.ndarray:
    """Draws symmetric Dirichlet rows by logarithms of Gamma variates."""
    a = max(concentration, 1e-300)  # the division below must not overflow
    # With small concentrations the variates themselves underflow and rows become 0 / 0;
    # here they tend to a single 1. (Gamma(a) equals Gamma(a + 1) * U^(1/a) in
    # distribution.)
    logs = np.log(rng.standard_gamma(a + 1, shape))
    return _shares(logs - rng.standard_exponential(shape) / a)


def lognormal(rng: Generator, sigma: float, count: int) -> np.ndarray:
    """Draws shares `[count]` in proportion to lognormal variates of scale `sigma`."""
    # A huge sigma makes a single share of 1 instead of inf / inf.
    return _shares(min(sigma, 1e300) * rng.standard_normal(count))


def lognormal_sizes(
    rng: Generator, mean: float, sigma: float, count: int
) -> np.ndarray:
    """Draws `lognormal(mean, sigma)` variates `int[count]`, rounded down."""
    logs = mean + min(sigma, 1e300) * rng.standard_normal(count)
    # Capped at `exp(40)`, which is more than any data set has examples.
    return np.floor(np.exp(np.minimum(logs, 40.0))).astype(np.int64)


def _shares(logs: np.ndarray) -> np.ndarray:
    """Returns the softmax along the last axis."""
    shares = np.exp(logs - logs.max(axis=-1, keepdims=True))
    return shares / shares.sum(axis=-1, keepdims=True)


def raised(sizes: np.ndarray, minimum: int) -> np.ndarray:
    """Raises sizes `int[N]`, of enough sum, to a minimum at the cost of the largest."""
    # Giving one at a time, the largest first, ends with a common level of the givers.
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


def topped_up(
    rng: Generator,
    counts: np.ndarray,
    room: np.ndarray,
    minimum: int,
    concentration: float,
) -> np.ndarray:
    """Raises a client's counts `int[C]` of classes to a minimum, within `room [C]`."""
    new = counts.copy()
    # A client without examples draws proportions: a smaller concentration never makes
    # clients more alike.
    shares = _proportions(rng, counts, concentration)
    while new.sum() < minimum:
        new[_next_class(new, shares, room + counts - new, minimum)] += 1
    return new


def filled(
    rng: Generator, counts: np.ndarray, minimum: int, concentration: float
) -> np.ndarray:
    """Moves examples, counted in `int[C, N]`, to clients below a minimum."""
    new = counts.copy()
    spare = np.maximum(counts.sum(axis=0) - minimum, 0)
    for client in np.flatnonzero(counts.sum(axis=0) < minimum):
        shares = _proportions(rng, counts[:, client], concentration)
        while new[:, client].sum() < minimum:
            # An example comes from the client with most of its class, and more than the
            # minimum.
            gifts = np.where(spare > 0, new, 0)
            label = _next_class(new[:, client], shares, gifts.max(axis=1), minimum)
            donor = gifts[label].argmax()
            new[label, [client, donor]] += (1, -1)
            spare[donor] -= 1
    return new


def _proportions(
    rng: Generator, counts: np.ndarray, concentration: float
) -> np.ndarray:
    """Returns a client's proportions `[C]` of classes; a draw if it has none."""
    if total := counts.sum():
        return counts / total
    return dirichlet(rng, concentration, (1, len(counts)))[0]


def _next_class(
    counts: np.ndarray, shares: np.ndarray, room: np.ndarray, size: int
) -> np.intp:
    """Returns the class with room that a client of a size lacks most."""
    return np.where(room > 0, shares * size - counts, -np.inf).argmax()

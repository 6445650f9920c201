"""Generators of a party's further years of prices from its own training prices.

A generated year is a pure function of seed, client and year: the fit has a random
generator per client, and every year has one of its own.
"""

import abc
import dataclasses
from collections.abc import Callable, Sequence
from typing import ClassVar

import numpy as np

from fedjax_pfl.core import checks, struct

__all__ = [
    "Generator",
    "GeometricBrownianMotion",
    "Sampler",
    "VariableOrderMarkov",
]

Sampler = Callable[[Sequence[np.random.Generator], int], np.ndarray]
"""`(rngs of P years, days) -> float64[P, days, m]` log-returns."""

_MAX_CONTEXTS = 100_000


@dataclasses.dataclass(frozen=True, kw_only=True)
class Generator(abc.ABC):
    """Generator of daily log-returns: a frozen dataclass of named options."""

    name: ClassVar[str]

    __post_init__ = struct.check_fields

    @abc.abstractmethod
    def fit(
        self, rngs: Sequence[np.random.Generator], histories: Sequence[np.ndarray]
    ) -> list[Sampler]:
        """Fits one sampler per party, which must not depend on the other parties.

        Args:
          rngs: one random generator per party, for the fit alone.
          histories: `float64[R-1, m]` daily log-returns of each party's training
            prices; NaN before an asset's first day, at least two numbers per asset.

        Returns:
          One sampler per party.
        """


class _Deterministic(Generator):
    """Base class of generators whose fit draws nothing, one party at a time."""

    def fit(
        self, rngs: Sequence[np.random.Generator], histories: Sequence[np.ndarray]
    ) -> list[Sampler]:
        """Fits one sampler per party; draws nothing."""
        return [self.fit_one(history) for history in histories]

    @abc.abstractmethod
    def fit_one(self, returns: np.ndarray) -> Sampler:
        """Fits the sampler of one party to its returns `float64[R-1, m]`."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class GeometricBrownianMotion(_Deterministic):
    """Normal log-returns with each asset's mean and standard deviation.

    `v_{t+1} = v_t exp(m + s eps)`: m is the mean of log-returns, which needs no
    correction by `s^2 / 2`.

    Attributes:
      correlated: use the correlations of the days on which all assets are listed,
        instead of independent assets.
    """

    correlated: bool = False
    name = "gbm"

    def fit_one(self, returns: np.ndarray) -> Sampler:
        """Estimates the moments."""
        mean = np.nanmean(returns, axis=0)
        factor = np.diag(np.nanstd(returns, axis=0, ddof=1))
        if self.correlated:
            factor = factor @ _root_of_correlation(returns)

        def sample(rngs: Sequence[np.random.Generator], days: int) -> np.ndarray:
            noise = [rng.standard_normal((days, len(mean))) for rng in rngs]
            return mean + np.stack(noise) @ factor.T

        return sample


def _root_of_correlation(returns: np.ndarray) -> np.ndarray:
    """Returns `C` with `C C^T` the correlation of the common days, or the identity."""
    common = returns[~np.isnan(returns).any(axis=1)]
    size = returns.shape[1]
    if len(common) < 2:
        return np.eye(size)
    centered = common - common.mean(axis=0)
    norms = np.sqrt((centered**2).sum(axis=0))
    centered = centered / np.where(norms > 0, norms, 1)
    correlation = centered.T @ centered
    np.fill_diagonal(correlation, 1.0)  # also of an asset whose price never moves
    values, vectors = np.linalg.eigh(correlation)
    return vectors * np.sqrt(np.maximum(values, 0))


@dataclasses.dataclass(frozen=True, kw_only=True)
class VariableOrderMarkov(_Deterministic):
    """Markov chain of binned returns of variable order, with back-off.

    Every asset has quantile bins of its returns, counts of the bin that follows each
    context of 0 to `order` bins, and a path of its own: the longest context that was
    followed by something at least `min_count` times gives the next bin, and one of the
    historical returns of this bin is the return. A path begins after the last training
    days.

    Attributes:
      bins: quantile bins, at least 2. Of many equal returns some bins are empty.
      order: bins of the longest context.
      min_count: times that a context must have been seen; the empty one always counts.
    """

    bins: int = struct.static_field(default=5, at_least=2, at_most=1000)
    order: int = struct.static_field(default=3, at_least=0, at_most=16)
    min_count: int = struct.static_field(default=5, at_least=1)
    name = "markov"

    def __post_init__(self):
        super().__post_init__()
        if self.bins**self.order > _MAX_CONTEXTS:
            raise checks.InputError(
                f"Expected at most {_MAX_CONTEXTS:,} contexts, got bins ** order ="
                f" {self.bins} ** {self.order}."
            )

    def fit_one(self, returns: np.ndarray) -> Sampler:
        """Counts the transitions."""
        chains = [self._chain(own[~np.isnan(own)]) for own in returns.T]
        every_values, every_starts, every_law, every_last = zip(*chains, strict=True)
        length = max(map(len, every_values))
        values = np.stack([np.pad(own, (0, length - len(own))) for own in every_values])
        starts, law, last = map(np.stack, (every_starts, every_law, every_last))
        asset, contexts = np.arange(len(chains)), self.bins**self.order

        def sample(rngs: Sequence[np.random.Generator], days: int) -> np.ndarray:
            uniform = np.stack([rng.random((days, 2, len(chains))) for rng in rngs])
            context = np.tile(last, (len(rngs), 1))
            path = np.empty((len(rngs), days, len(chains)))
            for day in range(days):
                which, within = uniform[:, day, 0], uniform[:, day, 1]
                number = (which[..., None] >= law[asset, context]).sum(axis=-1)
                begin, end = starts[asset, number], starts[asset, number + 1]
                place = begin + (within * (end - begin)).astype(np.int64)
                path[:, day] = values[asset, place]
                context = (context * self.bins + number) % contexts
            return path

        return sample

    def _chain(
        self, returns: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, int]:
        """Estimates the chain of one asset.

        Returns sorted returns, where each bin begins in them, the cumulative law of the
        next bin by context, and the last context.
        """
        edges = np.quantile(returns, np.arange(1, self.bins) / self.bins)
        binned = np.searchsorted(edges, returns, side="right")
        values = np.sort(returns)
        inner = np.searchsorted(values, edges, side="left")
        law = np.bincount(binned, minlength=self.bins)[None].astype(float)
        context = np.zeros(len(binned), np.int64)
        for order in range(1, self.order + 1):
            # Code of the `order` bins before each day.
            older = np.concatenate([np.zeros(order, np.int64), binned])[: len(binned)]
            context = context + older * self.bins ** (order - 1)
            cell = (context * self.bins + binned)[order:]
            shape = (self.bins**order, self.bins)
            counts = np.bincount(cell, minlength=shape[0] * shape[1]).reshape(shape)
            seen = counts.sum(axis=1, keepdims=True) >= self.min_count
            shorter = np.tile(law, (self.bins, 1))  # of the context's later bins
            law = np.where(seen, counts, shorter)
        cumulative = np.cumsum(law, axis=1) / law.sum(axis=1, keepdims=True)
        last = 0
        for number in binned[max(len(binned) - self.order, 0) :].tolist():
            last = last * self.bins + number
        starts = np.concatenate([[0], inner, [len(values)]])
        # Without the last entry, which is 1: rounding must not lead beyond it.
        return values, starts, cumulative[:, :-1], last

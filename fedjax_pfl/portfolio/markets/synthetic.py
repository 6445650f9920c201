"""Synthetic market: factors, regimes of volatility, heavy tails.

The log-return of asset i of sector s(i) on day t is

    r_ti = drift_i / 252 + v(z_t) / sqrt(252)
           * (beta_i a_M M_t + a_S S_t,s(i) + a_I I_ti),

with independent `M, S, I` from Student's t distribution of `degrees` degrees of
freedom, scaled to variance 1; `drift_i ~ N(drift, drift_spread)`, `beta_i ~
N(1, beta_spread)`; and one Markov chain z of two states for all assets: v = 1 in calm
times, `stress` in others, which last `calm_days` and `stress_days` on average. Only
drift and regime can be learned from the past.

High and low of a day are the largest and the smallest value of a Brownian motion from
the close before to the close, each drawn from its exact distribution, and independent
of each other given both closes.
"""

import dataclasses
import functools
import math

import numpy as np

from fedjax_pfl.core import checks, struct
from fedjax_pfl.data import dataset as datasets
from fedjax_pfl.portfolio.markets import base

__all__ = ["SyntheticMarket"]

_YEAR = 252
_FIRST_PRICE = 100.0
_FIRST_DATE = "2006-01-03"
_LARGEST = 5.0  # of volatilities, drifts and spreads; prices then fit into 32 bits


_spread = functools.partial(struct.static_field, at_least=0, at_most=_LARGEST)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SyntheticMarket:
    """Fifty assets over fourteen years, on business days from 2006-01-03 on.

    The defaults resemble stocks of large companies: 33 % volatility a year, correlation
    0.4 within a sector and 0.27 between sectors.

    Attributes:
      seed: of all draws; every seed is another market.
      num_assets: A.
      num_days: T.
      num_sectors: sectors; asset i belongs to sector `i % num_sectors`.
      drift: mean over assets of the yearly log-return.
      drift_spread: its standard deviation over assets.
      beta_spread: standard deviation over assets of the exposure to the market.
      market_volatility: a_M, yearly, in calm times.
      sector_volatility: a_S, yearly, in calm times.
      own_volatility: a_I, yearly, in calm times.
      stress: factor on all volatilities in times of stress, at least 1.
      calm_days: mean length of calm times, at least 1.
      stress_days: mean length of times of stress, at least 1.
      degrees: degrees of freedom of Student's t, above 2.

    Example:
      >>> market = SyntheticMarket(num_days=500).load(data_dir=None, features=3)
      >>> market.prices.shape, str(market.dates[-1])
      ((500, 50, 3), '2007-12-03')
    """

    seed: int = struct.static_field(default=0, at_least=0, at_most=checks.MAX_SEED)
    num_assets: int = struct.static_field(default=50, at_least=1)
    num_days: int = struct.static_field(
        default=3271 + 252, at_least=1, at_most=1_000_000
    )
    num_sectors: int = struct.static_field(default=5, at_least=1)
    drift: float = struct.static_field(
        default=0.08, at_least=-_LARGEST, at_most=_LARGEST
    )
    drift_spread: float = _spread(default=0.08)
    beta_spread: float = _spread(default=0.25)
    market_volatility: float = _spread(default=0.12)
    sector_volatility: float = _spread(default=0.08)
    own_volatility: float = _spread(default=0.18)
    stress: float = struct.static_field(default=2.5, at_least=1, at_most=100)
    calm_days: float = struct.static_field(default=120.0, at_least=1)
    stress_days: float = struct.static_field(default=30.0, at_least=1)
    degrees: float = struct.static_field(default=5.0, above=2)
    name = "synthetic"

    __post_init__ = struct.check_fields

    def load(self, *, data_dir: str | None, features: int) -> base.Market:
        """Draws the market, once per process; closes do not depend on `features`."""
        checks.memory(
            f"A market of {self.num_days} days and {self.num_assets} assets",
            8 * 8 * self.num_days * self.num_assets,
            "make it smaller",
        )
        return _drawn(self, features)

    def regimes(self) -> np.ndarray:
        """Draws the times of stress; the chain starts in its stationary distribution.

        Returns:
          `bool[T]` whether each day is one of stress.
        """
        uniform = self._rng(_REGIMES).random(self.num_days)
        stress = np.empty(self.num_days, bool)
        # The stationary distribution, so that no day is special.
        stress[0] = uniform[0] < self.stress_days / (self.stress_days + self.calm_days)
        for day in range(1, self.num_days):
            length = self.stress_days if stress[day - 1] else self.calm_days
            stress[day] = stress[day - 1] != (uniform[day] < 1 / length)
        return stress

    def _rng(self, part: int) -> np.random.Generator:
        """Returns the random generator of one part of the market."""
        return datasets.generator(self.seed, datasets.Purpose.DATASET, part)

    def _factors(self) -> tuple[np.ndarray, np.ndarray]:
        """Draws daily log-returns `[T, A]`, and computes their standard deviations."""
        rng = self._rng(_ASSETS)
        drift = rng.normal(self.drift, self.drift_spread, self.num_assets)
        beta = rng.normal(1, self.beta_spread, self.num_assets)
        # One generator per part of the market: closes do not depend on features.
        rng = self._rng(_RETURNS)
        sector = np.arange(self.num_assets) % self.num_sectors
        common = self._noise(rng, 1) * beta * self.market_volatility
        sectors = self._noise(rng, self.num_sectors)[:, sector] * self.sector_volatility
        residual = self._noise(rng, self.num_assets) * self.own_volatility
        level = np.where(self.regimes(), self.stress, 1.0)[:, None] / math.sqrt(_YEAR)
        variance = (beta * self.market_volatility) ** 2
        variance = variance + self.sector_volatility**2 + self.own_volatility**2
        # r_ti = drift_i / 252
        #        + v(z_t) / sqrt(252) (beta_i a_M M_t + a_S S_t,s(i) + a_I I_ti).
        returns = drift / _YEAR + level * (common + sectors + residual)
        return returns, level * np.sqrt(variance)

    def _noise(self, rng: np.random.Generator, count: int) -> np.ndarray:
        """Draws Student's t of variance 1, `[T, count]`."""
        scale = math.sqrt((self.degrees - 2) / self.degrees)
        return rng.standard_t(self.degrees, (self.num_days, count)) * scale

    def _range(self, returns: np.ndarray, std: np.ndarray) -> np.ndarray:
        """Draws the logarithms `[T, A, 2]` of high and low over the close before."""
        # P(max >= x | end r) = exp(-2 x (x - r) / std^2), solved for x.
        uniform = 1 - self._rng(_RANGES).random((*returns.shape, 2))  # in (0, 1]
        squared = -2 * (std**2)[..., None] * np.log(uniform)
        root = np.sqrt((returns**2)[..., None] + squared)
        return (returns[..., None] + root * np.array([1, -1])) / 2


_REGIMES, _ASSETS, _RETURNS, _RANGES = range(4)


@functools.lru_cache(maxsize=16)
def _drawn(source: SyntheticMarket, features: int) -> base.Market:
    """Draws a market, which specifications that differ elsewhere share."""
    base.check_features(features)
    returns, std = source._factors()
    path = np.cumsum(returns, axis=0)
    close = _FIRST_PRICE * np.exp(path)
    prices = close[..., None]
    if features == 3:
        last_close = _FIRST_PRICE * np.exp(path - returns)
        limits = last_close[..., None] * np.exp(source._range(returns, std))
        high = np.maximum(limits[..., 0], close)  # holds already, but for rounding
        low = np.minimum(limits[..., 1], close)
        prices = np.stack([close, high, low], axis=-1)
    start = np.datetime64(_FIRST_DATE, "D")
    dates = np.busday_offset(start, np.arange(source.num_days), roll="forward")
    width = len(str(source.num_assets - 1))
    return base.Market(
        name=source.name,
        dates=dates,
        tickers=tuple(f"A{asset:0{width}d}" for asset in range(source.num_assets)),
        prices=prices,
        listed=np.zeros(source.num_assets, np.int64),
    )

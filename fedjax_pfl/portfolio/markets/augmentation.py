"""Generated years of every party, from its own training prices alone."""

import functools
from collections.abc import Sequence

import numpy as np

from fedjax_pfl.data import dataset as datasets
from fedjax_pfl.portfolio.markets import base, gan, generators

__all__ = ["GENERATORS", "generate_years"]

_ASSIGNMENT = datasets.Purpose.GENERATORS
_YEARS = datasets.Purpose.AUGMENTATION

GENERATORS: dict[str, type[generators.Generator]] = {
    kind.name: kind
    for kind in (
        generators.GeometricBrownianMotion,
        generators.VariableOrderMarkov,
        gan.WassersteinGAN,
    )
}


def generate_years(
    market: base.Market,
    universes: np.ndarray,
    train_days: int,
    kinds: Sequence[generators.Generator],
    *,
    seed: int,
    years: int,
    year_days: int,
) -> np.ndarray:
    """Generates prices that continue from the last training price.

    Every client draws one of the generators. Year p of client k depends on the seed, k,
    p and the client's training prices. High and low, where the market has them, are
    those of random training days, relative to the close.

    Args:
      market: A assets with F features.
      universes: `int64[N, m]` assets of every client.
      train_days: R.
      kinds: generators, of which each client has one.
      seed: of assignment, fits and years.
      years: P.
      year_days: days of a year.

    Returns:
      `float64[N, P, year_days, m, F]`.
    """
    train = market.prices[:train_days]
    returns = np.diff(np.log(train[..., 0]), axis=0)
    # The first return is the one after the first price.
    before = np.arange(1, train_days)[:, None] <= market.listed
    returns = np.where(before, np.nan, returns)
    num_clients, num_assets = universes.shape
    prices = np.empty((num_clients, years, year_days, num_assets, train.shape[-1]))
    if years == 0:
        return prices

    rng = functools.partial(datasets.generator, seed)
    drawn = [rng(_ASSIGNMENT, k).integers(len(kinds)) for k in range(num_clients)]
    for number, generator in enumerate(kinds):
        own = [client for client, kind in enumerate(drawn) if kind == number]
        fits = [rng(_YEARS, client, 0) for client in own]
        histories = [returns[:, universes[client]] for client in own]
        for client, sample in zip(own, generator.fit(fits, histories), strict=True):
            rngs = [rng(_YEARS, client, 1 + year) for year in range(years)]
            path = np.cumsum(sample(rngs, year_days), axis=1)
            past = train[:, universes[client]]
            close = past[-1, :, 0] * np.exp(path)
            first = int(market.listed[universes[client]].max())
            days = [r.integers(first, train_days, year_days) for r in rngs]
            relative = past / past[..., :1]
            prices[client] = close[..., None] * relative[np.stack(days)]
    return prices

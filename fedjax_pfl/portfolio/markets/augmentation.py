"""Generated years of every party, from its own training prices alone."""

from collections.abc import Sequence

import numpy as np

from fedjax_pfl.data import dataset as datasets
from fedjax_pfl.portfolio.markets import base, gan, generators

__all__ = ["GENERATORS", "assigned", "generated_years"]

GENERATORS: dict[str, type[generators.Generator]] = {
    kind.name: kind
    for kind in (
        generators.GeometricBrownianMotion,
        generators.VariableOrderMarkov,
        gan.WassersteinGAN,
    )
}


def assigned(seed: int, num_clients: int, count: int) -> np.ndarray:
    """Draws which of `count` generators each party has.

    Args:
      seed: of the draws.
      num_clients: N.
      count: of generators.

    Returns:
      `int64[N]` in `[0, count)`.
    """
    rngs = [
        datasets.generator(seed, datasets.Purpose.GENERATORS, client)
        for client in range(num_clients)
    ]
    return np.array([rng.integers(count) for rng in rngs])


def generated_years(
    market: base.Market,
    universes: np.ndarray,
    train_days: int,
    kinds: Sequence[generators.Generator],
    *,
    seed: int,
    years: int,
    year_days: int,
) -> np.ndarray:
    """Generates prices that go on from the last training price.

    Year p of client k depends on the seed, k, p and the client's training prices. High
    and low, where the market has them, are those of random training days, relative to
    the close.

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
    num_clients, num_assets = universes.shape
    train = market.prices[:train_days]
    returns = np.diff(np.log(train[..., 0]), axis=0)
    # The first return is the one after the first price.
    before = np.arange(1, train_days)[:, None] <= market.listed
    returns = np.where(before, np.nan, returns)
    shape = (num_clients, years, year_days, num_assets, market.prices.shape[-1])
    found = np.empty(shape)
    if years == 0:
        return found
    kind = assigned(seed, num_clients, len(kinds))

    def rng(client: int, number: int) -> np.random.Generator:
        purpose = datasets.Purpose.AUGMENTATION
        return datasets.generator(seed, purpose, client, number)

    for number, generator in enumerate(kinds):
        own = np.flatnonzero(kind == number).tolist()
        fits = [rng(client, 0) for client in own]
        histories = [returns[:, universes[client]] for client in own]
        for client, sample in zip(own, generator.fit(fits, histories), strict=True):
            periods = [rng(client, 1 + period) for period in range(years)]
            path = np.cumsum(sample(periods, year_days), axis=1)
            past = train[:, universes[client]]
            close = past[-1, :, 0] * np.exp(path)
            first = int(market.listed[universes[client]].max())
            days = [r.integers(first, train_days, year_days) for r in periods]
            relative = past / past[..., :1]
            found[client] = close[..., None] * relative[np.stack(days)]
    return found

"""Training, validation and test days of a market, and the assets of every party."""

import dataclasses

import numpy as np

from fedjax_pfl.core import checks
from fedjax_pfl.data import dataset as datasets
from fedjax_pfl.portfolio.markets import base

__all__ = ["Split", "split", "universes"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Split:
    """Lengths of the successive periods of a market.

    Attributes:
      train_days: R.
      validation_days: days after these.
      test_days: the last days.
    """

    train_days: int
    validation_days: int
    test_days: int

    @property
    def days(self) -> int:
        """Number of all days T."""
        return self.train_days + self.validation_days + self.test_days


def split(
    market: base.Market,
    test_days: int,
    validation_days: int,
    test_from: np.datetime64 | None,
    window: int,
) -> Split:
    """Splits the days of a market.

    Args:
      market: T days.
      test_days: the last ones, unless `test_from` is given.
      validation_days: the last ones before the test.
      test_from: first date of the test, or None.
      window: l, days that a decision sees.

    Returns:
      The split.

    Raises:
      InputError: if there is no test day, or fewer than l + 1 training days.
    """
    days = len(market.dates)
    if test_from is not None:
        test_days = days - int(np.searchsorted(market.dates, test_from))
        if test_days == 0:
            raise checks.InputError(
                f"Market {market.name!r} has no day from test_from={test_from} on: its"
                f" last one is {market.dates[-1]}."
            )
    train_days = days - test_days - validation_days
    if train_days <= window:
        raise checks.InputError(
            f"Market {market.name!r} has {days} days from {market.dates[0]} to"
            f" {market.dates[-1]}; after {test_days} for the test and"
            f" {validation_days} for validation, {max(train_days, 0)} are left for"
            f" training, of which a window of {window} needs at least {window + 1}."
        )
    return Split(
        train_days=train_days, validation_days=validation_days, test_days=test_days
    )


def universes(
    market: base.Market,
    split: Split,
    window: int,
    num_clients: int,
    assets_per_client: int,
    seed: int,
) -> np.ndarray:
    """Draws the assets of every party without replacement.

    Only assets with at least `window + 1` training prices of their own take part. A
    party's draws do not depend on the number of parties.

    Args:
      market: A assets.
      split: its days.
      window: l, days that a decision sees.
      num_clients: N.
      assets_per_client: m.
      seed: of the draws.

    Returns:
      `int64[N, m]` ascending numbers of assets.

    Raises:
      InputError: if there are fewer than m such assets.
    """
    tradable = np.flatnonzero(market.listed + window < split.train_days)
    if len(tradable) < assets_per_client:
        raise checks.InputError(
            f"Market {market.name!r} has {len(tradable)} assets with at least"
            f" {window + 1} training prices, expected assets_per_client="
            f"{assets_per_client} or more."
        )
    rngs = [
        datasets.generator(seed, datasets.Purpose.PARTITION, client)
        for client in range(num_clients)
    ]
    assets = [rng.choice(tradable, assets_per_client, replace=False) for rng in rngs]
    return np.sort(np.stack(assets), axis=1)

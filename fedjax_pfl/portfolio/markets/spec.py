"""Federations of parties that trade a few assets of a market each."""

import dataclasses
import functools
import itertools
import os
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from fedjax_pfl import core, data
from fedjax_pfl.core import checks, struct
from fedjax_pfl.data import dataset, splits
from fedjax_pfl.data.readers import prices
from fedjax_pfl.portfolio.markets import base, examples, files
from fedjax_pfl.portfolio.markets.generators import GENERATORS, Generator

__all__ = ["PortfolioSpec"]

_YEAR_DAYS = 252


@dataclasses.dataclass(frozen=True)
class PortfolioSpec:
    """Recipe of a federation of trading parties, with fields to sweep; hashable.

    The days of the market are, in order, for training, validation and the test. Every
    party draws its assets without replacement from the assets with a whole window of
    training prices and one more. Dotted names such as `market.seed` address every
    field.

    Attributes:
      market: source of prices, its name in `MARKETS`, or the path of a `.csv` or
        `.csv.gz` file (`PriceFile`).
      num_clients: N parties.
      assets_per_client: m, without cash.
      window: l, days that a decision sees, at least 2.
      test_days: the last days of the market, unless `test_from` is given.
      validation_days: the last days before the test, held out from training.
      train_from: first date, as `YYYY-MM-DD`; None for the market's first.
      test_from: first date of the test in place of `test_days`, or None.
      test_to: last date; None for the market's last.
      years: P, generated years per party, each of 252 days, all following the last
        training price; 0 for none.
      rounds_per_year: rounds after which the next generated year replaces the one
        before; the last one stays.
      generators: generators of these years or their names in `GENERATORS`. Each party
        draws one. Without any there are no generated years.
      features: 1 for the close, 3 for close, high and low.
      seed: of each party's assets, generator and generated years, and of the malicious
        clients, which draw independently. A synthetic market has a seed of its own.
      malicious_fraction: `round(malicious_fraction * N)` clients are malicious; at
        least one must stay honest.
      data_dir: directory of data files, or None for the environment's.

    Example:
      >>> from fedjax_pfl.portfolio import SyntheticMarket
      >>> market = SyntheticMarket(num_days=600)
      >>> spec = PortfolioSpec(market, num_clients=3, years=1)
      >>> federation = spec.build()
      >>> federation.train.index.shape, federation.train.num_examples.tolist()
      ((3, 570), [318, 318, 318])
      >>> [len(names) for names in spec.tickers()]
      [9, 9, 9]
    """

    market: Any = "synthetic"
    num_clients: int = struct.static_field(default=50, at_least=1)
    assets_per_client: int = struct.static_field(default=9, at_least=1)
    window: int = struct.static_field(default=30, at_least=2)
    test_days: int = struct.static_field(default=_YEAR_DAYS, at_least=1)
    validation_days: int = struct.static_field(default=0, at_least=0)
    train_from: str | None = None
    test_from: str | None = None
    test_to: str | None = None
    years: int = struct.static_field(default=40, at_least=0, at_most=100_000)
    rounds_per_year: int = struct.static_field(default=20, at_least=1)
    generators: tuple[str | Generator, ...] = ("gbm", "markov")
    features: int = 1
    seed: int = struct.static_field(default=0, at_least=0, at_most=checks.MAX_SEED)
    malicious_fraction: float = struct.static_field(default=0.0, at_least=0, at_most=1)
    data_dir: str | os.PathLike[str] | None = None

    def __post_init__(self):
        set_field = object.__setattr__  # the class is frozen
        set_field(self, "market", files.market(self.market))
        parts = self.generators
        # Fields become hashable values first: specifications are keys of a cache.
        if isinstance(parts, str) or not isinstance(parts, Sequence):
            parts = (parts,)
        for part in parts:
            if isinstance(part, str):
                checks.known(part, GENERATORS, "generator")
            elif isinstance(part, type) or not hasattr(part, "fit"):
                raise checks.InputError(
                    "Expected generators to be names in GENERATORS or objects such as"
                    f" GeometricBrownianMotion(), got"
                    f" {checks.shown(part)}."
                )
        set_field(self, "generators", tuple(parts))
        struct.check_fields(self)
        if self.data_dir is not None:
            checks.path("data_dir", self.data_dir)
            set_field(self, "data_dir", str(self.data_dir))
        base.check_features(self.features)
        names = ("train_from", "test_from", "test_to")
        dates: dict[str, Any] = {n: getattr(self, n) for n in names}
        dates = {name: text for name, text in dates.items() if text is not None}
        for name, text in dates.items():
            dates[name] = prices.parse_date(text)
            if dates[name] is None:
                raise checks.InputError(
                    f"Expected {name} to be a date YYYY-MM-DD, got"
                    f" {checks.shown(text)}."
                )
        # Dates are in the order of time, of those that are given.
        for start, end in itertools.pairwise(dates):
            if dates[start] > dates[end]:
                raise checks.InputError(
                    f"Expected {start} before {end}, got {dates[start]} and"
                    f" {dates[end]}."
                )

    def build(self) -> core.Federation:
        """Draws assets and generated years on the host, then moves to the device.

        `train.index` has the examples in the order of their numbers (`portfolio.tables`
        defines them), and `num_examples` counts the real ones; later rows belong to
        generated years, for the sampler `portfolio.batch_positions` alone. Validation
        and test examples are successive days, the first observed on the last day
        before; they have the number -1. Inputs are `int32[S, 3]`: first row of the
        party in the tables, physical day, number; targets `float32[S, m+1]` are the
        growth of the next day, cash first. The tables are `constants`.

        Returns:
          The federation. Specifications that differ in malicious clients only share its
          pool.

        Raises:
          InputError: if the market cannot be read, or has too few days or assets.
        """
        market, train_days = self._periods()
        # Federations that differ in malicious clients share the built pool.
        key = dataclasses.replace(self, malicious_fraction=0.0, data_dir=None)
        parts: dict[str, Any] = _build(key, market, train_days)
        malicious = splits.malicious_clients(
            self.seed, self.num_clients, self.malicious_fraction
        )
        malicious = jax.device_put(malicious)
        return data.Federation(**parts, malicious=malicious, name=market.name)

    def tickers(self) -> tuple[tuple[str, ...], ...]:
        """Returns the names of every party's assets, in the order of its tables.

        Returns:
          m names for each of the N parties.

        Raises:
          InputError: see `build`.
        """
        market, train_days = self._periods()
        assets = self._assets(market, train_days)
        return tuple(tuple(market.tickers[k] for k in row) for row in assets)

    def describe(self) -> dict[str, Any]:
        """Returns the flat configuration by dotted name, in types of JSON."""
        return struct.plain_fields(self) | {"dataset": self.market.name}

    def _periods(self) -> tuple[base.Market, int]:
        """Loads the market between the dates, and counts its days for training."""
        market = self.market.load(data_dir=self.data_dir, features=self.features)
        market = _between(market, self.train_from, self.test_to)
        days, test_days = len(market.dates), self.test_days
        if self.test_from is not None:
            index = np.searchsorted(market.dates, np.datetime64(self.test_from))
            test_days = days - int(index)
            if test_days == 0:
                raise checks.InputError(
                    f"Market {market.name!r} has no day from test_from={self.test_from}"
                    f" on: its last one is {market.dates[-1]}."
                )
        train_days = days - test_days - self.validation_days
        if train_days <= self.window:
            raise checks.InputError(
                f"Market {market.name!r} has {days} days from {market.dates[0]} to"
                f" {market.dates[-1]}; after {test_days} for the test and"
                f" {self.validation_days} for validation, {max(train_days, 0)} are left"
                f" for training, of which a window of {self.window} needs at least"
                f" {self.window + 1}."
            )
        return market, train_days

    def _assets(self, market: base.Market, train_days: int) -> np.ndarray:
        """Draws the assets `int64[N, m]` of every party, without replacement."""
        # Assets with at least `window + 1` training prices of their own.
        tradable = np.flatnonzero(market.listed + self.window < train_days)
        if len(tradable) < self.assets_per_client:
            raise checks.InputError(
                f"Market {market.name!r} has {len(tradable)} assets with at least"
                f" {self.window + 1} training prices, expected assets_per_client="
                f"{self.assets_per_client} or more."
            )
        assets = []
        for client in range(self.num_clients):
            # A party's draws do not depend on the number of parties.
            rng = dataset.generator(self.seed, dataset.Purpose.PARTITION, client)
            assets.append(rng.choice(tradable, self.assets_per_client, replace=False))
        return np.sort(np.stack(assets), axis=1)


@functools.lru_cache(maxsize=16)
def _between(market: base.Market, start: str | None, end: str | None) -> base.Market:
    """Returns one object per market and dates, so that federations are shared."""
    limits = (None if text is None else np.datetime64(text) for text in (start, end))
    return market.between(*limits)


@functools.lru_cache(maxsize=4)
def _build(
    spec: PortfolioSpec, market: base.Market, train_days: int
) -> dict[str, core.ClientData]:
    """Builds training, validation and test data of all parties, with one pool."""
    years = spec.years if spec.generators else 0
    block = len(market.dates) + years * _YEAR_DAYS
    numbers = spec.num_clients * block * (spec.assets_per_client + 4) * spec.features
    # Refused before anything is drawn.
    checks.memory(
        f"A federation of {spec.num_clients} parties of {block} days",
        24 * numbers,
        "reduce parties, assets or generated years",
    )
    assets = spec._assets(market, train_days)
    real = market.prices[:, assets].swapaxes(0, 1)  # [N, T, m, F]
    kinds = [
        GENERATORS[kind]() if isinstance(kind, str) else kind
        for kind in spec.generators
    ]
    generated = examples.generate_years(
        market,
        assets,
        train_days,
        kinds,
        seed=spec.seed,
        years=years,
        year_days=_YEAR_DAYS,
    )
    return examples.client_data(
        real,
        generated,
        train_days,
        spec.validation_days,
        window=spec.window,
        rounds_per_year=spec.rounds_per_year,
    )

"""Markets from tables of prices: a user's own file, and fifty known stocks."""

import dataclasses
import functools
import os
import pathlib
from typing import ClassVar

import numpy as np

from fedjax_pfl.core import checks
from fedjax_pfl.data.readers import files, prices
from fedjax_pfl.data.sources import stocks
from fedjax_pfl.portfolio.markets import base

__all__ = ["PriceFile", "StockPrices"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class PriceFile:
    """A user's own table of daily prices, plain or `.gz`.

    Comma-separated with the columns `date` (YYYY-MM-DD), `ticker` and `close` or
    `adj_close`, which counts if there are both; `high` and `low` are needed for three
    features. An asset without a price on a day of the file keeps the one before, and
    before its first day has its first.

    Attributes:
      path: the file.
    """

    path: str
    name: ClassVar[str] = "prices"

    def __post_init__(self):
        object.__setattr__(self, "path", str(self.path))
        checks.text("path", self.path)

    def load(self, *, data_dir: str | None, features: int) -> base.Market:
        """Reads the market once per process and modification of the file."""
        path = pathlib.Path(os.path.expanduser(self.path))
        return _read(path, files.fingerprint([path]), features)


@dataclasses.dataclass(frozen=True, kw_only=True)
class StockPrices:
    """The only price file in `data_dir/stocks`, which the data set `stocks` reads too.

    Attributes:
      verify: compare the known file with its checksum; other files have none.
    """

    verify: bool = True
    name: ClassVar[str] = "stocks"

    def __post_init__(self):
        checks.boolean("verify", self.verify)

    def load(self, *, data_dir: str | None, features: int) -> base.Market:
        """Reads the market once per process and modification of the file."""
        source = stocks.Stocks(verify=self.verify)
        path = source.only_path(source.locate(data_dir))
        return _read(path, files.fingerprint([path]), features, source)


@functools.lru_cache(maxsize=8)
def _read(
    path: pathlib.Path,
    fingerprint: tuple[tuple[int, int], ...],
    features: int,
    source: stocks.Stocks | None = None,
) -> base.Market:
    """Reads a market, which specifications that differ elsewhere share."""
    base.check_features(features)
    content = files.read_content(path) if source is None else source.content(path)
    table = prices.parse_prices(content, path, with_range=features == 3)
    listed = (~np.isnan(table.values)).argmax(axis=0)
    close = _filled(table.values, listed)
    columns = [close]
    if table.high is not None and table.low is not None:
        columns += [
            np.where(np.isnan(column), close, column)
            for column in (table.high, table.low)
        ]
    return base.Market(
        name=path.name.removesuffix(".gz").removesuffix(".csv"),
        dates=table.dates,
        tickers=table.tickers,
        prices=np.stack(columns, axis=-1),
        listed=listed,
    )


def _filled(values: np.ndarray, listed: np.ndarray) -> np.ndarray:
    """Fills gaps of prices `[T, A]` with the last price or, before any, the first."""
    day = np.arange(len(values))[:, None]
    known = np.where(np.isnan(values), listed, day)
    return np.take_along_axis(values, np.maximum.accumulate(known, axis=0), axis=0)

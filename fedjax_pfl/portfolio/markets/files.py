"""Markets by name: generated, of fifty known stocks, or a user's table of prices."""

import dataclasses
import functools
import os
import pathlib
from typing import Any

import numpy as np

from fedjax_pfl.core import checks, struct
from fedjax_pfl.data.readers import files, prices
from fedjax_pfl.data.sources import sequences
from fedjax_pfl.portfolio.markets import base, synthetic

__all__ = ["MARKETS", "PriceFile", "StockPrices", "market"]


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
    name = "prices"

    def __post_init__(self):
        checks.path("path", self.path)
        object.__setattr__(self, "path", str(self.path))

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
    name = "stocks"

    __post_init__ = struct.check_fields

    def load(self, *, data_dir: str | None, features: int) -> base.Market:
        """Reads the market once per process and modification of the file."""
        source = sequences.Stocks(verify=self.verify)
        path = source.only_path(source.locate(data_dir))
        return _read(path, files.fingerprint([path]), features, source)


@functools.lru_cache(maxsize=8)
def _read(
    path: pathlib.Path,
    fingerprint: tuple[tuple[int, int], ...],
    features: int,
    source: sequences.Stocks | None = None,
) -> base.Market:
    """Reads a market, which specifications that differ elsewhere share."""
    import pandas as pd  # slow to import, and needed by files of prices only

    base.check_features(features)
    content = files.read_content(path) if source is None else source.content(path)
    table = prices.parse_prices(content, path, with_range=features == 3)
    close = table.values[..., 0]
    # A day without a price keeps the last one, days before a listing the first.
    filled = pd.DataFrame(close).ffill().bfill().to_numpy()[..., None]
    return base.Market(
        name=path.name.removesuffix(".gz").removesuffix(".csv"),
        dates=table.dates,
        tickers=table.tickers,
        prices=np.where(np.isnan(table.values), filled, table.values),
        listed=(~np.isnan(close)).argmax(axis=0),
    )


MARKETS: dict[str, Any] = {
    kind.name: kind for kind in (synthetic.SyntheticMarket, StockPrices, PriceFile)
}


def market(source: Any) -> Any:
    """Returns the source of prices by its name in `MARKETS`, a path, or the source."""
    if isinstance(source, str):
        if source.endswith((".csv", ".csv.gz")):
            return PriceFile(path=source)
        checks.known(source, MARKETS, "market")
        if source == PriceFile.name:
            raise checks.InputError(
                "Expected the path of a .csv or .csv.gz file in place of the market"
                f" {source!r}."
            )
        return MARKETS[source]()
    if isinstance(source, type) or not hasattr(source, "load"):
        raise checks.InputError(
            "Expected market to be a name in MARKETS, the path of a .csv file or an"
            f" object such as SyntheticMarket(), got {checks.shown(source)}."
        )
    return source

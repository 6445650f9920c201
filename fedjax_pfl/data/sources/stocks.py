"""Daily returns of stocks: does the price rise tomorrow?"""

import dataclasses
import pathlib

import numpy as np

from fedjax_pfl.core import checks, struct
from fedjax_pfl.data import dataset as datasets
from fedjax_pfl.data.readers import prices
from fedjax_pfl.data.sources import base, grouped

__all__ = ["Stocks"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Stocks(base.FileSource):
    """Log returns of the last days of a stock; clients are the tickers.

    Read from the only `.csv` file (`.csv.gz`) with the columns `date`, `ticker` and
    `adj_close` or `close`. Returns are those between successive rows of a ticker, and
    examples are in order of time. Inputs are shown in units of the standard deviation
    of all returns of the file, one factor for everybody. Tickers with too few days for
    one example are no clients.

    Attributes:
      verify: compare the known file with its checksum; others have none.
      window: returns of an input.
    """

    window: int = struct.static_field(default=30, at_least=1)
    name = "stocks"
    layouts = (base.Layout("csv", (), ("*.csv",)),)
    sha256 = {
        "sp500_50_daily_2006_2019.csv": (
            "a9da0f28a7196c925650276c2d52cf26aac49a3d475275a74c2cb7da61d08bb6"
        )
    }

    def read(self, located: base.Located) -> datasets.Dataset:
        """Returns `x float32[S, window]`; `y` is 1 where the next return is > 0."""
        path = self.only_path(located)
        table = prices.parse_prices(self.content(path), path)
        closes = table.values[..., 0].T
        returns = {
            ticker: np.diff(np.log(column[~np.isnan(column)]))
            for ticker, column in zip(table.tickers, closes, strict=True)
        }
        deviation = np.concatenate(list(returns.values())).std()
        windows, client, names = grouped.windows(returns, self.window)
        if not names or not deviation > 0:
            raise checks.InputError(
                f"The file '{path}' has no ticker of more than {self.window + 1} days,"
                " or no price that changes."
            )
        return datasets.Dataset(
            name=self.name,
            x=windows[:, :-1],
            y=(windows[:, -1] > 0).astype(int),
            class_names=("not up", "up"),
            client=client,
            client_names=names,
            ordered=True,
            scale=1 / deviation,
        )

    def only_path(self, located: base.Located) -> pathlib.Path:
        """Returns the only file.

        Raises:
          InputError: if there are several.
        """
        path, *others = located.paths
        if others:
            raise checks.InputError(
                f"Data set {self.name!r} needs one .csv file, but '{path.parent}' has"
                f" {', '.join(path.name for path in located.paths)}."
            )
        return path

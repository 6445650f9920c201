"""Daily prices of assets from a table `date,ticker,...,close[,adj_close]`."""

import contextlib
import dataclasses
import math
import re
from pathlib import Path

import numpy as np

from fedjax_pfl.core import checks
from fedjax_pfl.data.readers import tables

__all__ = ["Prices", "parse_date", "parse_prices"]

_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_PRICE_COLUMNS = ("adj_close", "close")  # the first that is there counts


@dataclasses.dataclass(frozen=True, eq=False)
class Prices:
    """Prices on a common calendar."""

    dates: np.ndarray  # `datetime64[D][T]`, every date of the table, ascending
    tickers: tuple[str, ...]  # A names, in the order of their first row
    # `float64[T, A, F]` the price and, if requested, the highest and the lowest of the
    # day; NaN if the table has none, for example before an asset's first day.
    values: np.ndarray


def parse_prices(content: bytes, path: Path, *, with_range: bool = False) -> Prices:
    """Parses a table with rows in any order; a range is `high` and `low`."""
    import pandas as pd  # slow to import, and needed by files of prices only

    (_, header), *rows = tables.parse_rows(content, path)
    names = [name.strip() for name in header]
    price = next((name for name in _PRICE_COLUMNS if name in names), None)
    if "date" not in names or "ticker" not in names or price is None:
        raise checks.InputError(
            f"The file '{path}' has the columns {', '.join(names)}, expected date,"
            f" ticker and {' or '.join(_PRICE_COLUMNS)}."
        )
    if with_range and not {"high", "low"} <= set(names):
        raise checks.InputError(
            f"The file '{path}' has the columns {', '.join(names)}, expected high and"
            " low among them; or use the close alone (features=1)."
        )
    lines = [line for line, _ in rows]
    used = {"date", "ticker", price, "close", "high", "low"} & set(names)
    columns = {name: [row[names.index(name)] for _, row in rows] for name in used}
    prices = {
        name: _positive(columns[name], lines, path)
        for name in (price, "close", "high", "low")
        if name in columns and (with_range or name == price)
    }
    values = prices[price][:, None]
    if with_range:
        close = prices.get("close", prices[price])
        high, low = prices["high"], prices["low"]
        wrong = np.flatnonzero((high < close) | (close < low))
        if len(wrong):
            row = wrong[0]
            raise checks.InputError(
                f"Line {lines[row]} of '{path}' has the close {close[row]:g}, which is"
                f" not between its low {low[row]:g} and its high {high[row]:g}."
            )
        # High and low are raw prices: the quotient of the closes adjusts them for
        # splits and dividends.
        factor = prices[price] / close
        values = np.stack([prices[price], high * factor, low * factor], axis=1)
    days, day = np.unique(_dates(columns["date"], lines, path), return_inverse=True)
    # In the order of the first row of each ticker.
    asset, tickers = pd.factorize(np.array(columns["ticker"], object))
    repeated = np.flatnonzero(pd.DataFrame({"day": day, "asset": asset}).duplicated())
    if len(repeated):
        row = repeated[0]
        raise checks.InputError(
            f"Line {lines[row]} of '{path}' repeats date {columns['date'][row]} and"
            f" ticker {columns['ticker'][row]!r}, expected one row for each."
        )
    grid = np.full((len(days), len(tickers), values.shape[1]), np.nan)
    grid[day, asset] = values
    return Prices(days, tuple(tickers), grid)


def parse_date(text: object) -> np.datetime64 | None:
    """Returns `datetime64[D]` of `YYYY-MM-DD`, or None if that is no day."""
    if isinstance(text, str) and _DATE.fullmatch(text):
        with contextlib.suppress(ValueError):
            return np.datetime64(text, "D")
    return None


def _dates(texts: list[str], lines: list[int], path: Path) -> np.ndarray:
    """Parses dates to `datetime64[D]`."""
    days = {text: parse_date(text) for text in set(texts)}
    for text, line in zip(texts, lines, strict=True):
        if days[text] is None:
            raise checks.InputError(
                f"Line {line} of '{path}' has the date {text!r}, expected YYYY-MM-DD."
            )
    return np.array([days[text] for text in texts], "datetime64[D]")


def _positive(texts: list[str], lines: list[int], path: Path) -> np.ndarray:
    """Parses prices to `float64`."""
    values = np.full(len(texts), math.nan)
    for row, text in enumerate(texts):
        with contextlib.suppress(ValueError):
            values[row] = float(text)
        if not 0 < values[row] < math.inf:
            raise checks.InputError(
                f"Line {lines[row]} of '{path}' has the price {text!r}, expected a"
                " positive number."
            )
    return values

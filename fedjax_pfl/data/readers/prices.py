"""Daily prices of assets from a table `date,ticker,...,close[,adj_close]`."""

import contextlib
import dataclasses
import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

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

    def check(is_right: np.ndarray, problem: str, *values: Sequence[Any]) -> None:
        """Refuses the first row that is not right, `bool[S]`, with its values."""
        if not is_right.all():
            row = int(is_right.argmin())
            problem = problem.format(*(column[row] for column in values))
            raise checks.InputError(f"Line {lines[row]} of '{path}' {problem}.")

    prices = {}
    for name in (price, "close", "high", "low") if with_range else (price,):
        if name in columns:
            prices[name] = np.array(list(map(_number, columns[name])))
            is_price = (prices[name] > 0) & (prices[name] < math.inf)
            problem = "has the price {!r}, expected a positive number"
            check(is_price, problem, columns[name])
    values = prices[price][:, None]
    if with_range:
        close = prices.get("close", prices[price])
        high, low = prices["high"], prices["low"]
        problem = "has the close {:g}, which is not between its low {:g} and its high"
        check((low <= close) & (close <= high), problem + " {:g}", close, low, high)
        # High and low are raw prices: the quotient of the closes adjusts them for
        # splits and dividends.
        factor = prices[price] / close
        values = np.stack([prices[price], high * factor, low * factor], axis=1)
    dates, tickers = columns["date"], columns["ticker"]
    day_of = {text: parse_date(text) for text in set(dates)}
    is_date = np.array([day_of[text] is not None for text in dates])
    check(is_date, "has the date {!r}, expected YYYY-MM-DD", dates)
    calendar = np.array([day_of[text] for text in dates], "datetime64[D]")
    days, day = np.unique(calendar, return_inverse=True)
    # In the order of the first row of each ticker.
    asset, assets = pd.factorize(np.array(tickers, object))
    is_first = ~pd.DataFrame({"day": day, "asset": asset}).duplicated().to_numpy()
    problem = "repeats date {} and ticker {!r}, expected one row for each"
    check(is_first, problem, dates, tickers)
    grid = np.full((len(days), len(assets), values.shape[1]), np.nan)
    grid[day, asset] = values
    return Prices(days, tuple(assets), grid)


def parse_date(text: object) -> np.datetime64 | None:
    """Returns `datetime64[D]` of `YYYY-MM-DD`, or None if that is no day."""
    if isinstance(text, str) and _DATE.fullmatch(text):
        with contextlib.suppress(ValueError):
            return np.datetime64(text, "D")
    return None


def _number(text: str) -> float:
    """Returns the number of a text, NaN if it is none."""
    try:
        return float(text)
    except ValueError:
        return math.nan

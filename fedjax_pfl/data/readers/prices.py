"""Daily prices of assets from a table `date,ticker,...,close[,adj_close]`.

Highs and lows are read where they are asked for, from the columns `high` and `low`.
"""

import csv
import dataclasses
import math
import os
import pathlib
import re
from typing import Any

import numpy as np

from fedjax_pfl.core import checks
from fedjax_pfl.data.readers import files

__all__ = ["Prices", "parse_date", "parse_prices", "read_prices"]

_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_PRICE_COLUMNS = ("adj_close", "close")  # the first that is there counts
_RANGE_COLUMNS = ("high", "low")


@dataclasses.dataclass(frozen=True, eq=False)
class Prices:
    """Prices on a common calendar.

    Attributes:
      dates: `datetime64[D][T]`, every date of the table, ascending.
      tickers: A names, in the order of their first row.
      values: `float64[T, A]`; NaN where the table has no price, for example before an
        asset's first day.
      high: `float64[T, A]` highest prices of the days, or None where not asked for.
      low: `float64[T, A]` lowest prices.
    """

    dates: np.ndarray
    tickers: tuple[str, ...]
    values: np.ndarray
    high: np.ndarray | None = None
    low: np.ndarray | None = None


def read_prices(path: str | pathlib.Path, *, with_range: bool = False) -> Prices:
    """Reads a comma-separated file in UTF-8, plain or `.gz`; other columns are ignored.

    Args:
      path: the file; dates are written `YYYY-MM-DD`, in any order of rows.
      with_range: whether to read the columns `high` and `low`.

    Returns:
      The prices of the column `adj_close`, or of `close` where there is no other. Where
      there are both, high and low are multiplied by their quotient.

    Raises:
      InputError: if a column is missing, or a row has an unreadable date, a price that
        is not a positive number or not between low and high, or the date and ticker of
        an earlier row.
    """
    path = pathlib.Path(os.path.expanduser(path))
    return parse_prices(files.read_content(path), path, with_range=with_range)


def parse_prices(
    content: bytes, path: pathlib.Path, *, with_range: bool = False
) -> Prices:
    """Parses the content of such a file.

    Args:
      content: uncompressed content.
      path: shown in messages.
      with_range: see `read_prices`.

    Returns:
      See `read_prices`.

    Raises:
      InputError: see `read_prices`.
    """
    columns = _columns(content, path, with_range)
    dates, tickers = columns["date"], columns["ticker"]
    days, day = np.unique(_dates(dates, path), return_inverse=True)
    column = {ticker: number for number, ticker in enumerate(dict.fromkeys(tickers))}
    asset = np.fromiter((column[ticker] for ticker in tickers), np.int64, len(tickers))
    cell = day * len(column) + asset
    order = np.argsort(cell, kind="stable")
    repeated = order[1:][cell[order[1:]] == cell[order[:-1]]]
    if len(repeated):
        row = repeated.min()
        raise checks.InputError(
            f"Line {row + 2} of '{path}' repeats date {dates[row]} and ticker"
            f" {tickers[row]!r}, expected one row for each."
        )
    found = _prices(columns, path)

    def spread(values: np.ndarray) -> np.ndarray:
        cells = np.full(len(days) * len(column), np.nan)
        cells[cell] = values
        return cells.reshape(len(days), len(column))

    table = {name: spread(values) for name, values in found.items()}
    return Prices(days, tuple(column), **table)


def _prices(
    columns: dict[str, tuple[str, ...]], path: pathlib.Path
) -> dict[str, np.ndarray]:
    """Values, high and low `float64` by row, in units of the column that counts."""
    price = next(name for name in _PRICE_COLUMNS if name in columns)
    values = _positive(columns[price], path)
    if "high" not in columns:
        return {"values": values}
    close = _positive(columns["close"], path) if "close" in columns else values
    high, low = (_positive(columns[name], path) for name in _RANGE_COLUMNS)
    wrong = np.flatnonzero((high < close) | (close < low))
    if len(wrong):
        row = int(wrong[0])
        raise checks.InputError(
            f"Line {row + 2} of '{path}' has the close {close[row]:g}, which is not"
            f" between its low {low[row]:g} and its high {high[row]:g}."
        )
    factor = values / close
    return {"values": values, "high": high * factor, "low": low * factor}


def _columns(
    content: bytes, path: pathlib.Path, with_range: bool
) -> dict[str, tuple[str, ...]]:
    """Text of the columns that are read, by name; data row `r` is line `r + 2`."""
    lines = files.read_text(content, path).rstrip("\n").split("\n")
    try:
        rows = list(csv.reader(lines, strict=True))
    except csv.Error as error:
        raise checks.InputError(
            f"The file '{path}' is not comma-separated text: {error}."
        ) from error
    header = [name.strip() for name in rows[0]] if rows else []
    price = next((name for name in _PRICE_COLUMNS if name in header), None)
    if "date" not in header or "ticker" not in header or price is None:
        raise checks.InputError(
            f"The file '{path}' has the columns {', '.join(header) or 'none'}, expected"
            f" date, ticker and {' or '.join(_PRICE_COLUMNS)}."
        )
    if with_range and not set(_RANGE_COLUMNS) <= set(header):
        raise checks.InputError(
            f"The file '{path}' has the columns {', '.join(header)}, expected"
            " high and low among them; or use the close alone (features=1)."
        )
    for number, row in enumerate(rows, start=1):
        if len(row) != len(header):
            raise checks.InputError(
                f"Line {number} of '{path}' has {len(row)} fields, expected"
                f" {len(header)} as in the header."
            )
    if len(rows) == 1:
        raise checks.InputError(f"The file '{path}' has a header, but no rows.")
    columns = list(zip(*rows[1:], strict=True))
    wanted = {"date", "ticker", price}
    if with_range:
        wanted |= {"close", *_RANGE_COLUMNS}
    return {name: columns[header.index(name)] for name in wanted & set(header)}


def parse_date(text: Any) -> np.datetime64:
    """A day written `YYYY-MM-DD`.

    Args:
      text: what was written.

    Returns:
      `datetime64[D]`.

    Raises:
      ValueError: if it is not such a text, or not a day of the calendar.
    """
    if not isinstance(text, str) or not _DATE.fullmatch(text):
        raise ValueError(text)
    return np.datetime64(text, "D")


def _dates(texts: tuple[str, ...], path: pathlib.Path) -> np.ndarray:
    """Dates `datetime64[D]`."""
    parsed: dict[str, np.datetime64] = {}
    for row, text in enumerate(texts):
        if text in parsed:
            continue
        try:
            parsed[text] = parse_date(text)
        except ValueError as error:
            raise checks.InputError(
                f"Line {row + 2} of '{path}' has the date {text!r}, expected"
                " YYYY-MM-DD."
            ) from error
    return np.array([parsed[text] for text in texts], "datetime64[D]")


def _positive(texts: tuple[str, ...], path: pathlib.Path) -> np.ndarray:
    """Prices `float64`."""
    values = np.empty(len(texts))
    for row, text in enumerate(texts):
        try:
            values[row] = float(text)
        except ValueError:
            values[row] = math.nan
        if not 0 < values[row] < math.inf:
            raise checks.InputError(
                f"Line {row + 2} of '{path}' has the price {text!r}, expected a"
                " positive number."
            )
    return values

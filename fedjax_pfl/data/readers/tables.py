"""Tables of text with a header: comma, semicolon or tab separated.

Everything is read as text first and then converted strictly: nothing is guessed from
a few rows, and every message names the column and the line.
"""

import collections
import csv
import dataclasses
import io
import itertools
import pathlib
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from fedjax_pfl.core import checks
from fedjax_pfl.data.readers import files

__all__ = ["Table", "parse_numbers", "parse_rows", "read_table"]

_SEPARATORS = {",": "commas", ";": "semicolons", "\t": "tabs"}
_LONGEST_HEADER = 1 << 20
_BLOCK = 1 << 18  # fields
_QUOTED = re.compile(r'"[^"]*"')
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)
_NUMBER_CHARACTERS = "0123456789+-.eE "
_COMMA_NUMBER = re.compile(r"[+-]?\d[\d.]*(,\d+)+", re.ASCII)
_MISSING = {"", "na", "n/a", "#n/a", "<na>", "nan", "+nan", "-nan", "null"}
_INFINITE = {sign + word for sign in ("", "+", "-") for word in ("inf", "infinity")}
_LARGEST = float(np.finfo(np.float32).max)


@dataclasses.dataclass(frozen=True)
class Table:
    """A table, column by column.

    Attributes:
      path: where it was read from; shown in messages.
      columns: name of each column -> `float64[S]`, or S texts without blanks around
        them where not all are numbers or where text was asked for.
      lines: S numbers of the lines in the file on which the rows begin.
    """

    path: pathlib.Path
    columns: Mapping[str, np.ndarray | Sequence[str]]
    lines: Sequence[int]

    def texts(self, name: str) -> Sequence[Any]:
        """Returns the `[S]` texts of a column without missing or infinite values.

        Args:
          name: name of a column of texts.

        Returns:
          The texts.

        Raises:
          InputError: if a value is missing or infinite.
        """
        values: Any = self.columns[name]
        wrong = {v for v in set(values) if v.casefold() in _MISSING | _INFINITE}
        rows = [row for row, value in enumerate(values) if value in wrong]
        if rows:
            raise checks.InputError(
                f"{self._place(name, rows[0])} holds {values[rows[0]]!r}: missing and"
                f" infinite values are refused ({len(rows)} rows); fill or drop them."
            )
        return values

    def numbers(self, name: str, otherwise: str) -> np.ndarray | None:
        """Returns the `float64[S]` numbers of a column, or None for one of text.

        Args:
          name: name of the column.
          otherwise: advice that ends the message about a column of both.

        Returns:
          The numbers, or None if no value is a number.

        Raises:
          InputError: if a value is missing, infinite or beyond 32 bits, if numbers and
            other texts are mixed, or if all look like numbers with commas inside.
        """
        column = self.columns[name]
        numbers = column if isinstance(column, np.ndarray) else parse_numbers(column)
        if numbers is not None:
            row = int(np.abs(numbers).argmax())
            if abs(numbers[row]) > _LARGEST:
                raise checks.InputError(
                    f"{self._place(name, row)} holds {numbers[row]:g}, beyond 32 bits."
                )
            return numbers
        values = self.texts(name)
        is_number = {text: bool(_NUMBER.fullmatch(text)) for text in set(values)}
        if any(is_number.values()):
            row = next(row for row, text in enumerate(values) if not is_number[text])
            raise checks.InputError(
                f"{self._place(name, row)} holds {_shown(values[row])}, expected a"
                f" number as in other rows; correct it, or {otherwise}."
            )
        if all(map(_COMMA_NUMBER.fullmatch, is_number)):
            raise checks.InputError(
                f"{self._place(name, 0)} holds {values[0]!r}: write numbers with a"
                f" decimal point and without commas, or {otherwise}."
            )
        return None

    def _place(self, name: str, row: int) -> str:
        """Returns the subject of a message about one value."""
        return (
            f"Column {name!r} of '{self.path}' in data row {row + 1} (line"
            f" {self.lines[row]})"
        )


def parse_numbers(texts: Sequence[str]) -> np.ndarray | None:
    """Converts texts to `float64[S]`, or returns None if one of them is no number.

    Args:
      texts: S texts.

    Returns:
      The numbers; infinite where a text such as `1e999` is beyond 64 bits.

    Example:
      >>> parse_numbers(["1", "2.5", "-1e3"])
      array([    1. ,     2.5, -1000. ])
      >>> parse_numbers(["1", "1_000"]) is None
      True
    """
    # Of these characters alone, Python reads as a number just what `_NUMBER` describes
    # with blanks around it; to look at all of them at once is many times faster.
    if "".join(texts).strip(_NUMBER_CHARACTERS):
        return None
    try:
        return np.fromiter(map(float, texts), np.float64, len(texts))
    except ValueError:
        return None


def _shown(value: str) -> str:
    """Returns a value as messages show it: on one line and not too long."""
    return repr(value if len(value) <= 40 else value[:40] + "...")


def read_table(path: pathlib.Path, keep: Collection[str] = ()) -> Table:
    """Reads a table: UTF-8, the first line names the columns, plain or `.gz`.

    Args:
      path: the file; see `parse_rows`.
      keep: names of the columns whose values are kept as text although they may be
        numbers.

    Returns:
      The table, with at least two columns and one row.

    Raises:
      InputError: if the file cannot be read or is not such a table, or if a column has
        no name or that of another one.
    """
    rows = parse_rows(files.read_content(path), path)
    names = _column_names(next(rows)[1], path)
    lines: list[int] = []
    parts: list[list[Any]] = [[] for _ in names]
    # Numbers are converted block by block, as texts take several times the memory.
    while block := list(itertools.islice(rows, 1 + _BLOCK // len(names))):
        lines += [line for line, _ in block]
        columns = zip(*(row for _, row in block), strict=True)
        for name, part, column in zip(names, parts, columns, strict=True):
            numbers = None if name in keep else parse_numbers(column)
            part.append([*map(str.strip, column)] if numbers is None else numbers)
    return Table(path, dict(zip(names, map(_joined, parts), strict=True)), lines)


def _joined(parts: Sequence[Any]) -> np.ndarray | Sequence[str]:
    """Joins the blocks of a column; all become text where one is."""
    if all(isinstance(part, np.ndarray) for part in parts):
        return np.concatenate(parts)
    return [
        text
        for part in parts
        for text in (map(repr, part.tolist()) if isinstance(part, np.ndarray) else part)
    ]


def parse_rows(content: bytes, path: pathlib.Path) -> Iterator[tuple[int, list[str]]]:
    """Parses a table of text in UTF-8 into the header and at least one row.

    The separator is the one of comma, semicolon and tab that the header has most of.
    Fields may be quoted; blank lines are skipped.

    Args:
      content: uncompressed content.
      path: shown in messages.

    Yields:
      The line on which a row begins and its fields, as many as in the header.

    Raises:
      InputError: if the content is not such a table.
    """
    if b"\0" in content:  # also in every file in UTF-16, and in office documents
        raise checks.InputError(
            f"The table '{path}' holds the byte 0; save it as csv in UTF-8."
        )
    text = files.read_text(content, path)
    if not text.strip():
        raise checks.InputError(f"The table '{path}' is empty.")
    # newline=None: the three conventions of line ends all become "\n".
    stream = io.StringIO(text, newline=None)
    separator = _separator(text, path)
    reader = csv.reader(stream, delimiter=separator, strict=True, skipinitialspace=True)
    end = width = count = 0
    try:
        for row in reader:
            begin, end = end + 1, reader.line_num
            if len(row) < 2 and not "".join(row).strip():
                continue
            width = width or len(row)
            if len(row) != width:
                raise checks.InputError(
                    f"Line {begin} of '{path}' has {len(row)} fields, expected {width}."
                )
            count += 1
            yield begin, row
    except csv.Error as error:
        raise checks.InputError(
            f"The row that begins on line {end + 1} of '{path}' is broken"
            f" ({error}); look there for a missing quotation mark or a very long field."
        ) from error
    if count < 2:
        raise checks.InputError(f"The table '{path}' has a header, but no row of data.")


def _separator(text: str, path: pathlib.Path) -> str:
    """Returns the separator that the header has most of, outside quotation marks."""
    start = _QUOTED.sub("", text[:_LONGEST_HEADER].lstrip())
    header = re.split("[\r\n]", start, maxsplit=1)[0]
    counts = {separator: header.count(separator) for separator in _SEPARATORS}
    most = max(counts.values())
    likely = [separator for separator, count in counts.items() if count == most]
    if len(likely) > 1:
        marks = ", ".join(f"{n} {_SEPARATORS[mark]}" for mark, n in counts.items())
        raise checks.InputError(
            f"Expected columns separated by one mark in '{path}', got {marks}."
        )
    return likely[0]


def _column_names(header: list[str], path: pathlib.Path) -> list[str]:
    """Returns the names in the header, checked to be different and printable."""
    names = [name.strip() for name in header]
    for position, name in enumerate(names, 1):
        if not name or not name.isprintable():
            state = f"the name {_shown(name)}" if name else "no name"
            raise checks.InputError(
                f"Column {position} of '{path}' has {state} in the header; give it one"
                " or save the table without it (an index, perhaps)."
            )
    ((name, count),) = collections.Counter(names).most_common(1)
    if count > 1:
        raise checks.InputError(
            f"The header of '{path}' has the column {name!r} twice."
        )
    return names

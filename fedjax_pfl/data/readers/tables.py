"""Tables of text with a header: comma, semicolon or tab separated.

Everything is read as text first and then converted strictly: nothing is guessed from
the look of a few rows, and every refusal names the column and the line.
"""

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

__all__ = ["Table", "parse_numbers", "read_table"]

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
    """The values of a table, column by column.

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
        """The `[S]` texts of a column without missing or infinite values.

        Args:
          name: name of a column of texts.

        Returns:
          The texts.

        Raises:
          InputError: if a value is missing or infinite.
        """
        values: Any = self.columns[name]
        wrong = {v for v in set(values) if v.casefold() in _MISSING | _INFINITE}
        if wrong:
            rows = [row for row, value in enumerate(values) if value in wrong]
            raise checks.InputError(
                f"{self._place(name, rows[0])} holds {values[rows[0]]!r}: missing and"
                f" infinite values are not allowed ({len(rows)} rows of this column"
                " have one); fill them in, remove the rows or drop the column."
            )
        return values

    def numbers(self, name: str, otherwise: str) -> np.ndarray | None:
        """The `float64[S]` values of a column of numbers, or None for one of text.

        Args:
          name: name of the column.
          otherwise: advice that ends the sentence about a column that is neither.

        Returns:
          The numbers, or None if no value is a number.

        Raises:
          InputError: if a value is missing, infinite or beyond 32 bits, if numbers and
            other texts are mixed, or if all look like numbers with commas inside.
        """
        column = self.columns[name]
        numbers = column if isinstance(column, np.ndarray) else parse_numbers(column)
        if numbers is None:
            self._check_text(name, otherwise)
        elif np.abs(numbers).max() > _LARGEST:
            row = int(np.abs(numbers).argmax())
            raise checks.InputError(
                f"{self._place(name, row)} holds {numbers[row]:g}, which is too large"
                f" for 32 bits (at most {_LARGEST:.3g})."
            )
        return numbers

    def _check_text(self, name: str, otherwise: str) -> None:
        """Checks that a column that is not of numbers is of text throughout."""
        values = self.texts(name)
        distinct = set(values)
        numeric = {value for value in distinct if _NUMBER.fullmatch(value)}
        if not numeric:
            if all(map(_COMMA_NUMBER.fullmatch, distinct)):
                raise checks.InputError(
                    f"{self._place(name, 0)} holds {values[0]!r}: write numbers with a"
                    f" decimal point and without commas, or {otherwise}."
                )
            return
        row = next(row for row, value in enumerate(values) if value not in numeric)
        raise checks.InputError(
            f"{self._place(name, row)} holds {_shown(values[row])}, expected a number"
            f" as in other rows; correct it, or {otherwise}."
        )

    def _place(self, name: str, row: int) -> str:
        """Start of a sentence about one value."""
        return (
            f"Column {name!r} of '{self.path}' in data row {row + 1} (line"
            f" {self.lines[row]})"
        )


def parse_numbers(texts: Sequence[str]) -> np.ndarray | None:
    """The `float64[S]` numbers that the texts are, or None if one of them is none.

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
    """A value as messages show it: on one line and not too long."""
    return repr(value if len(value) <= 40 else value[:40] + "...")


def read_table(path: pathlib.Path, keep: Collection[str] = ()) -> Table:
    """Reads a table: UTF-8, the first line names the columns, plain or `.gz`.

    The separator is the one of comma, semicolon and tab that the header has most of.
    Fields may be quoted; blank lines are skipped.

    Args:
      path: the file.
      keep: names of the columns whose values are kept as text although they may be
        numbers.

    Returns:
      The table, with at least two columns and one row.

    Raises:
      InputError: if the file cannot be read, is not such a table, or has a row whose
        number of fields is not that of the header.
    """
    rows = _rows(_decoded(files.read_content(path), path), path)
    _, header = next(rows, (0, None))
    if header is None:
        raise checks.InputError(f"The table '{path}' is empty.")
    names = _column_names(header, path)
    lines: list[int] = []
    parts: list[list[Any]] = [[] for _ in names]
    # Numbers are converted block by block, as texts take several times the memory.
    while block := list(itertools.islice(rows, 1 + _BLOCK // len(names))):
        for line, row in block:
            if len(row) != len(names):
                raise checks.InputError(
                    f"The row on line {line} of '{path}' has {len(row)} fields,"
                    f" expected {len(names)} as in the header."
                )
            lines.append(line)
        columns = zip(*(row for _, row in block), strict=True)
        for name, part, column in zip(names, parts, columns, strict=True):
            numbers = None if name in keep else parse_numbers(column)
            part.append([*map(str.strip, column)] if numbers is None else numbers)
    if not lines:
        raise checks.InputError(f"The table '{path}' has a header, but no row of data.")
    return Table(path, dict(zip(names, map(_joined, parts), strict=True)), lines)


def _joined(parts: Sequence[Any]) -> np.ndarray | Sequence[str]:
    """One column of its blocks; all become text where one is."""
    if all(isinstance(part, np.ndarray) for part in parts):
        return np.concatenate(parts)
    return [
        text
        for part in parts
        for text in (map(repr, part.tolist()) if isinstance(part, np.ndarray) else part)
    ]


def _decoded(content: bytes, path: pathlib.Path) -> str:
    """The text of a file, checked to be text in UTF-8."""
    if b"\0" in content:  # also in every file in UTF-16, and in office documents
        raise checks.InputError(
            f"The file '{path}' is not a table of text: byte {content.index(0)} is 0;"
            " save it as csv in UTF-8."
        )
    return files.read_text(content, path)


def _rows(text: str, path: pathlib.Path) -> Iterator[tuple[int, list[str]]]:
    """The line on which a row begins and its fields, for the header and every row."""
    # newline=None: the three conventions of line ends all become "\n".
    stream = io.StringIO(text, newline=None)
    reader = csv.reader(
        stream, delimiter=_separator(text, path), strict=True, skipinitialspace=True
    )
    end = 0
    try:
        for row in reader:
            begin, end = end + 1, reader.line_num
            if len(row) > 1 or "".join(row).strip():
                yield begin, row
    except csv.Error as error:
        raise checks.InputError(
            f"The row that begins on line {end + 1} of '{path}' is broken"
            f" ({error}); look there for a missing quotation mark or a very long field."
        ) from error


def _separator(text: str, path: pathlib.Path) -> str:
    """The separator that the header has most of, outside quotation marks."""
    start = _QUOTED.sub("", text[:_LONGEST_HEADER].lstrip())
    header = re.split("[\r\n]", start, maxsplit=1)[0]
    counts = {separator: header.count(separator) for separator in _SEPARATORS}
    most = max(counts.values())
    found = [separator for separator, count in counts.items() if count == most]
    if text.strip() and (most == 0 or len(found) > 1):
        what = "neither commas nor semicolons nor tabs" if most == 0 else "as many "
        what += " as ".join(_SEPARATORS[separator] for separator in found) * (most > 0)
        raise checks.InputError(
            f"The first line of '{path}' has {what}, so that its columns cannot be told"
            " apart; expected the names of the columns, separated by one of the three."
        )
    return found[0]


def _column_names(header: list[str], path: pathlib.Path) -> list[str]:
    """The names in the header, checked to be there, different and printable."""
    names = [name.strip() for name in header]
    seen: set[str] = set()
    for position, name in enumerate(names, 1):
        if not name or not name.isprintable():
            what = f"the name {_shown(name)}" if name else "no name"
            raise checks.InputError(
                f"Column {position} of '{path}' has {what} in the header; give it one"
                " or save the table without it (an index, perhaps)."
            )
        if name in seen:
            raise checks.InputError(
                f"The header of '{path}' has the column {name!r} twice."
            )
        seen.add(name)
    return names

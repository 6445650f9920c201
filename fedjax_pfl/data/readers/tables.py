"""Tables: text with a header, comma, semicolon or tab separated; parquet; data frames.

All cells of a text are read as text first and then converted strictly: no type is
guessed from a few rows, and every message names the column and the line.
"""

import codecs
import collections
import csv
import dataclasses
import io
import itertools
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedjax_pfl.core import checks, struct
from fedjax_pfl.data.readers import files

__all__ = [
    "NUMBER",
    "Dialect",
    "Table",
    "frame_table",
    "joined",
    "parse_numbers",
    "parse_rows",
    "read_parquet",
    "read_table",
]

_SEPARATORS = {",": "commas", ";": "semicolons", "\t": "tabs"}
_LONGEST_HEADER = 1 << 20
_BLOCK = 1 << 18  # fields
_QUOTED = re.compile(r'"[^"]*"')
NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)
"""Numbers as Python writes them."""
_NUMBER_CHARACTERS = "0123456789+-.eE "
_COMMA_NUMBER = re.compile(r"[+-]?\d[\d.]*(,[\d.]*\d)+", re.ASCII)
_MISSING = {"", "na", "n/a", "#n/a", "<na>", "nan", "+nan", "-nan", "null"}
_INFINITE = {sign + word for sign in ("", "+", "-") for word in ("inf", "infinity")}
_NESTED = (list, tuple, dict, set, bytes, np.ndarray)
_LARGEST = float(np.finfo(np.float32).max)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Dialect:
    """How a table is written."""

    separator: str | None = None  # None for the one that the header has most of
    decimal: str = "."  # mark between the whole part of a number and its fraction
    thousands: str | None = None  # mark between groups of three digits, or None
    encoding: str = "utf-8"  # of the characters, as Python names it
    comment: str | None = None  # what lines begin with that are skipped, or None

    def __post_init__(self):
        struct.check_fields(self)
        for name in ("separator", "decimal", "thousands"):
            mark = getattr(self, name)
            # Letters, digits and signs would make numbers ambiguous, line ends and
            # quotes the rows.
            if mark is not None and (
                len(mark) != 1 or mark.isalnum() or mark in '+-"\n\r\0'
            ):
                raise checks.InputError(
                    f"Expected {name} to be one mark such as ',', got"
                    f" {checks.shown(mark)}."
                )
        if self.thousands == self.decimal:
            raise checks.InputError(
                "Expected different marks as decimal and thousands, got"
                f" {self.decimal!r} for both."
            )
        if self.comment is not None and (
            not self.comment.strip() or not self.comment.isprintable()
        ):
            raise checks.InputError(
                "Expected comment to be what lines begin with, such as '#', got"
                f" {checks.shown(self.comment)}."
            )
        try:
            "a".encode(self.encoding)
        except (LookupError, ValueError) as error:
            raise checks.InputError(
                "Expected encoding to name a codec of Python, such as 'utf-8' or"
                f" 'latin-1', got {checks.shown(self.encoding)}."
            ) from error

    def plain(self, text: str) -> str:
        """Returns a number as Python writes it, and the empty text for others."""
        digits, mark, fraction = text.strip().partition(self.decimal)
        # Groups of other than three digits are no thousands: 1.5 is no 15.
        if self.thousands is not None and self.thousands in digits:
            leading, *groups = digits.split(self.thousands)
            if len(leading.lstrip("+-")) not in (1, 2, 3) or {*map(len, groups)} != {3}:
                return ""
            digits = leading + "".join(groups)
        number = digits + mark.replace(self.decimal, ".") + fraction
        is_other = "." in digits or "." in fraction
        return "" if is_other or not NUMBER.fullmatch(number) else number


_PLAIN = Dialect()


@dataclasses.dataclass(frozen=True)
class Table:
    """A table, column by column."""

    where: str  # its source, for messages
    # Name of each column -> `float64[S]`, or `object[S]` texts without blanks around
    # them if not all are numbers or text was requested.
    columns: Mapping[str, np.ndarray]
    rows: np.ndarray  # `int[S]` numbers of the rows in its source
    place: Callable[[int], str]  # describes such a number in messages
    dialect: Dialect = _PLAIN  # how its numbers are written

    def missing(self, name: str) -> np.ndarray:
        """Returns a mask `bool[S]` of missing values in a column."""
        column = self.columns[name]
        return np.isnan(column) if column.dtype == float else _among(column, _MISSING)

    def chosen(self, rows: np.ndarray) -> "Table":
        """Returns the rows of a mask `bool[S]`."""
        columns = {name: column[rows] for name, column in self.columns.items()}
        return dataclasses.replace(self, columns=columns, rows=self.rows[rows])

    def texts(self, name: str) -> np.ndarray:
        """Returns the `[S]` texts of a column without missing or infinite values."""
        self._refuse(name, _among(self.columns[name], _MISSING | _INFINITE))
        return self.columns[name]

    def _refuse(self, name: str, wrong: np.ndarray) -> None:
        """Refuses missing or infinite values of a column, at `bool[S]`."""
        if not wrong.any():
            return
        row = int(wrong.argmax())
        drop, mean = (
            checks.setting("federation.dataset.missing", word)
            for word in ("drop", "mean")
        )
        raise checks.InputError(
            f"{self._place(name, row)} holds {str(self.columns[name][row])!r}: missing"
            f" and infinite values are refused ({wrong.sum()} rows); correct them, or"
            f" leave rows with missing ones out with {drop}, or fill gaps of features"
            f" with {mean}."
        )

    def numbers(
        self, name: str, otherwise: str, *, with_gaps: bool = False
    ) -> np.ndarray | None:
        """Returns the `float64[S]` numbers of a column, or None for one of text."""
        if with_gaps and (missing := self.missing(name)).any():
            if missing.all():
                raise checks.InputError(
                    f"Column {name!r} of {self.where} holds no value; leave it out"
                    f" with {checks.setting('federation.dataset.drop', (name,))}."
                )
            # Gaps are left out and filled again, so that messages name rows of the
            # file.
            present = self.chosen(~missing).numbers(name, otherwise)
            if present is None:
                return None
            numbers = np.full(len(missing), np.nan)
            numbers[~missing] = present
            return numbers
        numbers = self.columns[name]
        if numbers.dtype != float:
            numbers = parse_numbers(numbers, self.dialect)
        if numbers is not None:
            self._refuse(name, np.isnan(numbers))  # a frame may have some
            row = int(np.abs(numbers).argmax())
            if abs(numbers[row]) > _LARGEST:
                raise checks.InputError(
                    f"{self._place(name, row)} holds {numbers[row]:g}, beyond 32 bits."
                )
            return numbers
        values = self.texts(name)
        # From here on the column is text; a few numbers among texts are likely a
        # mistake.
        is_number = {text: bool(self.dialect.plain(text)) for text in set(values)}
        has_commas = {text: bool(_COMMA_NUMBER.fullmatch(text)) for text in is_number}
        decimal, thousands = (
            checks.setting(f"federation.dataset.{mark}", ",")
            for mark in ("decimal", "thousands")
        )
        marks = f"read numbers with commas by {decimal} or {thousands}"
        if any(is_number.values()):
            row = next(row for row, text in enumerate(values) if not is_number[text])
            advice = marks if has_commas[values[row]] else "correct it"
            raise checks.InputError(
                f"{self._place(name, row)} holds {_excerpt(values[row])}, expected a"
                f" number as in other rows; {advice}, or {otherwise}."
            )
        if all(has_commas.values()):
            raise checks.InputError(
                f"{self._place(name, 0)} holds {values[0]!r}, expected a number with a"
                f" decimal point; {marks}, or {otherwise}."
            )
        return None

    def _place(self, name: str, row: int) -> str:
        """Returns the subject of a message about one value."""
        return f"Column {name!r} of {self.place(int(self.rows[row]))}"


def _among(texts: np.ndarray, words: Collection[str]) -> np.ndarray:
    """Returns a mask `bool[S]` of texts that are some words in any case."""
    is_word = {text: text.casefold() in words for text in set(texts)}
    return np.fromiter(map(is_word.__getitem__, texts), bool, len(texts))


def parse_numbers(
    texts: Collection[str], dialect: Dialect = _PLAIN
) -> np.ndarray | None:
    """Converts texts to `float64[S]`, or returns None if one text is no number."""
    if (dialect.decimal, dialect.thousands) != (".", None):
        texts = list(map(dialect.plain, texts))
    # Of these characters alone, Python reads as a number just what `NUMBER` describes
    # with blanks around it; to look at all of them at once is many times faster.
    if "".join(texts).strip(_NUMBER_CHARACTERS):
        return None
    # A text such as 1e999, beyond 64 bits, becomes infinite.
    try:
        return np.fromiter(map(float, texts), np.float64, len(texts))
    except ValueError:
        return None


def _excerpt(value: str) -> str:
    """Returns a value as messages show it: on one line and not too long."""
    return repr(value if len(value) <= 40 else value[:40] + "...")


def read_table(
    path: Path, keep: Collection[str] = (), dialect: Dialect = _PLAIN
) -> Table:
    """Reads a table, plain or `.gz`; the columns in `keep` stay text."""
    setting = checks.setting("federation.dataset.encoding", "latin-1")
    advice = f", or name its encoding, as in {setting}"
    rows = parse_rows(files.read_content(path), path, dialect, advice)
    names = _column_names(next(rows)[1], f"'{path}'")
    lines: list[int] = []
    parts: dict[str, list[np.ndarray]] = {name: [] for name in names}
    # Numbers are converted block by block, as texts take several times the memory.
    while block := list(itertools.islice(rows, 1 + _BLOCK // len(names))):
        lines += [line for line, _ in block]
        for name, *texts in zip(names, *(row for _, row in block), strict=True):
            column = None if name in keep else parse_numbers(texts, dialect)
            if column is None:
                column = np.array([*map(str.strip, texts)], object)
            parts[name].append(column)
    columns = {name: _joined(part, dialect) for name, part in parts.items()}
    return Table(
        f"'{path}'",
        columns,
        np.arange(len(lines)),
        lambda row: f"'{path}' in data row {row + 1} (line {lines[row]})",
        dialect,
    )


def joined(parts: Sequence[Table], where: str) -> Table:
    """Joins the rows of tables that have the same columns, in any order."""
    reference = parts[0]
    for part in parts[1:]:
        for has, lacks in ((reference, part), (part, reference)):
            if missing := [name for name in has.columns if name not in lacks.columns]:
                raise checks.InputError(
                    f"Expected the same columns in all files of {where}, but"
                    f" {has.where} has {missing[0]!r} and {lacks.where} does not."
                )
    starts = np.cumsum([0, *(len(part.rows) for part in parts)])

    def place(row: int) -> str:
        """Returns the position of a row, for messages."""
        number = int(np.searchsorted(starts, row, "right")) - 1
        return parts[number].place(row - int(starts[number]))

    columns = {
        name: _joined([part.columns[name] for part in parts], reference.dialect)
        for name in reference.columns
    }
    return Table(where, columns, np.arange(starts[-1]), place, reference.dialect)


def _joined(parts: Sequence[np.ndarray], dialect: Dialect) -> np.ndarray:
    """Joins pieces of a column; all become text if one is."""
    if all(part.dtype == float for part in parts):
        return np.concatenate(parts)
    # A block of numbers between texts becomes text again, in the dialect of the file.
    texts = (
        [repr(number).replace(".", dialect.decimal) for number in part.tolist()]
        if part.dtype == float
        else part
        for part in parts
    )
    return np.array([*itertools.chain.from_iterable(texts)], object)


def parse_rows(
    content: bytes, path: Path, dialect: Dialect = _PLAIN, advice: str = ""
) -> Iterator[tuple[int, list[str]]]:
    """Yields line and fields of the header and of at least one row."""
    is_wide = codecs.lookup(dialect.encoding).name.startswith(("utf-16", "utf-32"))
    if b"\0" in content and not is_wide:  # also in office documents
        raise checks.InputError(
            f"The table '{path}' holds the byte 0; save it as csv in UTF-8{advice}."
        )
    text = files.read_text(content, path, dialect.encoding, advice)
    if not text.strip():
        raise checks.InputError(f"The table '{path}' is empty.")
    separator = dialect.separator or _separator(text, path, dialect.comment)
    comment, end, width, count = dialect.comment, 0, 0, 0

    def lines() -> Iterator[str]:
        """Yields lines, blank ones for comments; rows contain no comments."""
        # newline=None: the three conventions of line ends all become "\n".
        for line in io.StringIO(text, newline=None):
            is_first = reader.line_num == end  # of a row
            is_comment = comment and is_first and line.lstrip().startswith(comment)
            yield "\n" if is_comment else line

    options: Any = {"strict": True, "skipinitialspace": separator != " "}
    reader = csv.reader(lines(), delimiter=separator, **options)
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
            f"The row that begins on line {end + 1} of '{path}' is broken ({error});"
            " look there for a missing quotation mark or a very long field."
        ) from error
    if count < 2:
        raise checks.InputError(f"The table '{path}' has a header, but no row of data.")


def _separator(text: str, path: Path, comment: str | None) -> str:
    """Returns the separator that the header has most of, outside quotation marks."""
    start = text[:_LONGEST_HEADER].lstrip()
    if comment is not None:
        start = re.sub(rf"\A(\s*{re.escape(comment)}[^\r\n]*)+", "", start).lstrip()
    start = _QUOTED.sub("", start)
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


def _column_names(header: Sequence[Any], where: str) -> list[str]:
    """Returns the names of columns, checked to be different and printable."""
    names = [str(name).strip() for name in header]
    for position, name in enumerate(names, 1):
        if not name or not name.isprintable():
            state = f"the name {_excerpt(name)}" if name else "no name"
            raise checks.InputError(
                f"Column {position} of {where} has {state} in the header; give it one"
                " or save the table without it (an index, perhaps)."
            )
    ((name, count),) = collections.Counter(names).most_common(1)
    if count > 1:
        raise checks.InputError(f"The header of {where} has the column {name!r} twice.")
    return names


def read_parquet(path: Path, keep: Collection[str] = ()) -> Table:
    """Reads a parquet file."""
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        raise checks.InputError(
            f"The file '{path}' needs pyarrow, which is not completely installed"
            f' ({error}): pip install "fedjax_pfl[parquet]".'
        ) from error
    content = files.read_bytes(path)
    errors = (pyarrow.ArrowException, OSError, ValueError, KeyError, TypeError)
    with files.complete(path, "parquet file", *errors, OverflowError):
        # The unpacked size stands in the file; pages of a small file may be very large.
        metadata = parquet.read_metadata(io.BytesIO(content))
        groups = map(metadata.row_group, range(metadata.num_row_groups))
        size = sum(group.total_byte_size for group in groups)
        checks.memory(f"The content of '{path}'", 2 * size, "give a smaller file")
        frame = parquet.read_table(io.BytesIO(content)).to_pandas()

    return frame_table(
        frame, f"'{path}'", lambda row: f"'{path}' in data row {row + 1}", keep
    )


def frame_table(
    frame: Any, where: str, place: Callable[[int], str], keep: Collection[str] = ()
) -> Table:
    """Converts a data frame."""
    if 0 in frame.shape:
        raise checks.InputError(
            f"Expected {where} to have rows and columns, got {len(frame):,} rows and"
            f" {frame.shape[1]:,} columns."
        )
    names = _column_names(list(frame.columns), where)
    columns = {
        name: _column(cells, name in keep, f"Column {name!r} of {where}")
        for name, (_, cells) in zip(names, frame.items(), strict=True)
    }
    return Table(where, columns, np.arange(len(frame)), place)


def _column(values: Any, is_text: bool, subject: str) -> np.ndarray:
    """Returns a column as `float64[S]` with NaN for missing values, or as texts."""
    import pandas as pd

    kinds = pd.api.types
    is_number = kinds.is_numeric_dtype(values) and not kinds.is_bool_dtype(values)
    if is_number and kinds.is_complex_dtype(values):
        raise checks.InputError(f"{subject} holds complex numbers, expected real ones.")
    if is_number and not is_text:
        return values.to_numpy(np.float64, na_value=np.nan)
    # pandas' own mask: None, NaN, NaT and NA are all missing.
    is_missing = values.isna().to_numpy()
    cells = values.astype(object).tolist()
    if any(isinstance(cell, _NESTED) for cell in cells):
        raise checks.InputError(
            f"{subject} holds lists, expected one number or text in each cell; leave it"
            " out, or make arrays of it for Federation.from_arrays."
        )
    if is_number:  # pandas has whole numbers with gaps as floats
        cells = [
            int(cell)
            if isinstance(cell, float) and cell.is_integer() and abs(cell) < 2**53
            else cell
            for cell in cells
        ]
    texts = [str(cell).strip() for cell in cells]
    return np.where(is_missing, "", np.array(texts, object))

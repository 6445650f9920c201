"""Tables as csv files, whose texts no spreadsheet takes for formulas."""

import csv
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["read", "text"]

_FORMULA = re.compile(r"'*[=+\-@\t\r\n]")


def text(table: "pd.DataFrame", **options: Any) -> str:
    """Returns the content of a file.

    Args:
      table: whose texts and titles that a spreadsheet would calculate get an
        apostrophe in front, which says that they are texts; numbers do not.
      **options: of `DataFrame.to_csv`.
    """
    table = _changed(table, _quoted)
    content = table.to_csv(index=False, **options)
    if "\r" in content:  # which begins a row where it is not quoted
        options["quoting"] = csv.QUOTE_NONNUMERIC
        content = table.to_csv(index=False, **options)
    return content


def read(source: Any, **options: Any) -> "pd.DataFrame":
    """Reads a file as it was before `text`.

    Args:
      source: file, path or stream.
      **options: of `pandas.read_csv`.
    """
    import pandas as pd

    return _changed(pd.read_csv(source, **options), _unquoted)


def _changed(table: "pd.DataFrame", change: Callable[[Any], Any]) -> "pd.DataFrame":
    """Changes titles and cells, and leaves columns without a text to change alone."""
    table = table.rename(columns=change)
    for place, (_, column) in enumerate(table.items()):
        before = list(column)
        cells = [change(cell) for cell in before]
        if any(new is not old for new, old in zip(cells, before, strict=True)):
            table.isetitem(place, cells)
    return table


def _quoted(cell: Any) -> Any:
    """Adds an apostrophe to a text that would be calculated, or has a similar one."""
    is_formula = isinstance(cell, str) and _FORMULA.match(cell)
    return f"'{cell}" if is_formula and not _is_number(cell) else cell


def _unquoted(cell: Any) -> Any:
    """Takes the apostrophe off."""
    is_quoted = isinstance(cell, str) and cell[:1] == "'" and _FORMULA.match(cell)
    return cell[1:] if is_quoted else cell


def _is_number(cell: str) -> bool:
    """Returns whether a text is a number, which stands for itself."""
    try:
        float(cell)
    except ValueError:
        return False
    return True

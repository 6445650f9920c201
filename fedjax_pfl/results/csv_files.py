"""Tables as csv files with texts that spreadsheets do not run as formulas."""

import csv
import io
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedjax_pfl.results import plain_files

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["read", "text"]

_FORMULA = re.compile(r"'*[=+\-@\t\r\n]")


def text(table: "pd.DataFrame", **options: Any) -> str:
    """Returns the content of a file; `options` are those of `DataFrame.to_csv`."""
    # Texts and titles that a spreadsheet would evaluate get a leading apostrophe, which
    # marks them as texts; numbers stay unchanged.
    table = _with_texts(table, _quoted)
    content = table.to_csv(index=False, **options)
    if "\r" in content:  # begins a new row unless quoted
        options["quoting"] = csv.QUOTE_NONNUMERIC
        content = table.to_csv(index=False, **options)
    return content


def read(source: Path | io.StringIO, **options: Any) -> "pd.DataFrame":
    """Reads a file of `text`, without the apostrophes; options of `pandas.read_csv`."""
    import pandas as pd

    file = (
        io.BytesIO(plain_files.content(source)) if isinstance(source, Path) else source
    )
    return _with_texts(pd.read_csv(file, **options), _unquoted)


def _with_texts(table: "pd.DataFrame", change: Callable[[Any], Any]) -> "pd.DataFrame":
    """Changes titles and cells of the columns that contain such texts."""
    table = table.rename(columns=change)
    for place, (_, column) in enumerate(table.items()):
        if column.dtype.kind in "biufc":
            continue
        # Columns repeat few texts: each is looked at once.
        texts = {cell for cell in column.unique() if isinstance(cell, str)}
        new_texts = {cell: change(cell) for cell in texts}
        if any(new is not old for old, new in new_texts.items()):
            table.isetitem(place, [new_texts.get(cell, cell) for cell in column])
    return table


def _quoted(cell: Any) -> Any:
    """Adds an apostrophe to texts that look like a formula or are quoted already."""
    is_formula = isinstance(cell, str) and _FORMULA.match(cell)
    return f"'{cell}" if is_formula and not _is_number(cell) else cell


def _unquoted(cell: Any) -> Any:
    """Removes the apostrophe."""
    is_quoted = isinstance(cell, str) and cell[:1] == "'" and _FORMULA.match(cell)
    return cell[1:] if is_quoted else cell


def _is_number(cell: str) -> bool:
    """Returns whether a text is a number, which needs no apostrophe."""
    try:
        float(cell)
    except ValueError:
        return False
    return True

"""Tables that are no text: data frames and parquet files."""

import io
import pathlib
from collections.abc import Callable, Collection
from typing import Any

import numpy as np

from fedjax_pfl.core import checks
from fedjax_pfl.data.readers import files, tables

__all__ = ["frame_table", "read_parquet"]

_NESTED = (list, tuple, dict, set, bytes, np.ndarray)


def read_parquet(path: pathlib.Path, keep: Collection[str] = ()) -> tables.Table:
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

    def place(row: int) -> str:
        """Returns the place of a row."""
        return f"'{path}' in data row {row + 1}"

    return frame_table(frame, f"'{path}'", place, keep)


def frame_table(
    frame: Any, where: str, place: Callable[[int], str], keep: Collection[str] = ()
) -> tables.Table:
    """Converts a data frame."""
    if 0 in frame.shape:
        raise checks.InputError(
            f"Expected {where} to have rows and columns, got {len(frame):,} rows and"
            f" {frame.shape[1]:,} columns."
        )
    names = tables.column_names(list(frame.columns), where)
    columns = {
        name: _column(
            frame.iloc[:, number], name in keep, f"Column {name!r} of {where}"
        )
        for number, name in enumerate(names)
    }
    return tables.Table(where, columns, np.arange(len(frame)), place)


def _column(values: Any, is_text: bool, subject: str) -> np.ndarray | list[str]:
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
        is_whole = [
            isinstance(v, float) and v.is_integer() and abs(v) < 2**53 for v in cells
        ]
        cells = [int(v) if w else v for v, w in zip(cells, is_whole, strict=True)]
    return [
        "" if is_gap else str(cell).strip()
        for cell, is_gap in zip(cells, is_missing, strict=True)
    ]

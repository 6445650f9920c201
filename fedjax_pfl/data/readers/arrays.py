"""Arrays in `.npz` archives, without pickled objects and within a limit of memory."""

import contextlib
import math
import pathlib
import warnings
import zipfile
from collections.abc import Collection, Iterator
from typing import IO

import numpy as np
from numpy.lib import format as npy

from fedjax_pfl.core import checks

__all__ = ["read_arrays"]

_HEADER_READERS = {
    (1, 0): npy.read_array_header_1_0,
    (2, 0): npy.read_array_header_2_0,
}
_KINDS = "biufU"  # bool, int, unsigned int, float, text


def read_arrays(
    path: pathlib.Path,
    names: Collection[str],
    max_bytes: int,
    optional: Collection[str] = (),
) -> dict[str, np.ndarray]:
    """Reads arrays of numbers, truth values or text from an `.npz` archive.

    Args:
      path: the archive; nothing is extracted to disk.
      names: the arrays; others are not read.
      max_bytes: limit of the memory of these arrays together.
      optional: arrays that are read where the archive has them.

    Returns:
      The arrays by name.

    Raises:
      InputError: if the file cannot be read, is not an archive, is damaged, lacks an
        array, or holds objects, other kinds of values or more than `max_bytes`.
    """
    arrays, left = {}, max_bytes
    with _archive(path) as archive:
        # Without odd names that damage leaves.
        members = [name for name in archive.namelist() if name.isprintable()]
        own = [name[:-4] for name in members if name.endswith(".npy")]
        for name in dict.fromkeys([*names, *(n for n in optional if n in own)]):
            checks.known(name, own, f"array of '{path}'")
            info = archive.getinfo(f"{name}.npy")
            with archive.open(info) as member:
                size = _check_header(member, info, name, path)
            left -= size
            if left < 0:
                raise checks.InputError(
                    f"The array {name!r} of '{path}' exceeds max_bytes={max_bytes:,}."
                )
            array = f"The array {name!r} of '{path}'"
            checks.memory(array, size, "give a smaller file")
            with archive.open(info) as member:
                arrays[name] = npy.read_array(member, allow_pickle=False)
            if arrays[name].dtype.kind == "U":
                arrays[name].tolist()  # a ValueError where a code is no character
    return arrays


@contextlib.contextmanager
def _archive(path: pathlib.Path) -> Iterator[zipfile.ZipFile]:
    """Opens an archive and reports every defect in one sentence."""
    try:
        # Old headers make NumPy warn, damaged ones make Python's parser warn.
        with warnings.catch_warnings(action="ignore"), zipfile.ZipFile(path) as archive:
            yield archive
    except checks.InputError:
        raise
    except (OSError, MemoryError) as error:
        reason = getattr(error, "strerror", None) or "it is damaged or too large"
        raise checks.InputError(f"The file '{path}' cannot be read: {reason}.") from (
            error
        )
    except Exception as error:  # damage makes zipfile, zlib and NumPy raise many kinds
        raise checks.InputError(
            f"The file '{path}' is not a complete npz archive of numbers or text."
        ) from error


def _check_header(
    member: IO[bytes], info: zipfile.ZipInfo, name: str, path: pathlib.Path
) -> int:
    """Checks the header of an array and returns the size in bytes that it promises."""
    # The caller reports an unknown version, a KeyError, as a damaged archive.
    shape, _, dtype = _HEADER_READERS[npy.read_magic(member)](member)
    if dtype.kind not in _KINDS:
        raise checks.InputError(
            f"The array {name!r} of '{path}' has the type {str(dtype)!r}, expected"
            " numbers or text (pickled objects are never read)."
        )
    size = math.prod(shape) * dtype.itemsize
    if min(shape, default=0) < 0 or info.file_size - member.tell() != size:
        raise checks.InputError(
            f"The array {name!r} of '{path}' has {info.file_size - member.tell():,}"
            f" bytes, but its header promises {size:,} (shape {shape} of {dtype})."
        )
    return size

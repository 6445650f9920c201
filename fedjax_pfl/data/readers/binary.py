"""Binary files: idx files, records and archives of images, and `.npz` archives."""

import contextlib
import io
import math
import struct
import tarfile
import warnings
import zipfile
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy

from fedjax_pfl.core import checks
from fedjax_pfl.data.readers import files

__all__ = ["cifar_record", "parse_idx", "parse_records", "read_arrays", "read_members"]

_UNSIGNED_BYTE = 0x08
_KIND = ".tar.gz archive"
_HEADER_READERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
_KINDS = "biufU"  # bool, int, unsigned int, float, text


def parse_idx(content: bytes, path: Path, num_dimensions: int) -> np.ndarray:
    """Parses an idx file of unsigned bytes to a read-only `uint8` array."""
    # The format is: two zero bytes, a type code, the number of dimensions, the sizes as
    # big-endian 32-bit integers, then the values in C order.
    magic = bytes([0, 0, _UNSIGNED_BYTE, num_dimensions])
    header = len(magic) + 4 * num_dimensions
    if content[:4] != magic or len(content) < header:
        raise checks.InputError(
            f"Expected '{path}' to begin with '{magic.hex()}' and a header of {header}"
            f" bytes, got '{content[:4].hex()}' in {len(content)} bytes."
        )
    shape = struct.unpack(f">{num_dimensions}I", content[4:header])
    size = math.prod(shape)
    if size == 0 or len(content) - header != size:
        raise checks.InputError(
            f"The idx file '{path}' holds {len(content) - header} values, expected"
            f" {' x '.join(map(str, shape))} = {size} and at least one."
        )
    return np.frombuffer(content, np.uint8, offset=header).reshape(shape)


def cifar_record(num_labels: int) -> np.dtype:
    """Returns the layout of one record: label bytes, then channel-first pixels."""
    labels = ("labels", np.uint8, (num_labels,))
    return np.dtype([labels, ("pixels", np.uint8, (3, 32, 32))])


def parse_records(
    content: bytes, path: Path, num_labels: int
) -> tuple[np.ndarray, np.ndarray]:
    """Parses a CIFAR file to `uint8[S, 32, 32, 3]` and `uint8[S, num_labels]`."""
    record = cifar_record(num_labels)
    if len(content) == 0 or len(content) % record.itemsize:
        raise checks.InputError(
            f"Expected records of {record.itemsize} bytes in '{path}', got"
            f" {len(content)} bytes."
        )
    records = np.frombuffer(content, record)
    images = records["pixels"].transpose(0, 2, 3, 1)
    return np.ascontiguousarray(images), records["labels"]


def read_members(
    content: bytes, path: Path, max_sizes: Mapping[str, int]
) -> dict[str, bytes]:
    """Reads chosen regular files of a `.tar.gz` and skips every other member."""
    unpacked = io.BytesIO(files.unpacked(content, path, _KIND))
    members = {}
    with files.complete(path, _KIND, tarfile.TarError, EOFError, OSError, ValueError):
        with tarfile.open(fileobj=unpacked, mode="r:") as archive:
            for member in archive:
                # Names must match exactly, so that neither `../x` nor a link can lead
                # anywhere.
                if member.name not in max_sizes or not member.isfile():
                    continue
                if member.size > max_sizes[member.name]:
                    raise checks.InputError(
                        f"Expected at most {max_sizes[member.name]} bytes in"
                        f" {member.name} of '{path}', got {member.size}."
                    )
                stream: Any = archive.extractfile(member)
                members[member.name] = stream.read()
    missing = [name for name in max_sizes if name not in members]
    if missing:
        raise checks.InputError(
            f"The archive '{path}' lacks {', '.join(missing)}; download it again."
        )
    return members


def array_names(path: Path) -> set[str]:
    """Returns the names of the arrays of an `.npz` archive; reads none."""
    with _archive(path) as archive:
        return set(_arrays_of(archive))


def _arrays_of(archive: zipfile.ZipFile) -> list[str]:
    """Returns the names of arrays, without odd ones that damage leaves."""
    members = [name for name in archive.namelist() if name.isprintable()]
    return [name[:-4] for name in members if name.endswith(".npy")]


def read_arrays(
    path: Path, names: Collection[str], max_bytes: int, optional: Collection[str] = ()
) -> dict[str, np.ndarray]:
    """Reads arrays of numbers, truth values or text from an `.npz` archive."""
    arrays, budget = {}, max_bytes
    with _archive(path) as archive:
        members = _arrays_of(archive)
        for name in dict.fromkeys([*names, *(n for n in optional if n in members)]):
            checks.known(name, members, f"array of '{path}'")
            info = archive.getinfo(f"{name}.npy")
            # The header is read first: NumPy would allocate whatever size it promises.
            with archive.open(info) as member:
                size = _check_header(member, info, name, path)
            budget -= size
            if budget < 0:
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
def _archive(path: Path) -> Iterator[zipfile.ZipFile]:
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
    member: IO[bytes], info: zipfile.ZipInfo, name: str, path: Path
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

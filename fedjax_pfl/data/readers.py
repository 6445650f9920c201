"""Readers of file formats; every defect of a file is answered by one sentence."""

import gzip
import hashlib
import math
import pathlib
import struct
import zlib

import numpy as np

from fedjax_pfl import checks

__all__ = ["check_directory", "check_sha256", "find_file", "parse_idx", "read_content"]

_UNSIGNED_BYTE = 0x08


def check_directory(path: pathlib.Path) -> None:
    """Checks that a data directory exists and can be listed.

    Args:
      path: the directory.

    Raises:
      InputError: if it is missing, not a directory or unreadable.
    """
    try:
        if not path.exists():
            raise checks.InputError(f"The data directory '{path}' does not exist.")
        if not path.is_dir():
            raise checks.InputError(f"The data directory '{path}' is not a directory.")
        next(path.iterdir(), None)
    except OSError as error:
        raise checks.InputError(
            f"The data directory '{path}' cannot be read: {error.strerror}."
        ) from error


def find_file(directory: pathlib.Path, name: str) -> pathlib.Path | None:
    """Finds a file under its plain name or, failing that, compressed with gzip.

    Args:
      directory: where to look.
      name: plain file name.

    Returns:
      The path of `name` or `name.gz`, or None.
    """
    candidates = (directory / name, directory / f"{name}.gz")
    return next((path for path in candidates if path.is_file()), None)


def read_content(path: pathlib.Path) -> bytes:
    """Reads a file and undoes gzip where the name ends in `.gz`.

    Args:
      path: the file.

    Returns:
      The content.

    Raises:
      InputError: if the file cannot be read or is not a complete gzip file.
    """
    try:
        content = path.read_bytes()
        return gzip.decompress(content) if path.suffix == ".gz" else content
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise checks.InputError(
            f"The file '{path}' is not a complete gzip file, download it again:"
            f" {error}."
        ) from error
    except OSError as error:
        raise checks.InputError(
            f"The file '{path}' cannot be read: {error.strerror}."
        ) from error


def parse_idx(content: bytes, path: pathlib.Path, num_dimensions: int) -> np.ndarray:
    """Parses the content of an idx file of unsigned bytes (the MNIST family).

    The format is: two zero bytes, a type code, the number of dimensions, the sizes as
    big-endian 32-bit integers, then the values in C order.

    Args:
      content: uncompressed content.
      path: shown in messages.
      num_dimensions: expected number of dimensions.

    Returns:
      `uint8` array of the shape in the header, read-only.

    Raises:
      InputError: if magic, type code, dimensions or length are wrong.
    """
    header = 4 + 4 * num_dimensions
    if content[:2] != b"\0\0" or len(content) < 4:
        raise checks.InputError(
            f"The file '{path}' is not an idx file: it starts with the bytes"
            f" '{content[:4].hex()}' instead of '000008{num_dimensions:02x}'."
        )
    if content[2] != _UNSIGNED_BYTE:
        raise checks.InputError(
            f"The idx file '{path}' has type code 0x{content[2]:02x}, expected"
            f" 0x{_UNSIGNED_BYTE:02x} (unsigned bytes)."
        )
    if content[3] != num_dimensions:
        raise checks.InputError(
            f"The idx file '{path}' has {content[3]} dimensions, expected"
            f" {num_dimensions}."
        )
    if len(content) < header:
        raise checks.InputError(
            f"The idx file '{path}' ends within its header: it has {len(content)}"
            f" bytes, expected at least {header}."
        )
    shape = struct.unpack(f">{num_dimensions}I", content[4:header])
    if len(content) - header != math.prod(shape):
        sizes = " x ".join(map(str, shape))
        raise checks.InputError(
            f"The idx file '{path}' holds {len(content) - header} values, but its"
            f" header promises {sizes} = {math.prod(shape)}."
        )
    return np.frombuffer(content, np.uint8, offset=header).reshape(shape)


def check_sha256(content: bytes, path: pathlib.Path, expected: str) -> None:
    """Checks that a well-formed file is the official one.

    The uncompressed content is compared, because the same file is distributed under
    several compressions.

    Args:
      content: uncompressed content.
      path: shown in the message.
      expected: SHA-256 of the official content, in hexadecimal.

    Raises:
      InputError: if the checksum differs.
    """
    found = hashlib.sha256(content).hexdigest()
    if found != expected:
        raise checks.InputError(
            f"The file '{path}' differs from the official one: its uncompressed content"
            f" has SHA-256 {found}, expected {expected} (verify=False accepts it)."
        )

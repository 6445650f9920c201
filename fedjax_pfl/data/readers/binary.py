"""Binary files of images: idx files of MNIST; records and archives of CIFAR."""

import io
import math
import pathlib
import struct
import tarfile
from collections.abc import Mapping
from typing import Any

import numpy as np

from fedjax_pfl.core import checks
from fedjax_pfl.data.readers import files

__all__ = ["cifar_record", "parse_idx", "parse_records", "read_members"]

_UNSIGNED_BYTE = 0x08
_KIND = ".tar.gz archive"


def parse_idx(content: bytes, path: pathlib.Path, num_dimensions: int) -> np.ndarray:
    """Parses the content of an idx file of unsigned bytes.

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
    """Returns the layout of one record: label bytes, then channel-first pixels.

    Args:
      num_labels: label bytes, 1 (CIFAR-10) or 2 (CIFAR-100: coarse, fine).

    Returns:
      The structured dtype.
    """
    labels = ("labels", np.uint8, (num_labels,))
    return np.dtype([labels, ("pixels", np.uint8, (3, 32, 32))])


def parse_records(
    content: bytes, path: pathlib.Path, num_labels: int
) -> tuple[np.ndarray, np.ndarray]:
    """Parses one binary file of CIFAR.

    Args:
      content: the records.
      path: shown in messages.
      num_labels: label bytes of a record.

    Returns:
      `uint8[S, 32, 32, 3]` images, contiguous, and `uint8[S, num_labels]` labels.

    Raises:
      InputError: if the file is empty or ends within a record.
    """
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
    content: bytes, path: pathlib.Path, max_sizes: Mapping[str, int]
) -> dict[str, bytes]:
    """Reads chosen regular files of a `.tar.gz` and skips every other member.

    Names must match exactly, so that neither `../x` nor a link can lead anywhere.

    Args:
      content: the archive.
      path: shown in messages.
      max_sizes: largest size in bytes of each wanted member, by its name.

    Returns:
      Content of each wanted member, by its name.

    Raises:
      InputError: if the archive is damaged, or a member is missing or too large.
    """
    unpacked = io.BytesIO(files.unpacked(content, path, _KIND))
    members = {}
    with files.complete(path, _KIND, tarfile.TarError, EOFError, OSError, ValueError):
        with tarfile.open(fileobj=unpacked, mode="r:") as archive:
            for member in archive:
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

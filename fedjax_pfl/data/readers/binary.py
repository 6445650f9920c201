"""Binary files of images: the idx format of MNIST, and the records of CIFAR."""

import math
import pathlib
import struct

import numpy as np

from fedjax_pfl.core import checks

__all__ = ["cifar_record", "parse_idx", "parse_records"]

_UNSIGNED_BYTE = 0x08


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

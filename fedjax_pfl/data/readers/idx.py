"""The idx format of the MNIST family."""

import math
import pathlib
import struct

import numpy as np

from fedjax_pfl.core import checks

__all__ = ["parse_idx"]

_UNSIGNED_BYTE = 0x08


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
    if min(shape) == 0:
        raise checks.InputError(
            f"The idx file '{path}' has the sizes {shape}, expected at least one value."
        )
    if len(content) - header != math.prod(shape):
        sizes = " x ".join(map(str, shape))
        raise checks.InputError(
            f"The idx file '{path}' holds {len(content) - header} values, but its"
            f" header promises {sizes} = {math.prod(shape)}."
        )
    return np.frombuffer(content, np.uint8, offset=header).reshape(shape)

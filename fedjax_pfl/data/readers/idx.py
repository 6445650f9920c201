"""The idx format of the MNIST family."""

import math
import pathlib
import struct

import numpy as np

from fedjax_pfl.core import checks

__all__ = ["parse_idx"]

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

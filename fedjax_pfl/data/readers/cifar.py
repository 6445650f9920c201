"""The binary format of CIFAR: records of label bytes and channel-first pixels."""

import pathlib

import numpy as np

from fedjax_pfl.core import checks

__all__ = ["IMAGE_SHAPE", "parse_records", "record_size"]

IMAGE_SHAPE = (32, 32, 3)


def record_size(num_labels: int) -> int:
    """Bytes of one record.

    Args:
      num_labels: label bytes, 1 (CIFAR-10) or 2 (CIFAR-100: coarse, fine).

    Returns:
      The size.
    """
    return num_labels + 3 * 32 * 32


def parse_records(
    content: bytes, path: pathlib.Path, num_labels: int
) -> tuple[np.ndarray, np.ndarray]:
    """Parses one binary file.

    Args:
      content: the records.
      path: shown in messages.
      num_labels: label bytes of a record.

    Returns:
      `uint8[S, 32, 32, 3]` images, contiguous, and `uint8[S, num_labels]` labels.

    Raises:
      InputError: if the file is empty or ends within a record.
    """
    size = record_size(num_labels)
    if len(content) == 0 or len(content) % size:
        raise checks.InputError(
            f"Expected records of {size} bytes in '{path}', got {len(content)} bytes."
        )
    records = np.frombuffer(content, np.uint8).reshape(-1, size)
    channels_first = records[:, num_labels:].reshape(-1, 3, 32, 32)
    images = np.ascontiguousarray(channels_first.transpose(0, 2, 3, 1))
    return images, records[:, :num_labels]

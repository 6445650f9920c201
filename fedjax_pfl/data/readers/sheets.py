"""Sheets of equal tiles: many small images in one loss-less WebP file."""

import concurrent.futures
import io
import pathlib
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np

from fedjax_pfl.core import checks

__all__ = ["read_sheets"]


def read_sheets(
    sheets: Sequence[tuple[bytes, pathlib.Path, int]], tile: tuple[int, int]
) -> list[np.ndarray]:
    """Cuts WebP sheets into their tiles, row by row; sheets are decoded in parallel.

    Args:
      sheets: content, path shown in messages, and expected number of tiles of each.
      tile: height and width of a tile.

    Returns:
      `uint8[num_tiles, height, width, 3]` of each sheet.

    Raises:
      InputError: if Pillow is missing, a file is damaged or not WebP, or its size does
        not fit.
    """
    images = []
    for content, path, num_tiles in sheets:
        image = _open(content, path)
        _check_size(image.size, path, num_tiles, tile)
        images.append((image, path))
    with concurrent.futures.ThreadPoolExecutor() as pool:
        pixels = list(pool.map(lambda opened: _decode(*opened), images))
    return [_cut(sheet, tile) for sheet in pixels]


def _open(content: bytes, path: pathlib.Path) -> Any:
    """Reads the header."""
    try:
        from PIL import Image  # needed by readers of pictures only
    except ImportError as error:
        raise checks.InputError(
            f"The file '{path}' is read with Pillow, which is not installed: pip"
            ' install "fedjax_pfl[data]".'
        ) from error
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            return Image.open(io.BytesIO(content), formats=("WEBP",))
    except (
        OSError,
        SyntaxError,
        ValueError,
        Image.DecompressionBombWarning,
        Image.DecompressionBombError,
    ) as error:
        raise checks.InputError(
            f"The file '{path}' is not a WebP image of reasonable size, get it again."
        ) from error


def _check_size(
    size: tuple[int, int], path: pathlib.Path, num_tiles: int, tile: tuple[int, int]
) -> None:
    """Checks, before decoding, that a sheet holds the expected number of tiles."""
    width, height = size
    rows, columns = height // tile[0], width // tile[1]
    if height % tile[0] or width % tile[1] or rows * columns != num_tiles:
        raise checks.InputError(
            f"The sheet '{path}' has {height} x {width} pixels, expected {num_tiles}"
            f" tiles of {tile[0]} x {tile[1]}."
        )


def _decode(image: Any, path: pathlib.Path) -> np.ndarray:
    """Pixels `uint8[height, width, 3]` of a sheet."""
    try:
        return np.asarray(image.convert("RGB"))
    except (OSError, SyntaxError, ValueError) as error:
        raise checks.InputError(
            f"The file '{path}' is a damaged WebP image, get it again: {error}."
        ) from error


def _cut(sheet: np.ndarray, tile: tuple[int, int]) -> np.ndarray:
    """Tiles of a sheet, row by row."""
    height, width = tile
    rows, columns = sheet.shape[0] // height, sheet.shape[1] // width
    grid = sheet.reshape(rows, height, columns, width, 3).swapaxes(1, 2)
    return grid.reshape(rows * columns, height, width, 3)

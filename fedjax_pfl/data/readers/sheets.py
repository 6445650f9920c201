"""Sheets of equal tiles: many small images in one lossless WebP file."""

import concurrent.futures
import io
import pathlib
from collections.abc import Sequence

import numpy as np

from fedjax_pfl.core import checks
from fedjax_pfl.data.readers import folders

__all__ = ["read_sheets"]

_FORMATS = ("WEBP",)


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
      InputError: if a file is damaged or not WebP, or its size does not fit.
    """
    height, width = tile

    def cut(sheet: tuple[bytes, pathlib.Path, int]) -> np.ndarray:
        content, path, num_tiles = sheet
        with folders.decoding(path, _FORMATS) as pillow:
            image = pillow.open(io.BytesIO(content), formats=_FORMATS)
            rows, columns = image.height // height, image.width // width
            is_whole = (columns * width, rows * height) == image.size
            if not is_whole or rows * columns != num_tiles:
                raise checks.InputError(
                    f"The sheet '{path}' has {image.height} x {image.width} pixels,"
                    f" expected {num_tiles} tiles of {height} x {width}."
                )
            pixels = np.asarray(image.convert("RGB"))
        grid = pixels.reshape(rows, height, columns, width, 3)
        return grid.swapaxes(1, 2).reshape(num_tiles, height, width, 3)

    with folders.quiet_pillow(), concurrent.futures.ThreadPoolExecutor() as pool:
        return list(pool.map(cut, sheets))

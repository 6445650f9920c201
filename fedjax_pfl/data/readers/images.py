"""Images: folders of `class/file` or `client/class/file`, and sheets of tiles."""

import concurrent.futures
import contextlib
import io
import math
import os
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedjax_pfl.core import checks
from fedjax_pfl.data.dataset import PARTS
from fedjax_pfl.data.readers import files

__all__ = ["list_images", "read_images", "read_sheets"]

_PATTERNS = {"class": "class/file", "client": "client/class/file"}
_DEPTHS = {2: "class", 3: "client"}  # names on the way from the root to an image
_FORMATS = ("PNG", "JPEG", "WEBP", "BMP")
_SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".bmp")
_GREY = ("1", "L", "LA")
_COLOR = ("P", "PA", "RGB", "RGBA", "RGBX", "CMYK", "YCbCr")


def list_images(root: Path, layout: str) -> tuple[str, tuple[Path, ...]]:
    """Returns the layout of a folder and its images, sorted, at least one."""
    files.check_directory(root)
    with files.readable(f"The folder '{root}'"):
        # An image has the content or the suffix of one; other files and hidden ones are
        # skipped.
        images = list(_walk(root, os.path.realpath(root), ()))
    expected = _PATTERNS.get(layout, " or ".join(_PATTERNS.values()))
    if not images:
        raise checks.InputError(
            f"The folder '{root}' holds no PNG, JPEG, WebP or BMP image as {expected}."
        )
    tops = {names[0].casefold() for names in images}
    # `client/class/file` has such names only if that is said.
    has_parts = len(tops) > 1 and tops <= PARTS.keys() and min(map(len, images)) > 2
    has_parts &= layout != "client" or min(map(len, images)) > 3
    # `auto` takes the depth of the first image; all others must have the same.
    depth = len(images[0]) - has_parts
    if layout == "auto" and depth in _DEPTHS:
        layout = _DEPTHS[depth]
        expected = _PATTERNS[layout]
    expected = f"part/{expected}" if has_parts else expected
    for names in images:
        if _DEPTHS.get(len(names) - has_parts) != layout:
            raise checks.InputError(
                f"The image '{root.joinpath(*names)}' is not in the layout {expected}."
            )
    return layout, tuple(root.joinpath(*names) for names in images)


def _walk(folder: Path, root: str, names: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """Yields names on the way to images, sorted; five levels, as links may loop."""
    with files.readable(f"The folder '{folder}'"), os.scandir(folder) as scan:
        entries = sorted(scan, key=lambda entry: entry.name)
    for entry in entries:
        path = folder / entry.name
        if entry.name.startswith("."):
            continue
        if not entry.name.isprintable():
            raise checks.InputError(
                f"The name {entry.name!a} in '{folder}' cannot be printed; rename it."
            )
        if entry.is_symlink():
            files.check_inside(path, root)
        if entry.is_dir():
            if len(names) <= max(_DEPTHS):
                yield from _walk(path, root, (*names, entry.name))
        elif entry.is_file() and _is_image(path):
            yield *names, entry.name


def _is_image(path: Path) -> bool:
    """Returns whether a file has the suffix of an image or begins like one."""
    if path.suffix.lower() in _SUFFIXES:
        return True
    with open(path, "rb") as file:
        start = file.read(12)
    return (
        start.startswith((b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff"))
        or (start[:4] == b"RIFF" and start[8:] == b"WEBP")
        or (start[:2] == b"BM" and start[6:10] == b"\0\0\0\0")  # reserved, 0 in bitmaps
    )


def read_images(
    paths: Sequence[Path], size: tuple[int, int] | None, max_bytes: int
) -> np.ndarray:
    """Decodes images to `uint8[S, H, W]` if all are grey, or to `uint8[S, H, W, 3]`."""
    with _quiet_pillow():
        # Of an animation the first frame counts; transparency and the orientation that
        # a camera noted are ignored.
        headers = [_header(path) for path in paths]
        mode = "L" if all(mode in _GREY for _, mode in headers) else "RGB"
        height, width = size or headers[0][0]
        for path, (dims, _) in zip(paths, headers, strict=True):
            if size is None and dims != (height, width):
                raise checks.InputError(
                    f"The images '{paths[0]}' with {height} x {width} pixels and"
                    f" '{path}' with {dims[0]} x {dims[1]} differ; pass a common size."
                )
        # Memory is checked by the headers, before any pixel is decoded.
        shape = (len(paths), height, width, *(() if mode == "L" else (3,)))
        if math.prod(shape) > max_bytes:
            raise checks.InputError(
                f"{len(paths)} images of {height} x {width} pixels need"
                f" {math.prod(shape):,} bytes, more than {max_bytes:,}; pass a size."
            )
        checks.memory(f"The {len(paths)} images", math.prod(shape), "make them smaller")
        pixels = np.empty(shape, np.uint8)
        for row, path in enumerate(paths):
            pixels[row] = _decode(path, mode, (width, height))
    return pixels


def _header(path: Path) -> tuple[tuple[int, int], str]:
    """Reads height and width, and the mode of an image."""
    with _opened(files.read_bytes(path), path) as image:
        if image.mode not in (*_GREY, *_COLOR):
            raise checks.InputError(
                f"The image '{path}' has mode {image.mode!r}, expected 8 bits a value."
            )
        return (image.height, image.width), image.mode


def _decode(path: Path, mode: str, size: tuple[int, int]) -> np.ndarray:
    """Decodes an image into a mode and a size `(width, height)`."""
    from PIL import Image

    with _opened(files.read_bytes(path), path) as image:
        if "transparency" in image.info:  # a palette's needs this step
            image = image.convert("RGBA")
        image = image.convert(mode)
        if image.size != size:
            image = image.resize(size, Image.Resampling.BILINEAR)
        return np.asarray(image)


@contextlib.contextmanager
def _quiet_pillow() -> Iterator[None]:
    """Silences Pillow, but turns its warning of too large images into an error."""
    # Warnings are filtered for the whole process, so call it outside of threads.
    from PIL import Image

    with warnings.catch_warnings(action="ignore"):
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        yield


@contextlib.contextmanager
def _opened(
    content: bytes, path: Path, formats: tuple[str, ...] = _FORMATS
) -> Iterator[Any]:
    """Yields an image; reports all errors of a decoder in one sentence on the file."""
    from PIL import Image

    try:
        with Image.open(io.BytesIO(content), formats=formats) as image:
            yield image
    except checks.InputError:
        raise
    except (Image.DecompressionBombWarning, Image.DecompressionBombError) as error:
        raise checks.InputError(
            f"Expected at most {Image.MAX_IMAGE_PIXELS:,} pixels in the image '{path}'."
        ) from error
    except Exception as error:  # decoders raise many kinds on damaged data
        raise checks.InputError(
            f"The file '{path}' cannot be decoded as {' or '.join(formats)}."
        ) from error


def read_sheets(
    sheets: Sequence[tuple[bytes, Path, int]], tile: tuple[int, int]
) -> list[np.ndarray]:
    """Cuts WebP sheets into tiles `uint8[num_tiles, height, width, 3]`, row by row."""
    height, width = tile

    def cut(sheet: tuple[bytes, Path, int]) -> np.ndarray:
        content, path, num_tiles = sheet
        with _opened(content, path, ("WEBP",)) as image:
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

    # The filter of warnings is set once, outside of the threads.
    with _quiet_pillow(), concurrent.futures.ThreadPoolExecutor() as pool:
        return list(pool.map(cut, sheets))

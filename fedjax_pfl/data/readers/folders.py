"""Folders of images: `class/file`, or `client/class/file`."""

import dataclasses
import io
import math
import os
import pathlib
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from fedjax_pfl.core import checks
from fedjax_pfl.data.readers import files

__all__ = ["LAYOUTS", "ImageFile", "list_images", "read_images"]

LAYOUTS = ("auto", "class", "client")

_DEPTHS = {"class": 2, "client": 3}  # names on the way from the root to an image
_PATTERNS = {"class": "class/file", "client": "client/class/file"}
_PARTS = {"train", "training", "test", "testing", "val", "valid", "validation"}
_FORMATS = ("PNG", "JPEG", "WEBP", "BMP")
_SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".bmp")
_ALLOWED = "PNG, JPEG, WebP or BMP"
_GREY = ("1", "L", "LA")
_COLOR = ("P", "PA", "RGB", "RGBA", "RGBX", "CMYK", "YCbCr")


@dataclasses.dataclass(frozen=True)
class ImageFile:
    """One image of a folder.

    Attributes:
      path: the file.
      label: name of its class.
      client: name of its client, or None in the layout `class/file`.
    """

    path: pathlib.Path
    label: str
    client: str | None


def list_images(root: pathlib.Path, layout: str) -> list[ImageFile]:
    """Finds the images of a folder, in the order of their names.

    An image is what has the content or the suffix of one; other files and those whose
    names begin with a dot are passed over.

    Args:
      root: the folder.
      layout: `"class"`, `"client"`, or `"auto"` to tell by the depth of the images.

    Returns:
      The images, at least one.

    Raises:
      InputError: if the folder cannot be read, has no images, images at different or
        wrong depths, links that lead out of it, or names that cannot be printed.
    """
    files.check_directory(root)
    try:
        found = list(_walk(root, os.path.realpath(root), ()))
    except OSError as error:
        raise checks.InputError(
            f"The folder '{error.filename}' cannot be read: {error.strerror}."
        ) from error
    if not found:
        raise checks.InputError(
            f"The folder '{root}' holds no {_ALLOWED} image in folders"
            f" {_PATTERNS['class']} or {_PATTERNS['client']}."
        )
    if layout == "auto":
        layout = _detected(root, found)
    for names in found:
        if len(names) != _DEPTHS[layout]:
            raise checks.InputError(
                f"The image '{root.joinpath(*names)}' does not lie in the layout"
                f" {_PATTERNS[layout]!r} below '{root}', as it should with"
                f" layout={layout!r}."
            )
    return [
        ImageFile(
            root.joinpath(*names), names[-2], names[0] if layout == "client" else None
        )
        for names in found
    ]


def _walk(
    folder: pathlib.Path, root: str, names: tuple[str, ...]
) -> Iterator[tuple[str, ...]]:
    """Names on the way to every image, sorted; four levels, as links may form loops."""
    with os.scandir(folder) as scan:
        entries = sorted(scan, key=lambda entry: entry.name)
    for entry in entries:
        path = folder / entry.name
        if entry.name.startswith("."):
            continue
        if not entry.name.isprintable():
            raise checks.InputError(
                f"The name {entry.name!a} in '{folder}' has characters that cannot be"
                " printed; rename it."
            )
        if entry.is_symlink() and not files.is_inside(path, root):
            raise checks.InputError(
                f"The link '{path}' leads out of the folder of images; links must stay"
                " inside it."
            )
        if entry.is_dir():
            if len(names) < max(_DEPTHS.values()):
                yield from _walk(path, root, (*names, entry.name))
        elif entry.is_file() and _is_image(path):
            yield *names, entry.name


def _is_image(path: pathlib.Path) -> bool:
    """Whether a file has the suffix of an image or begins like one."""
    if path.suffix.lower() in _SUFFIXES:
        return True
    with open(path, "rb") as file:
        start = file.read(12)
    return (
        start.startswith((b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff"))
        or (start[:4] == b"RIFF" and start[8:] == b"WEBP")
        or (start[:2] == b"BM" and start[6:10] == b"\0\0\0\0")  # reserved, 0 in bitmaps
    )


def _detected(root: pathlib.Path, found: Sequence[tuple[str, ...]]) -> str:
    """The layout in which all images lie."""
    layouts = {depth: layout for layout, depth in _DEPTHS.items()}
    layout = layouts.get(len(found[0]))
    if layout is None:
        raise checks.InputError(
            f"The image '{root.joinpath(*found[0])}' lies in none of the layouts"
            f" {_PATTERNS['class']} and {_PATTERNS['client']} below '{root}'."
        )
    tops = {names[0] for names in found}
    if layout == "client" and {top.casefold() for top in tops} <= _PARTS:
        raise checks.InputError(
            f"The folders {', '.join(sorted(tops))} of '{root}' look like parts of one"
            " data set, not like clients: give the path of one of them, or pass"
            " layout='client'."
        )
    return layout


def read_images(
    paths: Sequence[pathlib.Path], size: tuple[int, int] | None, max_bytes: int
) -> np.ndarray:
    """Decodes images, grey if all are grey and in three colors otherwise.

    Of an animation the first frame counts; transparency and the orientation that a
    camera noted are ignored.

    Args:
      paths: S files.
      size: height and width to which images are resized (bilinear), or None where all
        have one size.
      max_bytes: limit of the memory of the result.

    Returns:
      `uint8[S, H, W]` or `uint8[S, H, W, 3]`.

    Raises:
      InputError: if a file cannot be read or decoded, is too large, has more than 8
        bits per value, or if the sizes differ and `size` is None.
    """
    image_module = _pillow(paths[0])
    with warnings.catch_warnings(action="ignore"):  # of Pillow, about odd metadata
        warnings.simplefilter("error", image_module.DecompressionBombWarning)
        shapes = [_inspect(path) for path in paths]
        mode = "L" if all(kind in _GREY for _, _, kind in shapes) else "RGB"
        height, width = size or _common_size(paths, [shape[:2] for shape in shapes])
        channels = () if mode == "L" else (3,)
        shape = (len(paths), height, width, *channels)
        if math.prod(shape) > max_bytes:
            raise checks.InputError(
                f"The {len(paths)} images of {height} x {width} pixels need"
                f" {math.prod(shape):,} bytes, more than {max_bytes:,}; make them"
                " smaller with size=(height, width)."
            )
        checks.memory(f"The {len(paths)} images", math.prod(shape), "make them smaller")
        pixels = np.empty(shape, np.uint8)
        for row, path in enumerate(paths):
            pixels[row] = _decode(path, mode, (width, height))
    return pixels


def _common_size(
    paths: Sequence[pathlib.Path], sizes: Sequence[tuple[int, int]]
) -> tuple[int, int]:
    """The size of all images."""
    for path, size in zip(paths, sizes, strict=True):
        if size != sizes[0]:
            raise checks.InputError(
                f"The images '{paths[0]}' with {sizes[0][0]} x {sizes[0][1]} pixels and"
                f" '{path}' with {size[0]} x {size[1]} differ in size; pass"
                " size=(height, width) to resize all of them."
            )
    return sizes[0]


def _inspect(path: pathlib.Path) -> tuple[int, int, str]:
    """Height, width and mode of an image, from its header."""
    with _open(path) as image:
        if image.mode not in (*_GREY, *_COLOR):
            raise checks.InputError(
                f"The image '{path}' has the mode {image.mode!r} of Pillow, expected 8"
                " bits per pixel and color."
            )
        return image.height, image.width, image.mode


def _decode(path: pathlib.Path, mode: str, size: tuple[int, int]) -> np.ndarray:
    """Pixels of an image in a mode and a size `(width, height)`."""
    with _open(path) as image:
        try:
            if "transparency" in image.info:  # a palette's needs this step
                image = image.convert("RGBA")
            image = image.convert(mode)
            if image.size != size:
                image = image.resize(size, _pillow(path).Resampling.BILINEAR)
            return np.asarray(image)
        except Exception as error:  # decoders raise many kinds on damaged data
            raise _damaged(path) from error


def _pillow(path: pathlib.Path) -> Any:
    """Pillow's module of images; only those who read images need it."""
    try:
        from PIL import Image
    except ImportError as error:
        raise checks.InputError(
            f"The image '{path}' is read with Pillow, which is not installed: pip"
            ' install "fedjax_pfl[data]".'
        ) from error
    return Image


def _open(path: pathlib.Path) -> Any:
    """Reads the header of an image."""
    image_module = _pillow(path)
    content = files.read_bytes(path)
    try:
        return image_module.open(io.BytesIO(content), formats=_FORMATS)
    except (
        image_module.DecompressionBombWarning,
        image_module.DecompressionBombError,
    ) as error:
        raise checks.InputError(
            f"The image '{path}' has more than {image_module.MAX_IMAGE_PIXELS:,}"
            " pixels, which is refused as a likely attack; make it smaller."
        ) from error
    except Exception as error:  # decoders raise many kinds on damaged data
        raise _damaged(path) from error


def _damaged(path: pathlib.Path) -> checks.InputError:
    """The sentence for an image that cannot be decoded."""
    return checks.InputError(
        f"The image '{path}' cannot be decoded as {_ALLOWED}: it is damaged or another"
        " kind of file."
    )

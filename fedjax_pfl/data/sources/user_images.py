"""A user's own folder of images, one folder per class, perhaps below one per client."""

import dataclasses
import functools
import pathlib
from typing import ClassVar

from fedjax_pfl.core import checks
from fedjax_pfl.data import dataset as datasets
from fedjax_pfl.data.readers import files, folders
from fedjax_pfl.data.sources import user_arrays, user_files

__all__ = ["ImageFolder"]

_MAX_BYTES = 8 << 30


@dataclasses.dataclass(frozen=True, kw_only=True)
class ImageFolder:
    """A folder of PNG, JPEG, WebP or BMP images, shown as numbers from 0 to 1.

    Examples, classes and clients are in the order of their names. Images are grey if
    all are and in three colors otherwise.

    Attributes:
      path: the folder; relative to the current directory or else to the data directory.
      layout: `"class"` for `class/file`, `"client"` for `client/class/file`, or
        `"auto"` for either.
      size: height and width to which images are resized; None requires equal sizes.
    """

    path: str = ""
    layout: str = "auto"
    size: tuple[int, int] | None = None
    name: ClassVar[str] = "images"

    def __post_init__(self):
        object.__setattr__(self, "path", user_files.as_path(self.path))
        checks.known(self.layout, folders.LAYOUTS, "layout")
        if self.size is not None:
            size = user_files.as_sizes("size", self.size, "(28, 28)")
            if len(size) != 2:
                raise checks.InputError(
                    f"Expected size to be a height and a width, got {self.size!r}."
                )
            object.__setattr__(self, "size", size)

    def load(
        self, *, data_dir: str | None, seed: int, num_clients: int | None
    ) -> datasets.Dataset:
        """Returns `x uint8[S, H, W]` or, in colors, `uint8[S, H, W, 3]`."""
        path = user_files.locate(self.path, data_dir)
        images = tuple(folders.list_images(path, self.layout))
        fingerprint = files.fingerprint(image.path for image in images)
        return _images_dataset(self, path, images, fingerprint)


@functools.lru_cache(maxsize=4)
def _images_dataset(
    options: ImageFolder,
    path: pathlib.Path,
    images: tuple[folders.ImageFile, ...],
    fingerprint: tuple[tuple[int, int], ...],
) -> datasets.Dataset:
    """Reads the files once per process and modification."""
    y, class_names = user_arrays.encode_classes(
        [image.label for image in images], f"the folder '{path}'"
    )
    clients = [image.client for image in images if image.client is not None]
    client_names = tuple(sorted(set(clients)))
    return datasets.Dataset(
        name=user_arrays.stem(path),
        x=folders.read_images(
            [image.path for image in images], options.size, _MAX_BYTES
        ),
        y=y,
        num_classes=len(class_names),
        class_names=class_names,
        scale=1 / 255,
        client=user_arrays.codes(clients, client_names) if clients else None,
        client_names=client_names or None,
    )

"""A user's own files: arrays, LEAF's JSON, folders of images, and where they are."""

import dataclasses
import numbers
import os
import pathlib
from typing import Any, Literal

import numpy as np

from fedjax_pfl.core import checks, struct
from fedjax_pfl.data import dataset as datasets
from fedjax_pfl.data.readers import arrays, files, folders, leaf
from fedjax_pfl.data.sources import base, user_arrays

__all__ = [
    "ImageFolder",
    "LeafJson",
    "Npz",
    "UserSource",
    "as_path",
    "as_sizes",
    "as_tuple",
    "json_files",
    "locate",
]

_MAX_BYTES = 8 << 30


@dataclasses.dataclass(frozen=True, kw_only=True)
class UserSource(base.CachedSource):
    """A user's own file or folder.

    Attributes:
      path: relative to the current directory or else to the data directory.
    """

    path: str = ""

    def __post_init__(self):
        object.__setattr__(self, "path", as_path(self.path))
        struct.check_fields(self)

    def locate(self, data_dir: str | None) -> base.Located:
        """Finds the file."""
        path = locate(self.path, data_dir)
        return base.Located(path, self.name, (path,))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Npz(UserSource):
    """Arrays in an archive of `numpy.savez`, interpreted as by `arrays_dataset`.

    Attributes:
      path: the file; relative to the current directory or else to the data directory.
      x: name of the array of inputs.
      y: name of the array of targets.
      client: name of the array of clients, or None for `client` if there is one.
      max_bytes: limit of the memory of these arrays together.
    """

    x: str = "x"
    y: str = "y"
    client: str | None = None
    max_bytes: int = struct.static_field(
        default=_MAX_BYTES, at_least=1, at_most=1 << 50
    )
    name = "npz"

    def read(self, located: base.Located) -> datasets.Dataset:
        """Returns the arrays; clients are numbered in sorted order."""
        names, optional = [self.x, self.y], ["client"]
        if self.client is not None:
            names, optional = [*names, self.client], []
        values = arrays.read_arrays(located.root, names, self.max_bytes, optional)
        return user_arrays.arrays_dataset(
            values[self.x],
            values[self.y],
            values.get(self.client or "client"),
            name=user_arrays.stem(located.root),
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class LeafJson(UserSource):
    """Files in LEAF's JSON format with inputs of numbers; each user is a client.

    Examples of a user in several files come together, those in folders called `test`
    last. Targets are whole numbers, numbered as classes in sorted order.

    Attributes:
      path: a `.json` or `.json.gz` file, or a folder of such files at any depth;
        relative to the current directory or else to the data directory.
      shape: of one input, for example `(28, 28)`; None leaves it as stored.
    """

    shape: tuple[int, ...] | None = None
    name = "leaf"

    def __post_init__(self):
        super().__post_init__()
        if self.shape is not None:
            shape = as_sizes("shape", self.shape)
            object.__setattr__(self, "shape", shape)

    def locate(self, data_dir: str | None) -> base.Located:
        """Finds the file, or the files of the folder."""
        located = super().locate(data_dir)
        if not located.root.is_dir():
            return located
        files.check_directory(located.root)
        paths = json_files(located.root)
        if not paths:
            raise checks.InputError(
                f"The folder '{located.root}' holds no .json or .json.gz file."
            )
        return dataclasses.replace(located, paths=paths)

    def read(self, located: base.Located) -> datasets.Dataset:
        """Returns all users' examples; clients are numbered in sorted order."""
        users = leaf.read_leaf(located.paths)
        if not users:
            raise checks.InputError(
                f"The LEAF data in '{located.root}' hold no example."
            )
        place = f"of the LEAF data in '{located.root}'"
        x = datasets.as_array([row for inputs, _ in users.values() for row in inputs])
        y = datasets.as_array([row for _, targets in users.values() for row in targets])
        if x.dtype.kind not in "iuf":
            raise checks.InputError(
                f"Expected x {place} to be inputs of numbers, equally long."
            )
        # Some writers of LEAF's files have 3.0 for 3; beyond 2^53 floats have gaps.
        if (
            y.dtype.kind not in "iuf"
            or y.ndim != 1
            or not ((y == np.round(y)) & (np.abs(y) <= 2**53)).all()
        ):
            raise checks.InputError(
                f"Expected y {place} to be one whole number per input."
            )
        if self.shape is not None:
            if np.prod(x.shape[1:]) != np.prod(self.shape):
                raise checks.InputError(
                    f"Expected inputs of the shape {self.shape} in '{located.root}',"
                    f" got {x.shape[1:]}."
                )
            x = x.reshape(len(x), *self.shape)
        return user_arrays.arrays_dataset(
            x,
            y.astype(np.int64),
            [user for user, (_, targets) in users.items() for _ in targets],
            name=user_arrays.stem(located.root),
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class ImageFolder(UserSource):
    """A folder of PNG, JPEG, WebP or BMP images, shown as numbers from 0 to 1.

    Examples, classes and clients are in the order of their names. Images are grey if
    all are and in three colors otherwise.

    Attributes:
      path: the folder; relative to the current directory or else to the data directory.
      layout: `"class"` for `class/file`, `"client"` for `client/class/file`, or
        `"auto"` for either.
      size: height and width to which images are resized; None requires equal sizes.
    """

    layout: Literal["auto", "class", "client"] = "auto"
    size: tuple[int, int] | None = None
    name = "images"

    def __post_init__(self):
        super().__post_init__()
        if self.size is not None:
            size = as_sizes("size", self.size)
            if len(size) != 2:
                raise checks.InputError(
                    f"Expected size to be a height and a width, got {self.size!r}."
                )
            object.__setattr__(self, "size", size)

    def locate(self, data_dir: str | None) -> base.Located:
        """Finds the images."""
        root = locate(self.path, data_dir)
        return base.Located(root, *folders.list_images(root, self.layout))

    def read(self, located: base.Located) -> datasets.Dataset:
        """Returns `x uint8[S, H, W]` or, in colors, `uint8[S, H, W, 3]`."""
        client = None
        if located.layout == "client":
            client = [path.parents[1].name for path in located.paths]
        return user_arrays.arrays_dataset(
            folders.read_images(located.paths, self.size, _MAX_BYTES),
            [path.parent.name for path in located.paths],
            client,
            name=user_arrays.stem(located.root),
            labels=f"the folder '{located.root}'",
        )


def as_path(value: Any) -> str:
    """Converts the option `path` to text.

    Args:
      value: text or a path object.

    Returns:
      The text.

    Raises:
      InputError: if it is neither.
    """
    if not isinstance(value, str | os.PathLike):
        raise checks.InputError(f"Expected path to be text, got {value!r}.")
    checks.text("path", str(value))
    return str(value)


def as_tuple(name: str, value: Any, kind: type, example: str) -> tuple[Any, ...]:
    """Converts an option that is a list to a tuple, which can be hashed.

    Args:
      name: of the option.
      value: list or tuple.
      kind: type of the items.
      example: shown in the message.

    Returns:
      The items.

    Raises:
      InputError: if it is not such a list.
    """
    if not isinstance(value, list | tuple) or not all(
        isinstance(item, kind) for item in value
    ):
        raise checks.InputError(
            f"Expected {name} to be a list such as {example}, got {value!r}."
        )
    return tuple(value)


def as_sizes(name: str, value: Any) -> tuple[int, ...]:
    """Converts an option that is a list of sizes, whole numbers of at least 1.

    Args:
      name: of the option.
      value: list or tuple.

    Returns:
      The sizes.

    Raises:
      InputError: if it is not such a list.
    """
    sizes = as_tuple(name, value, numbers.Integral, "(28, 28)")
    for size in sizes:
        checks.positive_int(f"each number of {name}", size)
    return tuple(map(int, sizes))


def locate(path: str, data_dir: str | None) -> pathlib.Path:
    """Finds a user's file or folder.

    Args:
      path: absolute, or relative to the current directory or else to the data
        directory.
      data_dir: directory of data files, or None for the environment's.

    Returns:
      The absolute path of an existing file or folder.

    Raises:
      InputError: if the path is empty or leads nowhere.
    """
    if not path:
        raise checks.InputError(
            "Expected path to name the file or folder of the data, got ''."
        )
    relative = pathlib.Path(os.path.expanduser(path))  # pathlib's refuses a wrong user
    candidates = [relative.absolute()]
    directory = data_dir or os.environ.get(base.DATA_DIR_VARIABLE)
    # With ".." the path would lead out of the data directory.
    if directory and not relative.is_absolute() and ".." not in relative.parts:
        root = pathlib.Path(os.path.expanduser(directory))
        candidates.append(root.absolute() / relative)
    try:
        for candidate in candidates:
            if candidate.exists():
                return candidate
    except OSError as error:  # too long, or no permission
        raise checks.InputError(f"The path {path!r} cannot be looked up.") from error
    places = " or ".join(repr(str(candidate)) for candidate in candidates)
    raise checks.InputError(f"There is no file or folder {places}.")


def json_files(folder: pathlib.Path) -> tuple[pathlib.Path, ...]:
    """Finds the files `.json` and `.json.gz` in a folder and the folders below it.

    A file that is there twice, plain and compressed, counts once, plain.

    Args:
      folder: an existing folder.

    Returns:
      The paths in the order of their names, those in folders called `test` last.

    Raises:
      InputError: if the folder cannot be read, or a link in it leads out of it.
    """
    with files.readable(f"The folder '{folder}'"):
        paths = files.find_files(folder, "**/*.json")
        paths = [path for path in paths if not path.name.startswith(".")]
        root = os.path.realpath(folder)
        for path in paths:
            files.check_inside(path, root)
    return tuple(sorted(paths, key=lambda path: path.parent.name == "test"))

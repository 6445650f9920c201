"""A user's own arrays in an `.npz` archive or in LEAF's JSON."""

import dataclasses
import functools
import pathlib
from typing import Any, ClassVar

import numpy as np

from fedjax_pfl.core import checks
from fedjax_pfl.data import dataset as datasets
from fedjax_pfl.data.readers import arrays, files, leaf
from fedjax_pfl.data.sources import user_arrays, user_files

__all__ = ["LeafJson", "Npz"]

_GIB = 1 << 30


@dataclasses.dataclass(frozen=True, kw_only=True)
class Npz:
    """Arrays in an archive of `numpy.savez`, taken as `arrays_dataset` takes them.

    Attributes:
      path: the file; relative to the current directory or else to the data directory.
      x: name of the array of inputs.
      y: name of the array of targets.
      client: name of the array of clients, or None for `client` if there is one.
      max_bytes: limit of the memory of these arrays together.
    """

    path: str = ""
    x: str = "x"
    y: str = "y"
    client: str | None = None
    max_bytes: int = 8 * _GIB
    name: ClassVar[str] = "npz"

    def __post_init__(self):
        object.__setattr__(self, "path", user_files.as_path(self.path))
        user_files.check_text("x", self.x)
        user_files.check_text("y", self.y)
        user_files.check_text("client", self.client, optional=True)
        checks.whole("max_bytes", self.max_bytes, at_least=1, at_most=1 << 50)

    def load(
        self, *, data_dir: str | None, seed: int, num_clients: int | None
    ) -> datasets.Dataset:
        """Returns the arrays; clients are numbered in sorted order."""
        path = user_files.locate(self.path, data_dir)
        return _npz_dataset(self, path, files.fingerprint([path]))


@functools.lru_cache(maxsize=4)
def _npz_dataset(
    options: Npz, path: pathlib.Path, fingerprint: tuple[tuple[int, int], ...]
) -> datasets.Dataset:
    """Reads the file once per process and modification."""
    client = options.client
    if client is None and "client" in arrays.array_names(path):
        client = "client"
    names = [options.x, options.y] + ([] if client is None else [client])
    found = arrays.read_arrays(path, names, options.max_bytes)
    return user_arrays.arrays_dataset(
        found[options.x],
        found[options.y],
        None if client is None else found[client],
        name=user_arrays.stem(path),
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class LeafJson:
    """Files in LEAF's JSON format with inputs of numbers; each user is a client.

    Examples of a user in several files come together, those of folders called `test`
    last. Targets are whole numbers, numbered as classes in sorted order.

    Attributes:
      path: a `.json` or `.json.gz` file, or a folder of such files at any depth;
        relative to the current directory or else to the data directory.
      shape: of one input, for example `(28, 28)`; None leaves it as stored.
    """

    path: str = ""
    shape: tuple[int, ...] | None = None
    name: ClassVar[str] = "leaf"

    def __post_init__(self):
        object.__setattr__(self, "path", user_files.as_path(self.path))
        if self.shape is not None:
            object.__setattr__(
                self, "shape", user_files.as_sizes("shape", self.shape, "(28, 28)")
            )

    def load(
        self, *, data_dir: str | None, seed: int, num_clients: int | None
    ) -> datasets.Dataset:
        """Returns all users' examples; clients are numbered in sorted order."""
        path = user_files.locate(self.path, data_dir)
        paths = (path,)
        if path.is_dir():
            files.check_directory(path)
            paths = user_files.json_files(path)
        if not paths:
            raise checks.InputError(
                f"The folder '{path}' holds no .json or .json.gz file."
            )
        return _leaf_dataset(self, path, paths, files.fingerprint(paths))


@functools.lru_cache(maxsize=4)
def _leaf_dataset(
    options: LeafJson,
    path: pathlib.Path,
    paths: tuple[pathlib.Path, ...],
    fingerprint: tuple[tuple[int, int], ...],
) -> datasets.Dataset:
    """Reads the files once per process and modification."""
    users = leaf.read_leaf(paths)
    if not users:
        raise checks.InputError(f"The LEAF data in '{path}' hold no example.")
    x = [example for inputs, _ in users.values() for example in inputs]
    y = [target for _, targets in users.values() for target in targets]
    client = [user for user, (_, targets) in users.items() for _ in targets]
    x = _numbers(
        x, f"x of the LEAF data in '{path}'", "inputs of numbers, equally long"
    )
    if options.shape is not None:
        if np.prod(x.shape[1:]) != np.prod(options.shape):
            raise checks.InputError(
                f"Expected inputs of the shape {options.shape} in '{path}', got"
                f" {x.shape[1:]}."
            )
        x = x.reshape(len(x), *options.shape)
    what, expected = f"y of the LEAF data in '{path}'", "one whole number per input"
    y = _numbers(y, what, expected)
    # Some writers of LEAF's files have 3.0 for 3; beyond 2^53 floats have gaps.
    if y.ndim != 1 or not ((y == np.round(y)) & (np.abs(y) <= 2**53)).all():
        raise checks.InputError(f"Expected {what} to hold {expected}, got others.")
    return user_arrays.arrays_dataset(
        x, y.astype(np.int64), client, name=user_arrays.stem(path)
    )


def _numbers(values: list[Any], what: str, expected: str) -> np.ndarray:
    """An array of the numbers in nested lists."""
    try:
        array = np.asarray(values)
    except (ValueError, OverflowError):  # of different lengths
        array = np.asarray(None)
    if array.dtype.kind not in "iuf":
        raise checks.InputError(f"Expected {what} to hold {expected}, got others.")
    return array

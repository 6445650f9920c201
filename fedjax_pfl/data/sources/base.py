"""Data sets that are read from files: finding, caching, comparing."""

import abc
import dataclasses
import itertools
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from fedjax_pfl.core import checks, struct
from fedjax_pfl.data import dataset as datasets
from fedjax_pfl.data.readers import binary, files
from fedjax_pfl.data.sources import prepared

__all__ = [
    "DATA_DIR_VARIABLE",
    "IMAGES",
    "INTEGERS",
    "TEXTS",
    "CachedSource",
    "FileSource",
    "Layout",
    "Located",
    "MissingFilesError",
    "data_directory",
]

DATA_DIR_VARIABLE = "FEDJAX_PFL_DATA"
# Types and shapes of arrays in `.npz` files, None for any size.
IMAGES = (np.uint8, (None, 28, 28))
INTEGERS = (np.integer, (None,))
TEXTS = (np.str_, (None,))

_MAX_BYTES = 4 << 30  # of arrays in an .npz file; the known ones are far smaller


class MissingFilesError(checks.InputError):
    """Missing files of a data set."""


@dataclasses.dataclass(frozen=True)
class Layout:
    """Layout of the files of a data set."""

    name: str  # shown to users
    files: tuple[str, ...] = ()  # in the directory, all needed, plain or `.gz`
    patterns: tuple[str, ...] = ()  # as for `glob`; one file of all is needed

    def find(self, directory: Path) -> tuple[tuple[Path, ...], list[str]]:
        """Returns the files that are in a directory, and names of missing ones."""
        names = self.files + self.patterns
        paths = {name: files.find_files(directory, name) for name in names}
        missing = [name for name in self.files if not paths[name]]
        if self.patterns and not any(paths.values()):
            missing.append(" or ".join(self.patterns))
        return tuple(itertools.chain(*paths.values())), missing


@dataclasses.dataclass(frozen=True)
class Located:
    """The files of a data set."""

    root: Path  # their folder, or the only file
    layout: str  # name of the layout
    paths: tuple[Path, ...]  # the files, in the layout's order

    def followed_by(self, path: Path) -> "Located":
        """Returns the files and one more at the end."""
        return dataclasses.replace(self, paths=(*self.paths, path))


@dataclasses.dataclass(frozen=True, kw_only=True)
class CachedSource(abc.ABC):
    """A data set that is read once per process and modification of its files."""

    name: ClassVar[str]

    def load(
        self, *, data_dir: str | None, seed: int, num_clients: int | None
    ) -> datasets.Dataset:
        """Reads the data set, or returns it if its files have not changed since."""
        located = self.locate(data_dir)
        return _cached(self, located, files.fingerprint(located.paths))

    @abc.abstractmethod
    def locate(self, data_dir: str | None) -> Located:
        """Finds the files; `data_dir` is None for the environment's directory."""

    @abc.abstractmethod
    def read(self, located: Located) -> datasets.Dataset:
        """Reads the files."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class FileSource(CachedSource):
    """A named data set in `data_dir/<name>` or in `data_dir` itself.

    Attributes:
      verify: compare known files with their checksums.
    """

    verify: bool = True
    more_folders: ClassVar[tuple[str, ...]] = ()  # besides the one of its name
    layouts: ClassVar[tuple[Layout, ...]]  # the first that is complete is read
    builder: ClassVar[str] = ""  # of tensorflow-datasets
    advice: ClassVar[Mapping[str, str]] = {}  # about files that are not read
    sha256: ClassVar[Mapping[str, str]] = {}  # of uncompressed files, by name

    __post_init__ = struct.check_fields

    def locate(self, data_dir: str | None) -> Located:
        """Finds the files."""
        directories = self.directories(data_dir)
        root, incomplete = directories[-1], []
        with files.readable(f"The data directory '{root}'"):
            for layout in self.layouts:
                for directory in directories:
                    paths, missing = layout.find(directory)
                    if not missing:
                        return Located(directory, layout.name, paths)
                    if paths:
                        incomplete.append((directory, missing))
            if self.builder and (paths := prepared.find_prepared(root, self.builder)):
                return Located(root, prepared.LAYOUT, paths)
        if incomplete:
            # The message names the layout that lacks least, as the likeliest one.
            directory, missing = min(incomplete, key=lambda place: len(place[1]))
            raise MissingFilesError(
                f"{self.name!r} needs {', '.join(missing)} (or .gz) in '{directory}'."
            )
        for directory in directories:
            for file, advice in self.advice.items():
                if (directory / file).exists():
                    raise MissingFilesError(f"'{directory / file}' holds {advice}.")
        raise MissingFilesError(
            f"Data set {self.name!r} is not in '{root}', the directory that --data-dir"
            f" (data_dir=...) or {DATA_DIR_VARIABLE} names: expected {self._files()}."
        )

    def directories(self, data_dir: str | None) -> list[Path]:
        """Returns existing folders of the data set and, last, the data directory."""
        root = data_directory(data_dir)
        if root is None:
            raise MissingFilesError(
                f"Data set {self.name!r} is read from files: pass --data-dir"
                f" (data_dir=...) or set {DATA_DIR_VARIABLE} to a directory with"
                f" {self._files()}."
            )
        folders = [root / folder for folder in (self.name, *self.more_folders)]
        directories = [folder for folder in folders if folder.is_dir()]
        for directory in directories:
            files.check_directory(directory)
        return [*directories, root]

    def _files(self) -> str:
        """Lists the files of every layout."""
        layouts = (", ".join(layout.files + layout.patterns) for layout in self.layouts)
        description = f"{self.name}/ with {'; or '.join(layouts)} (plain or .gz)"
        if self.builder:
            description += (
                "; or files that tensorflow-datasets prepared as array_record, in"
                f" {self.builder}/"
            )
        return description

    def content(self, path: Path) -> bytes:
        """Reads the uncompressed content of a file and compares its checksum."""
        content = files.read_content(path)
        self.verify_content(content, path, path.name.removesuffix(".gz"))
        return content

    def verify_content(self, content: bytes, path: Path, name: str) -> None:
        """Compares a known file with its checksum."""
        if self.verify and name in self.sha256:
            files.check_sha256(content, path, self.sha256[name])

    def arrays(
        self, path: Path, expected: Mapping[str, tuple[type, tuple[Any, ...]]]
    ) -> list[np.ndarray]:
        """Reads arrays of an `.npz` file by name, each of a type and a shape."""
        self.content(path)
        values = binary.read_arrays(path, expected, _MAX_BYTES)
        for name, (kind, shape) in expected.items():
            array = values[name]
            fits = array.ndim == len(shape) and all(
                length in (None, size)
                for size, length in zip(array.shape, shape, strict=True)
            )
            if not fits or not np.issubdtype(array.dtype, kind):
                raise checks.InputError(
                    f"The array {name!r} of '{path}' holds {array.dtype} values of"
                    f" shape {array.shape}, expected {kind.__name__} of shape {shape}."
                )
        return list(values.values())


def data_directory(data_dir: str | os.PathLike[str] | None) -> Path | None:
    """Returns the given directory of data files or the environment's; or None."""
    name = data_dir or os.environ.get(DATA_DIR_VARIABLE)
    if not name:
        return None
    checks.text("data_dir", str(name))
    # Unlike pathlib's, these functions let a wrong user or a loop of links pass.
    directory = Path(os.path.realpath(os.path.expanduser(name)))
    files.check_directory(directory)
    return directory


@datasets.cache(8)
def _cached(
    source: CachedSource, located: Located, fingerprint: tuple[tuple[int, int], ...]
) -> datasets.Dataset:
    """Keeps data sets, so that specifications that differ elsewhere share them."""
    return source.read(located)

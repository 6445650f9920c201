"""Known data sets that are read from files: finding, caching, comparing."""

import abc
import dataclasses
import functools
import os
import pathlib
from collections.abc import Mapping
from typing import ClassVar

import numpy as np

from fedjax_pfl.core import checks
from fedjax_pfl.data import dataset as datasets
from fedjax_pfl.data.readers import arrays, files
from fedjax_pfl.data.sources import prepared

__all__ = [
    "DATA_DIR_VARIABLE",
    "FileSource",
    "Layout",
    "Located",
    "MissingFilesError",
    "data_directory",
]

DATA_DIR_VARIABLE = "FEDJAX_PFL_DATA"
_MAX_BYTES = 4 << 30  # of arrays in an .npz file; the known ones are far smaller


class MissingFilesError(checks.InputError):
    """The files of a data set are not there."""


@dataclasses.dataclass(frozen=True)
class Layout:
    """One way in which the files of a data set are laid out.

    Attributes:
      name: shown to users.
      files: names relative to the directory, all needed, plain or `.gz`.
      patterns: as for `pathlib.Path.glob`; at least one file of all of them is needed.
    """

    name: str
    files: tuple[str, ...] = ()
    patterns: tuple[str, ...] = ()

    def find(
        self, directory: pathlib.Path
    ) -> tuple[tuple[pathlib.Path, ...], list[str]]:
        """The files that are in a directory, and the names of those that are not."""
        found = {name: files.find_file(directory, name) for name in self.files}
        paths = [path for path in found.values() if path is not None]
        missing = [name for name, path in found.items() if path is None]
        for pattern in self.patterns:
            paths += files.find_files(directory, pattern)
        if self.patterns and not paths:
            missing.append(" or ".join(self.patterns))
        return tuple(paths), missing


@dataclasses.dataclass(frozen=True)
class Located:
    """The files of a data set that were found.

    Attributes:
      layout: name of the layout.
      paths: the files, in the layout's order.
    """

    layout: str
    paths: tuple[pathlib.Path, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class FileSource(abc.ABC):
    """A named data set in `data_dir/<folder>` or in `data_dir` itself.

    Attributes:
      verify: compare known files with their checksums.
    """

    verify: bool = True
    name: ClassVar[str]
    folders: ClassVar[tuple[str, ...]]
    layouts: ClassVar[tuple[Layout, ...]]  # the first that is complete is read
    builder: ClassVar[str | None] = None  # of tensorflow-datasets
    advice: ClassVar[Mapping[str, str]] = {}  # about files that are not read
    sha256: ClassVar[Mapping[str, str]] = {}  # of uncompressed files, by name

    def __post_init__(self):
        checks.boolean("verify", self.verify)

    def load(
        self, *, data_dir: str | None, seed: int, num_clients: int | None
    ) -> datasets.Dataset:
        """Reads the data set once per process and modification of its files."""
        located = self.locate(data_dir)
        return _cached(self, located, files.fingerprint(located.paths))

    def locate(self, data_dir: str | None) -> Located:
        """Finds the files.

        Args:
          data_dir: the directory of data files, or None for the environment's.

        Returns:
          The first complete layout, or what tensorflow-datasets prepared.

        Raises:
          InputError: if there is no directory, or it does not hold the files.
        """
        root = self.root(data_dir)
        directories = [root / folder for folder in self.folders] + [root]
        directories = [path for path in directories if path.is_dir()]
        try:
            incomplete = []
            for layout in self.layouts:
                for directory in directories:
                    paths, missing = layout.find(directory)
                    if not missing:
                        return Located(layout.name, paths)
                    if paths:
                        incomplete.append((directory, missing))
            if self.builder is not None:
                paths = prepared.find_prepared(root, self.builder)
                if paths:
                    return Located(prepared.LAYOUT, paths)
        except OSError as error:
            raise checks.InputError(
                f"The data directory '{root}' cannot be read: {error.strerror}."
            ) from error
        raise self._missing(root, directories, incomplete)

    @abc.abstractmethod
    def read(self, located: Located) -> datasets.Dataset:
        """Reads the files that were found."""

    def root(self, data_dir: str | None) -> pathlib.Path:
        """The directory of data files, checked."""
        root = data_directory(data_dir)
        if root is None:
            raise MissingFilesError(
                f"Data set {self.name!r} is read from files: pass --data-dir"
                f" (data_dir=...) or set {DATA_DIR_VARIABLE} to a directory that holds"
                f" {self._wanted()}."
            )
        for folder in self.folders:
            if (root / folder).is_dir():
                files.check_directory(root / folder)
        return root

    def _missing(
        self,
        root: pathlib.Path,
        directories: list[pathlib.Path],
        incomplete: list[tuple[pathlib.Path, list[str]]],
    ) -> checks.InputError:
        """The sentence for files that are not there."""
        if incomplete:
            directory, missing = min(incomplete, key=lambda found: len(found[1]))
            return MissingFilesError(
                f"Data set {self.name!r} needs {', '.join(missing)} (plain or .gz) in"
                f" '{directory}', but there is no such file."
            )
        for directory in directories:
            for file, advice in self.advice.items():
                if (directory / file).exists():
                    return MissingFilesError(f"'{directory / file}' is {advice}.")
        return MissingFilesError(
            f"Data set {self.name!r} is not in '{root}', the directory that --data-dir"
            f" (data_dir=...) or {DATA_DIR_VARIABLE} names: expected {self._wanted()}."
        )

    def _wanted(self) -> str:
        """The files that would do."""
        alternatives = [
            ", ".join(layout.files + layout.patterns) for layout in self.layouts
        ]
        wanted = f"{self.folders[0]}/ with {'; or '.join(alternatives)} (plain or .gz)"
        if self.builder is not None:
            wanted += (
                "; or what tensorflow-datasets prepared as array_record, in"
                f" {self.builder}/"
            )
        return wanted

    def content(self, path: pathlib.Path) -> bytes:
        """Uncompressed content of a file, compared with its checksum."""
        content = files.read_content(path)
        self.verify_content(content, path, path.name.removesuffix(".gz"))
        return content

    def verify_content(self, content: bytes, path: pathlib.Path, name: str) -> None:
        """Compares a known file with its checksum."""
        if self.verify and name in self.sha256:
            files.check_sha256(content, path, self.sha256[name])

    def arrays(
        self, path: pathlib.Path, expected: Mapping[str, tuple[str, int]]
    ) -> list[np.ndarray]:
        """Arrays of an `.npz` file: of one of the given kinds, with so many axes."""
        self.content(path)
        found = arrays.read_arrays(path, expected, _MAX_BYTES)
        for name, (kinds, num_axes) in expected.items():
            array = found[name]
            if array.dtype.kind not in kinds or array.ndim != num_axes:
                raise checks.InputError(
                    f"The array {name!r} of '{path}' holds {array.dtype} values of"
                    f" shape {array.shape}, expected kind {kinds!r} with {num_axes}"
                    " axes."
                )
        return list(found.values())


def data_directory(data_dir: str | os.PathLike[str] | None) -> pathlib.Path | None:
    """The directory of data files, given or the environment's, checked; or None."""
    given = data_dir or os.environ.get(DATA_DIR_VARIABLE)
    if not given:
        return None
    checks.text("data_dir", str(given))
    # Unlike pathlib's, these functions let a wrong user or a loop of links pass.
    directory = pathlib.Path(os.path.realpath(os.path.expanduser(given)))
    files.check_directory(directory)
    return directory


@functools.lru_cache(maxsize=8)
def _cached(
    source: FileSource, located: Located, fingerprint: tuple[tuple[int, int], ...]
) -> datasets.Dataset:
    """Keeps data sets, so that specifications that differ elsewhere share them."""
    return source.read(located)

"""Named data sets: embedded digits, the MNIST family from files, and generated ones.

`DATASETS` maps command-line names to frozen dataclasses whose fields are the options.
"""

import dataclasses
import functools
import os
import pathlib
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from fedjax_pfl import checks
from fedjax_pfl.data import dataset as datasets
from fedjax_pfl.data import readers, synthetic

__all__ = ["DATASETS", "Digits", "FashionMnist", "Mnist", "load_dataset", "source"]

_DATA_DIR_VARIABLE = "FEDJAX_PFL_DATA"

_MNIST_MEAN, _MNIST_STD = 0.1307, 0.3081  # of pixels in [0, 1]
_IMAGE_SHAPE = (28, 28)
_TRAIN = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte")
_TEST = ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Digits:
    """The 1,797 handwritten digits of 8 x 8 pixels that ship inside scikit-learn."""

    name: ClassVar[str] = "digits"

    def load(
        self, *, data_dir: str | None, seed: int, num_clients: int
    ) -> datasets.Dataset:
        """Returns `x uint8[1797, 8, 8]` with values 0 to 16, shown as `x / 16`."""
        return _digits()


@functools.lru_cache(maxsize=1)
def _digits() -> datasets.Dataset:
    """Reads the digits once per process."""
    from sklearn.datasets import load_digits  # two seconds, paid only by its users

    bunch: Any = load_digits()
    return datasets.Dataset(
        name=Digits.name,
        x=bunch.images.astype(np.uint8),
        y=bunch.target,
        num_classes=10,
        scale=1 / 16,
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class _IdxImages:
    """Four idx files in `data_dir/<name>` or in `data_dir` itself, plain or `.gz`.

    Attributes:
      verify: compare the files with the checksums of the official ones.
    """

    verify: bool = True
    name: ClassVar[str]
    sha256: ClassVar[Mapping[str, str]]  # of the uncompressed files

    def __post_init__(self):
        if not isinstance(self.verify, bool):
            raise checks.InputError(
                f"Expected verify to be true or false, got {self.verify!r}."
            )

    def load(
        self, *, data_dir: str | None, seed: int, num_clients: int
    ) -> datasets.Dataset:
        """Returns the train part followed by the test part, `x uint8[S, 28, 28]`."""
        paths = _idx_paths(self.name, data_dir)
        stats = [path.stat() for path in paths]
        fingerprint = tuple((stat.st_mtime_ns, stat.st_size) for stat in stats)
        return _idx_dataset(self, paths, fingerprint)


class Mnist(_IdxImages):
    """MNIST: 60,000 + 10,000 handwritten digits, normalized by mean and std."""

    name: ClassVar[str] = "mnist"
    sha256: ClassVar[Mapping[str, str]] = {
        _TRAIN[0]: "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
        _TRAIN[1]: "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
        _TEST[0]: "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
        _TEST[1]: "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
    }


class FashionMnist(_IdxImages):
    """Fashion-MNIST: 60,000 + 10,000 garments, normalized with MNIST's constants."""

    name: ClassVar[str] = "fashion_mnist"
    sha256: ClassVar[Mapping[str, str]] = {
        _TRAIN[0]: "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
        _TRAIN[1]: "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
        _TEST[0]: "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
        _TEST[1]: "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
    }


def _idx_paths(name: str, data_dir: str | None) -> tuple[pathlib.Path, ...]:
    """The four files: images and labels of the train part, then of the test part."""
    files = _TRAIN + _TEST
    given = data_dir or os.environ.get(_DATA_DIR_VARIABLE)
    if not given:
        raise checks.InputError(
            f"Data set {name!r} is read from files: pass --data-dir (data_dir=...) or"
            f" set {_DATA_DIR_VARIABLE} to a directory that holds {name}/ with"
            f" {', '.join(files)} (plain or .gz)."
        )
    directory = pathlib.Path(given).expanduser().resolve()
    readers.check_directory(directory)
    if (directory / name).is_dir():
        directory = directory / name
        readers.check_directory(directory)
    found = [readers.find_file(directory, file) for file in files]
    missing = [file for file, path in zip(files, found, strict=True) if path is None]
    if missing:
        raise checks.InputError(
            f"Data set {name!r} needs {', '.join(missing)} (plain or .gz) in"
            f" '{directory}' or in a folder {name} there, but there is no such file."
        )
    return tuple(path for path in found if path is not None)


@functools.lru_cache(maxsize=4)
def _idx_dataset(
    options: _IdxImages,
    paths: tuple[pathlib.Path, ...],
    fingerprint: tuple[tuple[int, int], ...],
) -> datasets.Dataset:
    """Reads the files once per process and modification."""
    arrays = []
    for path, file in zip(paths, _TRAIN + _TEST, strict=True):
        content = readers.read_content(path)
        arrays.append(readers.parse_idx(content, path, 3 if "images" in file else 1))
        if options.verify:
            readers.check_sha256(content, path, options.sha256[file])
    for path, images, labels in zip(paths[::2], arrays[::2], arrays[1::2], strict=True):
        if images.shape[1:] != _IMAGE_SHAPE or len(images) != len(labels):
            raise checks.InputError(
                f"The file '{path}' holds images of shape {images.shape}, expected"
                f" {(len(labels), *_IMAGE_SHAPE)} to go with its labels."
            )
    return datasets.Dataset(
        name=options.name,
        x=np.concatenate(arrays[::2]),
        y=np.concatenate(arrays[1::2]),
        num_classes=10,
        scale=1 / (255 * _MNIST_STD),
        shift=-_MNIST_MEAN / _MNIST_STD,
    )


DATASETS: dict[str, Any] = {
    kind.name: kind
    for kind in (
        Digits,
        Mnist,
        FashionMnist,
        synthetic.Quadratic,
        synthetic.LinearRegression,
        synthetic.GaussianClasses,
    )
}


def source(name: str, **options: Any) -> datasets.Source:
    """Makes the source of a named data set.

    Args:
      name: key of `DATASETS`.
      **options: fields of the source.

    Returns:
      The source.

    Raises:
      InputError: if the name, an option or its value is wrong.
    """
    checks.known(name, DATASETS, "data set")
    kind = DATASETS[name]
    allowed = [field.name for field in dataclasses.fields(kind)]
    for option in options:
        if not allowed:
            raise checks.InputError(
                f"Data set {name!r} has no options, got {option!r}."
            )
        checks.known(option, allowed, f"option of {name}")
    return kind(**options)


def load_dataset(
    name: str,
    data_dir: str | os.PathLike[str] | None = None,
    seed: int = 0,
    *,
    num_clients: int = 20,
    **options: Any,
) -> datasets.Dataset:
    """Loads or generates a named data set.

    Args:
      name: key of `DATASETS`.
      data_dir: directory of data files; the environment variable `FEDJAX_PFL_DATA` by
        default. Embedded and generated sets need none.
      seed: of generated sets.
      num_clients: clients of generated sets.
      **options: fields of the source.

    Returns:
      The data set; the same object for the same arguments and unchanged files.

    Raises:
      InputError: if an argument is wrong, or files are missing or damaged.

    Example:
      >>> load_dataset("digits").x.shape
      (1797, 8, 8)
      >>> load_dataset("quadratic", dim=2, num_clients=3).truth["minimizers"].shape
      (3, 2)
    """
    checks.whole("seed", seed, at_least=0)
    checks.positive_int("num_clients", num_clients)
    return source(name, **options).load(
        data_dir=None if data_dir is None else str(data_dir),
        seed=seed,
        num_clients=num_clients,
    )

"""CIFAR-10 and CIFAR-100: official binary files, WebP sheets, prepared sets."""

import dataclasses
import pathlib
from collections.abc import Mapping, Sequence
from typing import ClassVar

import numpy as np

from fedjax_pfl.core import checks
from fedjax_pfl.data import dataset as datasets
from fedjax_pfl.data.readers import archives, cifar, files, sheets
from fedjax_pfl.data.sources import base, names, prepared

__all__ = ["Cifar10", "Cifar100"]

_ARCHIVE, _FOLDER, _SHEETS = "binary archive", "binary folder", "WebP sheets"
_NORMALIZATIONS = ("standard", "half")


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Cifar(base.FileSource):
    """Colour images of 32 x 32 pixels.

    Attributes:
      verify: compare archives and sheets with the checksums of the known ones.
      normalization: "standard", mean and std of the train images' channels, or "half",
        which maps bytes to [-1, 1].
    """

    normalization: str = "standard"
    archive: ClassVar[str]
    members: ClassVar[Mapping[str, int]]  # of archive or folder: numbers of images
    num_labels: ClassVar[int]  # bytes of a record
    mean: ClassVar[tuple[float, float, float]]
    std: ClassVar[tuple[float, float, float]]

    def __post_init__(self):
        super().__post_init__()
        checks.known(self.normalization, _NORMALIZATIONS, "normalization")

    def as_dataset(
        self, x: np.ndarray, y: np.ndarray, class_names: Sequence[str]
    ) -> datasets.Dataset:
        """Adds classes and normalization to images and labels."""
        half = (0.5, 0.5, 0.5)
        mean, std = (
            (self.mean, self.std) if self.normalization == "standard" else (half, half)
        )
        return datasets.Dataset(
            name=self.name,
            x=x,
            y=y,
            num_classes=len(class_names),
            class_names=tuple(class_names),
            scale=1 / (255 * np.array(std)),
            shift=-np.array(mean) / np.array(std),
        )

    def binary(self, located: base.Located) -> tuple[np.ndarray, np.ndarray]:
        """Images and labels `uint8[S, num_labels]` of the official files."""
        parts = []
        contents = self._binary_files(located)
        for (content, path), number in zip(
            contents, self.members.values(), strict=True
        ):
            images, labels = cifar.parse_records(content, path, self.num_labels)
            if self.verify and len(images) != number:
                raise checks.InputError(
                    f"The file '{path}' holds {len(images)} images, but the official"
                    f" one {number} (verify=False accepts it)."
                )
            parts.append((images, labels))
        images, labels = zip(*parts, strict=True)
        return np.concatenate(images), np.concatenate(labels)

    def _binary_files(self, located: base.Located) -> list[tuple[bytes, pathlib.Path]]:
        """Contents of the official files, each with the path shown in messages."""
        if located.layout == _FOLDER:
            return [(self.content(path), path) for path in located.paths]
        (path,) = located.paths
        content = files.read_bytes(path)
        self.verify_content(content, path, path.name)
        size = cifar.record_size(self.num_labels)
        sizes = {name: number * size for name, number in self.members.items()}
        found = archives.read_members(content, path, sizes)
        return [(found[name], path / name) for name in self.members]

    def sheets(
        self, paths: Sequence[pathlib.Path], num_tiles: Sequence[int]
    ) -> np.ndarray:
        """Images of WebP sheets."""
        contents = [self.content(path) for path in paths]
        opened = list(zip(contents, paths, num_tiles, strict=True))
        return np.concatenate(sheets.read_sheets(opened, cifar.IMAGE_SHAPE[:2]))


class Cifar10(_Cifar):
    """CIFAR-10: 50,000 + 10,000 images of 10 classes, train then test.

    The WebP sheets hold the first 30,000 train images and the test images.
    """

    name: ClassVar[str] = "cifar10"
    folders: ClassVar[tuple[str, ...]] = ("cifar10",)
    builder: ClassVar[str] = "cifar10"
    archive: ClassVar[str] = "cifar-10-binary.tar.gz"
    members: ClassVar[Mapping[str, int]] = {
        "cifar-10-batches-bin/data_batch_1.bin": 10_000,
        "cifar-10-batches-bin/data_batch_2.bin": 10_000,
        "cifar-10-batches-bin/data_batch_3.bin": 10_000,
        "cifar-10-batches-bin/data_batch_4.bin": 10_000,
        "cifar-10-batches-bin/data_batch_5.bin": 10_000,
        "cifar-10-batches-bin/test_batch.bin": 10_000,
    }
    layouts: ClassVar[tuple[base.Layout, ...]] = (
        base.Layout(_ARCHIVE, (archive,)),
        base.Layout(_FOLDER, tuple(members)),
        base.Layout(
            _SHEETS,
            (
                "data_batch_1.webp",
                "data_batch_2.webp",
                "data_batch_3.webp",
                "test_batch.webp",
                "labels.npz",
            ),
        ),
    )
    num_labels: ClassVar[int] = 1
    mean: ClassVar[tuple[float, float, float]] = (0.4914, 0.4822, 0.4465)
    std: ClassVar[tuple[float, float, float]] = (0.2470, 0.2435, 0.2616)
    advice: ClassVar[Mapping[str, str]] = dict.fromkeys(
        ("cifar-10-python.tar.gz", "cifar-10-batches-py"),
        "CIFAR-10 as pickled Python objects, which are never read because they can run"
        " any code: get cifar-10-binary.tar.gz from the same place",
    )
    # The archive's is the one that tensorflow-datasets lists.
    sha256: ClassVar[Mapping[str, str]] = {
        archive: "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
        "data_batch_1.webp": (
            "7862ba6f532eb26481636723b49a74914d0a8186dde88a2afa9047668b1214b8"
        ),
        "data_batch_2.webp": (
            "223eb5388d46cd9050b630ada011bb521e9e66e56f8922c4e3c90068bfb4de74"
        ),
        "data_batch_3.webp": (
            "72340f10fb016c6a6f645cbf5e19c99d4d83b500574b3838a6850d00fc20b354"
        ),
        "test_batch.webp": (
            "ab0dec7042a003e447ef1969363ca6ea01395ed08b74191b1480e5b880c3ffde"
        ),
        "labels.npz": (
            "14cb445a47c1781e5be070e093d9f8ff1169e50e96c99dff09d914d456922913"
        ),
    }

    def read(self, located: base.Located) -> datasets.Dataset:
        """Returns `x uint8[S, 32, 32, 3]`, train then test."""
        if located.layout == prepared.LAYOUT:
            x, y = prepared.read_images(self.name, located.paths, ("label",))
        elif located.layout == _SHEETS:
            x, y = self._read_sheets(located.paths)
        else:
            x, y = self.binary(located)
        return self.as_dataset(x, y.reshape(-1), names.CIFAR10)

    def _read_sheets(
        self, paths: tuple[pathlib.Path, ...]
    ) -> tuple[np.ndarray, np.ndarray]:
        """Batches 1 to 3 of five, and the test batch."""
        *sheet_paths, label_path = paths
        train, test = self.arrays(label_path, {"train": ("iu", 1), "test": ("iu", 1)})
        size = len(train) // 5
        x = self.sheets(sheet_paths, (size, size, size, len(test)))
        return x, np.concatenate([train[: 3 * size], test])


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cifar100(_Cifar):
    """CIFAR-100: 50,000 + 10,000 images of 100 classes, train then test.

    The WebP sheets hold 50 train and 10 test images of every class.

    Attributes:
      verify: compare archives and sheets with the checksums of the known ones.
      normalization: "standard", mean and std of the train images' channels, or "half",
        which maps bytes to [-1, 1].
      labels: "fine", 100 classes, or "coarse", 20 groups of five of them.
    """

    labels: str = "fine"
    name: ClassVar[str] = "cifar100"
    folders: ClassVar[tuple[str, ...]] = ("cifar100", "cifar100_subset")
    builder: ClassVar[str] = "cifar100"
    archive: ClassVar[str] = "cifar-100-binary.tar.gz"
    members: ClassVar[Mapping[str, int]] = {
        "cifar-100-binary/train.bin": 50_000,
        "cifar-100-binary/test.bin": 10_000,
    }
    layouts: ClassVar[tuple[base.Layout, ...]] = (
        base.Layout(_ARCHIVE, (archive,)),
        base.Layout(_FOLDER, tuple(members)),
        base.Layout(_SHEETS, ("train.webp", "test.webp", "labels.npz")),
    )
    num_labels: ClassVar[int] = 2
    mean: ClassVar[tuple[float, float, float]] = (0.5071, 0.4865, 0.4409)
    std: ClassVar[tuple[float, float, float]] = (0.2673, 0.2564, 0.2762)
    advice: ClassVar[Mapping[str, str]] = dict.fromkeys(
        ("cifar-100-python.tar.gz", "cifar-100-python"),
        "CIFAR-100 as pickled Python objects, which are never read because they can run"
        " any code: get cifar-100-binary.tar.gz from the same place",
    )
    # The archive's is the one that tensorflow-datasets lists.
    sha256: ClassVar[Mapping[str, str]] = {
        archive: "58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec",
        "train.webp": (
            "1964e870451aa58370aaaf1d60cdd03c3d51938c603e0a26c1e4c6d75df8fc76"
        ),
        "test.webp": (
            "05fea4886d56e20291f0bb8899a190acb585f1b054c93e74562f2599c2b7fc7e"
        ),
        "labels.npz": (
            "a4d21359ea6344da96f89a4e3b3125720143ee8408389ca1ada1ae583d2b0de7"
        ),
    }

    def __post_init__(self):
        super().__post_init__()
        checks.known(self.labels, ("fine", "coarse"), "labels")

    def read(self, located: base.Located) -> datasets.Dataset:
        """Returns `x uint8[S, 32, 32, 3]`, train then test."""
        if located.layout == prepared.LAYOUT:
            features = ("coarse_label", "label")
            x, y = prepared.read_images(self.name, located.paths, features)
        elif located.layout == _SHEETS:
            x, y = self._read_sheets(located.paths)
        else:
            x, y = self.binary(located)
        if self.labels == "coarse":
            return self.as_dataset(x, y[:, 0], names.CIFAR100_COARSE)
        return self.as_dataset(x, y[:, 1], names.CIFAR100_FINE)

    def _read_sheets(
        self, paths: tuple[pathlib.Path, ...]
    ) -> tuple[np.ndarray, np.ndarray]:
        """Images, and labels `[S, 2]`: coarse, fine."""
        *sheet_paths, label_path = paths
        integers = ("iu", 1)
        train, test, coarse = self.arrays(
            label_path,
            {"train": integers, "test": integers, "fine_to_coarse": integers},
        )
        x = self.sheets(sheet_paths, (len(train), len(test)))
        fine = np.concatenate([train, test])
        if fine.min(initial=0) < 0 or fine.max(initial=0) >= len(coarse):
            raise checks.InputError(
                f"The file '{label_path}' has fine labels from {fine.min()} to"
                f" {fine.max()}, expected whole numbers from 0 to {len(coarse) - 1}."
            )
        return x, np.stack([coarse[fine], fine], axis=1)

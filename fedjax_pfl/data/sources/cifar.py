"""CIFAR-10 and CIFAR-100: official binary files, WebP sheets, prepared sets."""

import abc
import dataclasses
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np

from fedjax_pfl.core import checks
from fedjax_pfl.data import dataset as datasets
from fedjax_pfl.data.readers import binary, files, images
from fedjax_pfl.data.sources import base, prepared

__all__ = ["Cifar10", "Cifar100"]

_ARCHIVE, _FOLDER, _SHEETS = "binary archive", "binary folder", "WebP sheets"
_COARSE = tuple(
    """
    aquatic_mammals fish flowers food_containers fruit_and_vegetables
    household_electrical_devices household_furniture insects large_carnivores
    large_man-made_outdoor_things large_natural_outdoor_scenes
    large_omnivores_and_herbivores medium_mammals non-insect_invertebrates people
    reptiles small_mammals trees vehicles_1 vehicles_2
    """.split()
)
_FINE = tuple(
    """
    apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy
    bridge bus butterfly camel can castle caterpillar cattle chair chimpanzee clock
    cloud cockroach couch crab crocodile cup dinosaur dolphin elephant flatfish
    forest fox girl hamster house kangaroo keyboard lamp lawn_mower leopard lion
    lizard lobster man maple_tree motorcycle mountain mouse mushroom oak_tree orange
    orchid otter palm_tree pear pickup_truck pine_tree plain plate poppy porcupine
    possum rabbit raccoon ray road rocket rose sea seal shark shrew skunk skyscraper
    snail snake spider squirrel streetcar sunflower sweet_pepper table tank
    telephone television tiger tractor train trout tulip turtle wardrobe whale
    willow_tree wolf woman worm
    """.split()
)


def _layouts(
    archive: str, members: Iterable[str], sheets: Iterable[str]
) -> tuple[base.Layout, ...]:
    """Returns the layouts of the files of one data set."""
    return (
        base.Layout(_ARCHIVE, (archive,)),
        base.Layout(_FOLDER, tuple(members)),
        base.Layout(_SHEETS, (*sheets, "labels.npz")),
    )


def _never_read(*names: str, instead: str) -> dict[str, str]:
    """Returns advice about files of pickled objects."""
    return dict.fromkeys(
        names,
        "pickled Python objects, which are never read because they can run any code:"
        f" get {instead} from the same place",
    )


def _checksums(lines: str) -> dict[str, str]:
    """Returns checksums by file, from lines as `sha256sum` writes them."""
    pairs = (line.split() for line in lines.strip().splitlines())
    return {name: checksum for checksum, name in pairs}


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Cifar(base.FileSource):
    """Color images of 32 x 32 pixels.

    Attributes:
      verify: compare archives and sheets with the checksums of the known ones.
      normalization: "standard", mean and std of the train images' channels, or "half",
        which maps bytes to [-1, 1].
    """

    normalization: Literal["standard", "half"] = "standard"
    archive: ClassVar[str]
    members: ClassVar[Mapping[str, int]]  # of archive or folder: numbers of images
    classes: ClassVar[Mapping[str, tuple[str, ...]]]  # names by label of a record
    mean: ClassVar[tuple[float, float, float]]
    std: ClassVar[tuple[float, float, float]]
    target = "label"  # the one of `classes` that is predicted

    def read(self, located: base.Located) -> datasets.Dataset:
        """Returns `x uint8[S, 32, 32, 3]`, train then test."""
        if located.layout == prepared.LAYOUT:
            x, y = prepared.read_images(self.name, located.paths, [*self.classes])
        elif located.layout == _SHEETS:
            *sheet_paths, label_path = located.paths
            y, sizes = self.sheet_labels(label_path)
            contents = [self.content(path) for path in sheet_paths]
            tiles = list(zip(contents, sheet_paths, sizes, strict=True))
            x = np.concatenate(images.read_sheets(tiles, (32, 32)))
        else:
            x, y = self._read_binary(located)
        mean, std = np.array([self.mean, self.std])
        if self.normalization == "half":
            mean = std = np.full(3, 0.5)
        return datasets.Dataset(
            name=self.name,
            x=x,
            y=y[:, [*self.classes].index(self.target)],
            class_names=self.classes[self.target],
            scale=1 / (255 * std),
            shift=-mean / std,
        )

    @abc.abstractmethod
    def sheet_labels(self, path: Path) -> tuple[np.ndarray, list[int]]:
        """Reads labels `[S, len(classes)]`, and the number of images of each sheet."""

    def _read_binary(self, located: base.Located) -> tuple[np.ndarray, np.ndarray]:
        """Reads images and labels `uint8[S, len(classes)]` of the official files."""
        num_labels = len(self.classes)
        paths, contents = located.paths, map(self.content, located.paths)
        if located.layout == _ARCHIVE:
            (archive,) = located.paths
            content = files.read_bytes(archive)
            self.verify_content(content, archive, archive.name)
            # Members may be as large as the official ones only: an archive may claim
            # anything.
            size = binary.cifar_record(num_labels).itemsize
            sizes = {name: number * size for name, number in self.members.items()}
            members = binary.read_members(content, archive, sizes)
            paths = [archive / name for name in self.members]
            contents = [members[name] for name in self.members]
        parts, numbers = [], self.members.values()
        for path, content, number in zip(paths, contents, numbers, strict=True):
            images, labels = binary.parse_records(content, path, num_labels)
            if self.verify and len(images) != number:
                raise checks.InputError(
                    f"The file '{path}' holds {len(images)} images, but the official"
                    f" one {number} (verify=False accepts it)."
                )
            parts.append((images, labels))
        x, y = map(np.concatenate, zip(*parts, strict=True))
        return x, y


class Cifar10(_Cifar):
    """CIFAR-10: 50,000 + 10,000 images of 10 classes, train then test.

    The WebP sheets hold the first 30,000 train images and the test images.
    """

    name = "cifar10"
    builder = "cifar10"
    archive = "cifar-10-binary.tar.gz"
    members = {
        f"cifar-10-batches-bin/{batch}.bin": 10_000
        for batch in (*(f"data_batch_{k}" for k in range(1, 6)), "test_batch")
    }
    layouts = _layouts(
        archive,
        members,
        [*(f"data_batch_{k}.webp" for k in (1, 2, 3)), "test_batch.webp"],
    )
    classes = {
        "label": tuple(
            "airplane automobile bird cat deer dog frog horse ship truck".split()
        )
    }
    mean = (0.4914, 0.4822, 0.4465)
    std = (0.2470, 0.2435, 0.2616)
    advice = _never_read(
        "cifar-10-python.tar.gz", "cifar-10-batches-py", instead=archive
    )
    # The archive's is the one that tensorflow-datasets lists.
    sha256 = _checksums("""
c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd  cifar-10-binary.tar.gz
7862ba6f532eb26481636723b49a74914d0a8186dde88a2afa9047668b1214b8  data_batch_1.webp
223eb5388d46cd9050b630ada011bb521e9e66e56f8922c4e3c90068bfb4de74  data_batch_2.webp
72340f10fb016c6a6f645cbf5e19c99d4d83b500574b3838a6850d00fc20b354  data_batch_3.webp
ab0dec7042a003e447ef1969363ca6ea01395ed08b74191b1480e5b880c3ffde  test_batch.webp
14cb445a47c1781e5be070e093d9f8ff1169e50e96c99dff09d914d456922913  labels.npz
    """)

    def sheet_labels(self, path: Path) -> tuple[np.ndarray, list[int]]:
        """Reads the labels of batches 1 to 3 of five, and of the test batch."""
        train, test = self.arrays(path, dict.fromkeys(["train", "test"], base.INTEGERS))
        size = len(train) // 5
        labels = np.concatenate([train[: 3 * size], test])
        return labels[:, None], [size, size, size, len(test)]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cifar100(_Cifar):
    """CIFAR-100: 50,000 + 10,000 images of 100 classes, train then test.

    The WebP sheets hold 50 train and 10 test images of every class.

    Attributes:
      verify: compare archives and sheets with the checksums of the known ones.
      normalization: "standard", mean and std of the train images' channels, or "half",
        which maps bytes to [-1, 1].
      labels: "fine", 100 classes, or "coarse", 20 groups of five classes.
    """

    labels: Literal["fine", "coarse"] = "fine"
    name = "cifar100"
    more_folders = ("cifar100_subset",)
    builder = "cifar100"
    archive = "cifar-100-binary.tar.gz"
    members = {
        "cifar-100-binary/train.bin": 50_000,
        "cifar-100-binary/test.bin": 10_000,
    }
    layouts = _layouts(archive, members, ("train.webp", "test.webp"))
    classes = {"coarse_label": _COARSE, "label": _FINE}
    mean = (0.5071, 0.4865, 0.4409)
    std = (0.2673, 0.2564, 0.2762)
    advice = _never_read("cifar-100-python.tar.gz", "cifar-100-python", instead=archive)
    # The archive's is the one that tensorflow-datasets lists.
    sha256 = _checksums("""
58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec cifar-100-binary.tar.gz
1964e870451aa58370aaaf1d60cdd03c3d51938c603e0a26c1e4c6d75df8fc76  train.webp
05fea4886d56e20291f0bb8899a190acb585f1b054c93e74562f2599c2b7fc7e  test.webp
a4d21359ea6344da96f89a4e3b3125720143ee8408389ca1ada1ae583d2b0de7  labels.npz
    """)

    @property
    def target(self) -> str:
        """Returns the name of the predicted label."""
        return "coarse_label" if self.labels == "coarse" else "label"

    def sheet_labels(self, path: Path) -> tuple[np.ndarray, list[int]]:
        """Reads the fine labels and their groups."""
        kinds = dict.fromkeys(["train", "test", "fine_to_coarse"], base.INTEGERS)
        train, test, coarse = self.arrays(path, kinds)
        fine = np.concatenate([train, test])
        if fine.min(initial=0) < 0 or fine.max(initial=0) >= len(coarse):
            raise checks.InputError(
                f"The file '{path}' has fine labels from {fine.min()} to {fine.max()},"
                f" expected whole numbers from 0 to {len(coarse) - 1}."
            )
        return np.stack([coarse[fine], fine], axis=1), [len(train), len(test)]

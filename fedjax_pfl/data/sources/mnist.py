"""The MNIST family: grey images of 28 x 28 pixels."""

import dataclasses
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np

from fedjax_pfl.core import checks
from fedjax_pfl.data import dataset as datasets
from fedjax_pfl.data.readers import binary
from fedjax_pfl.data.sources import base, prepared

__all__ = ["FashionMnist", "MedicalMnist", "Mnist"]

_MEAN, _STD = 0.1307, 0.3081  # of MNIST's pixels in [0, 1]
_SMALL_STD = 0.001  # added to that of a pixel, of bytes from 0 to 255
_MEDICAL = "medical_mnist_28x28.npz"
_TRAIN = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte")
_TEST = ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")


@dataclasses.dataclass(frozen=True, kw_only=True)
class _IdxImages(base.FileSource):
    """Images in four idx files, or prepared by tensorflow-datasets.

    Attributes:
      verify: compare the idx files with the checksums of the official ones.
      standardize: `global` shows pixels with MNIST's mean 0.1307 and std 0.3081 as
        `(byte / 255 - mean) / std`; `pixel` as `(byte - mean) / (std + 0.001)` with the
        mean and the std of the bytes of each pixel in all images, train and test;
        `unit` as `byte / 255`.
    """

    standardize: Literal["global", "pixel", "unit"] = "global"
    layouts = (base.Layout("idx", _TRAIN + _TEST),)
    class_names: ClassVar[tuple[str, ...]]

    def read(self, located: base.Located) -> datasets.Dataset:
        """Returns the train part followed by the test part, `x uint8[S, 28, 28]`."""
        if located.layout == prepared.LAYOUT:
            x, y = prepared.read_images(self.name, located.paths, ("label",))
            x, y = x[..., 0], y[:, 0]
        else:
            x, y = self._read_idx(located.paths)
        scale, shift = 1 / (255 * _STD), -_MEAN / _STD
        if self.standardize == "unit":
            scale, shift = 1 / 255, 0.0
        elif self.standardize == "pixel":
            scale, shift = _per_pixel(x)
        return datasets.Dataset(
            name=self.name,
            x=x,
            y=y,
            class_names=self.class_names,
            scale=scale,
            shift=shift,
        )

    def _read_idx(self, paths: tuple[Path, ...]) -> tuple[np.ndarray, np.ndarray]:
        """Reads images and labels of the four files, train then test."""
        parts = []
        for image_path, label_path in zip(paths[::2], paths[1::2], strict=True):
            images = binary.parse_idx(self.content(image_path), image_path, 3)
            labels = binary.parse_idx(self.content(label_path), label_path, 1)
            shape = (len(labels), 28, 28)
            if images.shape != shape:
                raise checks.InputError(
                    f"Expected {shape} images in '{image_path}', got {images.shape}."
                )
            parts.append((images, labels))
        x, y = map(np.concatenate, zip(*parts, strict=True))
        return x, y


class Mnist(_IdxImages):
    """MNIST: 60,000 + 10,000 handwritten digits, normalized by mean and std."""

    name = "mnist"
    builder = "mnist"
    class_names = tuple(map(str, range(10)))
    sha256 = {
        _TRAIN[0]: "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
        _TRAIN[1]: "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
        _TEST[0]: "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
        _TEST[1]: "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
    }


class FashionMnist(_IdxImages):
    """Fashion-MNIST: 60,000 + 10,000 garments; `global` uses MNIST's constants."""

    name = "fashion_mnist"
    builder = "fashion_mnist"
    class_names = (
        *"T-shirt/top Trouser Pullover Dress Coat Sandal Shirt Sneaker Bag".split(),
        "Ankle boot",
    )
    sha256 = {
        _TRAIN[0]: "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
        _TRAIN[1]: "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
        _TEST[0]: "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
        _TEST[1]: "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
    }


@dataclasses.dataclass(frozen=True, kw_only=True)
class MedicalMnist(base.FileSource):
    """Medical MNIST: 58,954 grey images of 28 x 28 pixels in 6 classes.

    They are sorted by class, and there is no official split. The file holds
    `images uint8[S, 28, 28]`, `labels int[S]` and `names`; one made otherwise is read
    with `verify=False`.

    Attributes:
      verify: compare the file with the checksum of the known one.
    """

    name = "medical_mnist"
    layouts = (base.Layout("npz", (_MEDICAL,)),)
    sha256 = {
        _MEDICAL: "fb0b95c7270b0183fa76f0ef61536ae618f67ab078baa3490ef0291ac5e95ba2"
    }

    def read(self, located: base.Located) -> datasets.Dataset:
        """Returns `x uint8[S, 28, 28]`."""
        mean, std = 0.3, 0.3  # of pixels in [0, 1], as in FLAME's code
        images, labels, class_names = self.arrays(
            located.paths[0],
            {"images": base.IMAGES, "labels": base.INTEGERS, "names": base.TEXTS},
        )
        return datasets.Dataset(
            name=self.name,
            x=images,
            y=labels,
            class_names=tuple(class_names.tolist()),
            scale=1 / (255 * std),
            shift=-mean / std,
        )


def _per_pixel(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns scale and shift `[28, 28]` that standardize each pixel."""
    count = len(x)
    # Sums of bytes and of their squares are exact in whole numbers.
    total = x.sum(axis=0, dtype=np.int64)
    squares = np.einsum("s...,s...->...", x, x, dtype=np.int64)
    std = np.sqrt(count * squares - total**2) / count
    scale = 1 / (std + _SMALL_STD)
    return scale, -total / count * scale

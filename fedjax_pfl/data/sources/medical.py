"""Medical MNIST (MedNIST)."""

import dataclasses
from collections.abc import Mapping
from typing import ClassVar

import numpy as np

from fedjax_pfl.core import checks
from fedjax_pfl.data import dataset as datasets
from fedjax_pfl.data.sources import base

__all__ = ["MedicalMnist"]

_MEAN, _STD = 0.3, 0.3  # of pixels in [0, 1], as in FLAME's code
_FILE = "medical_mnist_28x28.npz"
_IMAGE_SHAPE = (28, 28)


@dataclasses.dataclass(frozen=True, kw_only=True)
class MedicalMnist(base.FileSource):
    """Medical MNIST: 58,954 grey images of 28 x 28 pixels in 6 classes.

    They are sorted by class, and there is no official split. The file holds
    `images uint8[S, 28, 28]`, `labels int[S]` and `names`; one made otherwise is read
    with `verify=False`.

    Attributes:
      verify: compare the file with the checksum of the known one.
    """

    name: ClassVar[str] = "medical_mnist"
    folders: ClassVar[tuple[str, ...]] = ("medical_mnist",)
    layouts: ClassVar[tuple[base.Layout, ...]] = (base.Layout("npz", (_FILE,)),)
    sha256: ClassVar[Mapping[str, str]] = {
        _FILE: "fb0b95c7270b0183fa76f0ef61536ae618f67ab078baa3490ef0291ac5e95ba2"
    }

    def read(self, located: base.Located) -> datasets.Dataset:
        """Returns `x uint8[S, 28, 28]`."""
        (path,) = located.paths
        images, labels, names = self.arrays(
            path, {"images": ("u", 3), "labels": ("iu", 1), "names": ("U", 1)}
        )
        if images.dtype != np.uint8 or images.shape[1:] != _IMAGE_SHAPE:
            raise checks.InputError(
                f"The array 'images' of '{path}' is {images.dtype} of shape"
                f" {images.shape}, expected uint8 images of shape {_IMAGE_SHAPE}."
            )
        return datasets.Dataset(
            name=self.name,
            x=images,
            y=labels,
            num_classes=len(names),
            class_names=tuple(names.tolist()),
            scale=1 / (255 * _STD),
            shift=-_MEAN / _STD,
        )

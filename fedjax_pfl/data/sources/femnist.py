"""FEMNIST: handwritten characters by writer."""

import dataclasses
import pathlib
import string
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from fedjax_pfl.core import checks
from fedjax_pfl.data import dataset as datasets
from fedjax_pfl.data.readers import leaf
from fedjax_pfl.data.sources import base

__all__ = ["Femnist"]

_FILE = "leaf_femnist_105_writers.npz"
_CLASSES = tuple(string.digits + string.ascii_uppercase + string.ascii_lowercase)
_KEPT = {  # the labels of each option, relabelled from 0
    "all": range(len(_CLASSES)),
    "digits": range(10),
    "letters": range(_CLASSES.index("a"), _CLASSES.index("j") + 1),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Femnist(base.FileSource):
    """FEMNIST of LEAF: 62 classes of characters; clients are the writers.

    Images are kept as LEAF has them: the background is white (255) and the ink dark,
    the reverse of MNIST. They are shown as `byte / 255`, LEAF's own values.

    Attributes:
      verify: compare the file of 105 writers with its checksum. LEAF's JSON files have
        none: their names tell how they were made, not what is in them.
      classes: "all"; "digits", which drops the letters; or "letters", the lower-case
        a to j alone, as classes 0 to 9.
    """

    classes: str = "all"
    name: ClassVar[str] = "femnist"
    folders: ClassVar[tuple[str, ...]] = ("femnist",)
    layouts: ClassVar[tuple[base.Layout, ...]] = (
        base.Layout("npz", (_FILE,)),
        base.Layout("LEAF train/ and test/", (), ("train/*.json", "test/*.json")),
        base.Layout(
            "LEAF leaf_json/",
            (),
            (
                "leaf_json/*.json",
                "leaf_json/**/train/*.json",
                "leaf_json/**/test/*.json",
            ),
        ),
    )
    sha256: ClassVar[Mapping[str, str]] = {
        _FILE: "f6938dd9a2d671300b975f1338e522dc21c792f6c9aa2b337894344622d6b3f8"
    }

    def __post_init__(self):
        super().__post_init__()
        checks.known(self.classes, _KEPT, "classes")

    def read(self, located: base.Located) -> datasets.Dataset:
        """Returns `x uint8[S, 28, 28]`, the writers' examples one after the other."""
        read = self._read_npz if located.layout == "npz" else _read_leaf
        x, y, client, names = read(located.paths)
        labels = _KEPT[self.classes]
        kept = np.flatnonzero((labels.start <= y) & (y < labels.stop))
        kept = kept[np.argsort(client[kept], kind="stable")]
        writers, client = np.unique(client[kept], return_inverse=True)
        return datasets.Dataset(
            name=self.name,
            x=x[kept],
            y=y[kept].astype(np.int64) - labels.start,
            num_classes=len(labels),
            class_names=_CLASSES[labels.start : labels.stop],
            client=client,
            client_names=tuple(names[writer] for writer in writers),
            scale=1 / 255,
        )

    def _read_npz(
        self, paths: tuple[pathlib.Path, ...]
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, list[str]]:
        """Images, labels, writers and the writers' names of the `.npz` file."""
        (path,) = paths
        images, labels, writer, names = self.arrays(
            path,
            {
                "images": ("u", 3),
                "labels": ("iu", 1),
                "writer": ("iu", 1),
                "writer_names": ("U", 1),
            },
        )
        if (
            images.dtype != np.uint8
            or images.shape != (len(labels), 28, 28)
            or writer.shape != labels.shape
            or not _all_below(writer, len(names))
            or not _all_below(labels, len(_CLASSES))
        ):
            raise checks.InputError(
                f"Expected '{path}' to hold uint8 images of shape ({len(labels)}, 28,"
                f" 28), labels from 0 to {len(_CLASSES) - 1} and writers from 0 to"
                f" {len(names) - 1}, but they differ."
            )
        return images, labels, writer, names.tolist()


def _all_below(values: np.ndarray, limit: int) -> bool:
    """Whether all values index something of that length."""
    return 0 <= values.min(initial=0) <= values.max(initial=0) < limit


def _read_leaf(
    paths: tuple[pathlib.Path, ...],
) -> tuple[np.ndarray, np.ndarray, np.ndarray, list[str]]:
    """Images, labels, writers and the writers' names of LEAF's JSON files."""
    users = leaf.read_leaf(paths)
    if not users:
        raise checks.InputError(f"The file '{paths[0]}' and its like hold no examples.")
    x = [_images(user, pixels) for user, (pixels, _) in users.items()]
    y = [_labels(user, labels) for user, (_, labels) in users.items()]
    client = np.repeat(np.arange(len(users)), [len(labels) for labels in y])
    return np.concatenate(x), np.concatenate(y), client, list(users)


def _images(user: str, pixels: list[Any]) -> np.ndarray:
    """Images `uint8[S, 28, 28]` of one user from lists of 784 numbers in [0, 1]."""
    try:
        values = np.array(pixels)
    except ValueError:  # lists of different lengths
        values = np.array(None)
    if (
        values.dtype.kind not in "fiu"
        or values.shape != (len(pixels), 784)
        or not (values.min() >= 0 and values.max() <= 1)  # also where one is NaN
    ):
        raise checks.InputError(
            f"Expected x of user {user!r} of femnist to be lists of 784 numbers from 0"
            " to 1."
        )
    return np.round(values * 255).astype(np.uint8).reshape(-1, 28, 28)


def _labels(user: str, labels: list[Any]) -> np.ndarray:
    """Labels of one user."""
    for label in labels:
        if type(label) is not int or not 0 <= label < len(_CLASSES):
            raise checks.InputError(
                f"Expected y of user {user!r} of femnist to be whole numbers from 0 to"
                f" {len(_CLASSES) - 1}, got {repr(label)[:60]}."
            )
    return np.array(labels)

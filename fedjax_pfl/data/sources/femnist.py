"""FEMNIST: handwritten characters by writer."""

import dataclasses
import pathlib
import string
from typing import Any, Literal

import numpy as np

from fedjax_pfl.core import checks
from fedjax_pfl.data import dataset as datasets
from fedjax_pfl.data.readers import leaf
from fedjax_pfl.data.sources import base

__all__ = ["Femnist"]

_FILE = "leaf_femnist_105_writers.npz"
_CLASSES = tuple(string.digits + string.ascii_uppercase + string.ascii_lowercase)
_LABELS = {  # the labels of each option, relabelled from 0
    "all": range(len(_CLASSES)),
    "digits": range(10),
    "letters": range(_CLASSES.index("a"), _CLASSES.index("j") + 1),
}

# Images, labels, writers and the writers' names.
_Examples = tuple[np.ndarray, np.ndarray, np.ndarray, list[str]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Femnist(base.FileSource):
    """FEMNIST of LEAF: 62 classes of characters; clients are the writers.

    Images are kept as LEAF has them: the background is white (255) and the ink dark,
    the reverse of MNIST. They are shown as `byte / 255`, LEAF's own values.

    Attributes:
      verify: compare the file of 105 writers with its checksum. LEAF's JSON files have
        none: their names tell how they were made, not their content.
      classes: "all"; "digits", which drops the letters; or "letters", the lower-case
        a to j alone, as classes 0 to 9.
    """

    classes: Literal["all", "digits", "letters"] = "all"
    name = "femnist"
    layouts = (
        base.Layout("npz", (_FILE,)),
        base.Layout("LEAF train/ and test/", (), ("train/*.json", "test/*.json")),
        base.Layout(
            "LEAF leaf_json/",
            (),
            tuple(f"leaf_json/{p}.json" for p in ("*", "**/train/*", "**/test/*")),
        ),
    )
    sha256 = {_FILE: "f6938dd9a2d671300b975f1338e522dc21c792f6c9aa2b337894344622d6b3f8"}

    def read(self, located: base.Located) -> datasets.Dataset:
        """Returns `x uint8[S, 28, 28]`, the writers' examples one after the other."""
        if located.layout == "npz":
            x, y, client, names = self._read_npz(located.paths[0])
        else:
            x, y, client, names = _read_leaf(located.paths)
        labels = _LABELS[self.classes]
        rows = np.flatnonzero((labels.start <= y) & (y < labels.stop))
        rows = rows[np.argsort(client[rows], kind="stable")]
        writers, client = np.unique(client[rows], return_inverse=True)
        return datasets.Dataset(
            name=self.name,
            x=x[rows],
            y=y[rows].astype(np.int64) - labels.start,
            class_names=_CLASSES[labels.start : labels.stop],
            client=client,
            client_names=tuple(names[writer] for writer in writers),
            scale=1 / 255,
        )

    def _read_npz(self, path: pathlib.Path) -> _Examples:
        """Reads the `.npz` file."""
        kinds = {"images": base.IMAGES, "labels": base.INTEGERS}
        kinds |= {"writer": base.INTEGERS, "writer_names": base.TEXTS}
        images, labels, writer, names = self.arrays(path, kinds)
        if (
            not len(images) == len(labels) == len(writer)
            or not _all_below(writer, len(names))
            or not _all_below(labels, len(_CLASSES))
        ):
            raise checks.InputError(
                f"Expected {len(images)} labels below {len(_CLASSES)} and writers below"
                f" {len(names)} in '{path}'."
            )
        return images, labels, writer, names.tolist()


def _all_below(values: np.ndarray, limit: int) -> bool:
    """Tells whether all values are indices below a limit."""
    return 0 <= values.min(initial=0) <= values.max(initial=0) < limit


def _read_leaf(paths: tuple[pathlib.Path, ...]) -> _Examples:
    """Reads LEAF's JSON files."""
    users = leaf.read_leaf(paths)
    if not users:
        raise checks.InputError(f"The file '{paths[0]}' and its like hold no examples.")
    x = [_images(user, pixels) for user, (pixels, _) in users.items()]
    y = [_labels(user, labels) for user, (_, labels) in users.items()]
    return (
        np.concatenate(x),
        np.concatenate(y),
        datasets.owners(map(len, y)),
        list(users),
    )


def _images(user: str, pixels: list[Any]) -> np.ndarray:
    """Returns images `uint8[S, 28, 28]` of lists of 784 numbers in [0, 1]."""
    values = datasets.as_array(pixels)
    if (
        values.dtype.kind not in "fiu"
        or values.shape != (len(pixels), 784)
        or not (values.min() >= 0 and values.max() <= 1)  # also where one is NaN
    ):
        raise checks.InputError(
            f"Expected x of user {user!r} to be lists of 784 numbers from 0 to 1."
        )
    return np.round(values * 255).astype(np.uint8).reshape(-1, 28, 28)


def _labels(user: str, labels: list[Any]) -> np.ndarray:
    """Returns the labels of one user, checked."""
    for label in labels:
        if type(label) is not int or not 0 <= label < len(_CLASSES):
            raise checks.InputError(
                f"Expected y of user {user!r} of femnist to be whole numbers from 0 to"
                f" {len(_CLASSES) - 1}, got {repr(label)[:60]}."
            )
    return np.array(labels)

"""Digits, which need no file."""

import dataclasses
import functools
from typing import Any, ClassVar

import numpy as np

from fedjax_pfl.data import dataset as datasets

__all__ = ["Digits"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Digits:
    """The 1,797 handwritten digits of 8 x 8 pixels that ship inside scikit-learn."""

    name: ClassVar[str] = "digits"

    def load(
        self, *, data_dir: str | None, seed: int, num_clients: int | None
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
        class_names=tuple(map(str, range(10))),
        scale=1 / 16,
    )

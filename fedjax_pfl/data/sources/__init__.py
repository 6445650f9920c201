"""Named data sets: embedded, from known files, a user's own, and generated ones.

`DATASETS` maps command-line names to frozen dataclasses; their fields are the options.
"""

import dataclasses
import os
import time
from typing import Any

import numpy as np

from fedjax_pfl.core import checks, struct
from fedjax_pfl.data import dataset as datasets
from fedjax_pfl.data import synthetic, synthetic_logistic, synthetic_text
from fedjax_pfl.data.sources import base
from fedjax_pfl.data.sources.base import MissingFilesError
from fedjax_pfl.data.sources.cifar import Cifar10, Cifar100
from fedjax_pfl.data.sources.embedded import Digits
from fedjax_pfl.data.sources.leaf_sets import Femnist, Sent140
from fedjax_pfl.data.sources.mnist import FashionMnist, MedicalMnist, Mnist
from fedjax_pfl.data.sources.sequences import Shakespeare, Stocks
from fedjax_pfl.data.sources.user import Csv, ImageFolder, LeafJson, Npz

# The classes of the data sets are the values of `DATASETS`.
__all__ = [
    "DATASETS",
    "WITHOUT_CLIENTS",
    "Inspection",
    "MissingFilesError",
    "check",
    "load_dataset",
    "source",
]

DATASETS: dict[str, Any] = {
    kind.name: kind
    for kind in (
        Digits,
        Mnist,
        FashionMnist,
        Cifar10,
        Cifar100,
        MedicalMnist,
        Femnist,
        Sent140,
        Shakespeare,
        Stocks,
        Csv,
        Npz,
        ImageFolder,
        LeafJson,
        synthetic.Quadratic,
        synthetic.LinearRegression,
        synthetic.GaussianClasses,
        synthetic.ClusteredClasses,
        synthetic_logistic.Synthetic,
        synthetic_text.SyntheticSentiment,
    )
}

_WITHOUT = (Digits, Mnist, FashionMnist, Cifar10, Cifar100, MedicalMnist)
WITHOUT_CLIENTS = frozenset(kind.name for kind in _WITHOUT)
"""Names of data sets that have no natural clients."""


def source(name: str, **options: Any) -> datasets.Source:
    """Creates the source of a data set by its name in `DATASETS`."""
    checks.known(name, DATASETS, "data set")
    kind = DATASETS[name]
    allowed = [field.name for field in dataclasses.fields(kind)]
    for option in options:
        checks.known(option, allowed, f"option of {name}")
    return kind(**options)


@struct.checked_call
def load_dataset(
    name: str,
    data_dir: str | os.PathLike[str] | None = None,
    seed: int = 0,
    *,
    num_clients: int | None = 20,
    **options: Any,
) -> datasets.Dataset:
    """Loads or generates a named data set.

    Args:
      name: key of `DATASETS`.
      data_dir: directory of data files; the environment variable `FEDJAX_PFL_DATA` by
        default. Embedded and generated sets need none.
      seed: of generated sets.
      num_clients: clients of generated sets; None if the set has its own.
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
    checks.whole("seed", seed, at_least=0, at_most=checks.MAX_SEED)
    if num_clients is not None:
        checks.positive_int("num_clients", num_clients)
    return source(name, **options).load(
        data_dir=None if data_dir is None else str(data_dir),
        seed=seed,
        num_clients=num_clients,
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Inspection:
    """State of one named data set in a directory."""

    name: str  # name of the data set
    status: str  # "ok", "missing" or "damaged"
    layout: str | None = None  # layout of the files, or None if they are missing
    num_samples: int | None = None  # number of examples, or None unless ok
    num_classes: int | None = None  # number of classes, or None
    num_clients: int | None = None  # number of natural clients, or None without any
    seconds: float = 0.0  # time taken
    problem: str | None = None  # message of the error, or None


def check(data_dir: str | os.PathLike[str] | None = None) -> list[Inspection]:
    """Reads every data set of files that a directory holds, without the cache."""
    base.data_directory(data_dir)
    place = None if data_dir is None else str(data_dir)
    inspections = []
    for kind in DATASETS.values():
        if not issubclass(kind, base.FileSource):
            continue
        facts: dict[str, Any] = {"name": kind.name, "status": "ok"}
        start, source = time.perf_counter(), kind()
        try:
            # `read`, not `load`: the cache would hide damage since the last reading.
            located = source.locate(place)
            facts["layout"] = located.layout
            data = source.read(located)
            facts |= {"num_samples": data.num_samples, "num_classes": data.num_classes}
            if data.client is not None:
                facts["num_clients"] = len(np.unique(data.client))
        except checks.InputError as error:
            is_missing = isinstance(error, MissingFilesError)
            facts["status"] = "missing" if is_missing else "damaged"
            facts["problem"] = str(error)
        seconds = time.perf_counter() - start
        inspections.append(Inspection(seconds=seconds, **facts))
    return inspections

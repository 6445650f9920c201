"""Named data sets: embedded, from known files, a user's own, and generated ones.

`DATASETS` maps command-line names to frozen dataclasses whose fields are the options.
"""

import dataclasses
import os
from typing import Any

from fedjax_pfl.core import checks
from fedjax_pfl.data import dataset as datasets
from fedjax_pfl.data import synthetic, synthetic_logistic, synthetic_text
from fedjax_pfl.data.sources import base
from fedjax_pfl.data.sources.base import MissingFilesError
from fedjax_pfl.data.sources.cifar import Cifar10, Cifar100
from fedjax_pfl.data.sources.embedded import Digits
from fedjax_pfl.data.sources.femnist import Femnist
from fedjax_pfl.data.sources.inspection import Found, inspect
from fedjax_pfl.data.sources.medical import MedicalMnist
from fedjax_pfl.data.sources.mnist import FashionMnist, Mnist
from fedjax_pfl.data.sources.sent140 import Sent140
from fedjax_pfl.data.sources.shakespeare import Shakespeare
from fedjax_pfl.data.sources.stocks import Stocks
from fedjax_pfl.data.sources.user import Csv, ImageFolder, LeafJson, Npz

__all__ = [
    "DATASETS",
    "Cifar10",
    "Cifar100",
    "Csv",
    "Digits",
    "FashionMnist",
    "Femnist",
    "Found",
    "ImageFolder",
    "LeafJson",
    "MedicalMnist",
    "MissingFilesError",
    "Mnist",
    "Npz",
    "Sent140",
    "Shakespeare",
    "Stocks",
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
    num_clients: int | None = 20,
    **options: Any,
) -> datasets.Dataset:
    """Loads or generates a named data set.

    Args:
      name: key of `DATASETS`.
      data_dir: directory of data files; the environment variable `FEDJAX_PFL_DATA` by
        default. Embedded and generated sets need none.
      seed: of generated sets.
      num_clients: clients of generated sets; None where the set has its own.
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


def check(data_dir: str | os.PathLike[str] | None = None) -> list[Found]:
    """Checks which named data sets a directory holds, by reading all of them.

    Args:
      data_dir: directory of data files; the environment's by default.

    Returns:
      What was found of every known data set that is read from files, in the order of
      `DATASETS`.

    Raises:
      InputError: if the directory does not exist or cannot be read.
    """
    base.data_directory(data_dir)
    kinds = [kind for kind in DATASETS.values() if issubclass(kind, base.FileSource)]
    return [inspect(kind, data_dir) for kind in kinds]

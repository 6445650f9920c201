"""Fetches data sets from the network by tensorflow-datasets, with its checksums."""

import urllib.error
import urllib.request
from pathlib import Path

from fedjax_pfl.core import checks
from fedjax_pfl.data import dataset as datasets
from fedjax_pfl.data import sources
from fedjax_pfl.data.sources import base, prepared

__all__ = ["FETCHED", "fetch"]

FETCHED = ("mnist", "fashion_mnist", "cifar10")
"""Names of the data sets that are fetched."""
_HOST = "https://storage.googleapis.com"  # where tensorflow-datasets looks first
_SECONDS = 10


def fetch(name: str, data_dir: str | None = None) -> datasets.Dataset:
    """Downloads a data set into a directory, where readers find it, and reads it.

    Args:
      name: one of `FETCHED`.
      data_dir: an existing directory, or None for the environment's.

    Raises:
      InputError: without a directory, tensorflow-datasets or a network, or for files
        of another data set, in one sentence.
    """
    checks.known(name, FETCHED, "data set that can be fetched")
    # Before the download, which takes minutes.
    place = base.data_directory(data_dir)
    if place is None:
        raise checks.InputError(
            f"Expected a directory for {name!r}: pass --data-dir (data_dir=...) or set"
            f" {base.DATA_DIR_VARIABLE}."
        )
    _download(name, place)
    return sources.load_dataset(name, data_dir=str(place))


def _download(name: str, place: Path) -> None:
    """Downloads, checks and writes a data set with tensorflow-datasets."""
    by_hand = f"put its files into '{place}', as `data check` lists them"
    try:
        _check_network()
        prepared.download(sources.DATASETS[name].builder, place)
    except ImportError as error:
        raise checks.InputError(
            f"Fetching {name!r} needs tensorflow-datasets"
            f" ({checks.one_line(str(error))}):"
            f' pip install "fedjax_pfl[data]"; or {by_hand}.'
        ) from error
    except Exception as error:  # of networks, checksums and disks, of many classes
        raise checks.InputError(
            f"Cannot fetch {name!r}, which needs a network"
            f" ({type(error).__name__}); or {by_hand}."
        ) from error


def _check_network() -> None:
    """Raises an OSError without a network, where downloads would try for minutes."""
    try:
        urllib.request.urlopen(_HOST, timeout=_SECONDS).close()
    except urllib.error.HTTPError:  # an answer
        return

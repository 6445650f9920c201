"""Digits that ship with scikit-learn."""

import dataclasses
import gzip
import hashlib
import io
import zlib
from importlib import util
from pathlib import Path, PurePath

import numpy as np

from fedjax_pfl.core import checks
from fedjax_pfl.data import dataset as datasets

__all__ = ["Digits"]

_FILE = PurePath("datasets", "data", "digits.csv.gz")
_SHA256 = "6ebb3d2fee246a4e99363262ddf8a00a3c41bee6014c373ed9d9216ba7f651b8"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Digits:
    """The 1,797 handwritten digits of 8 x 8 pixels that ship inside scikit-learn."""

    name = "digits"

    def load(
        self, *, data_dir: str | None, seed: int, num_clients: int | None
    ) -> datasets.Dataset:
        """Returns `x uint8[1797, 8, 8]` with values 0 to 16, shown as `x / 16`."""
        return _digits()


@datasets.cache(1)
def _digits() -> datasets.Dataset:
    """Reads the digits once per process."""
    rows = np.loadtxt(io.BytesIO(_content()), np.uint8, delimiter=",")  # [1797, 65]
    return datasets.Dataset(
        name=Digits.name,
        x=rows[:, :-1].reshape(-1, 8, 8),
        y=rows[:, -1].astype(np.int64),
        class_names=tuple(map(str, range(10))),
        scale=1 / 16,
    )


def _content() -> bytes:
    """Unpacks the file without importing scikit-learn, which takes seconds."""
    spec = util.find_spec("sklearn")
    folders = () if spec is None else spec.submodule_search_locations or ()
    reason = "scikit-learn is not installed"
    for path in (Path(folder) / _FILE for folder in folders):
        try:
            content = gzip.decompress(path.read_bytes())
        except (OSError, EOFError, zlib.error) as error:
            reason = f"'{path}' cannot be read: {error}"
            continue
        if hashlib.sha256(content).hexdigest() == _SHA256:
            return content
        reason = f"'{path}' differs from the known file"
    raise checks.InputError(
        f"Expected the digits that ship inside scikit-learn, but {reason}; install it"
        " again with python -m pip install --force-reinstall scikit-learn."
    )

"""Names in a directory of trained models, and trees as named arrays."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import jax
import numpy as np

from fedjax_pfl import core
from fedjax_pfl.core import checks, tree_paths
from fedjax_pfl.results import documents, plain_files
from fedjax_pfl.results.plain_files import plain_name

__all__ = [
    "CLIENTS",
    "About",
    "DIRECTORY",
    "FORMAT",
    "HEADER",
    "TABLE",
    "file_name",
    "is_file_name",
    "named",
    "nested",
    "prefixed",
    "write",
]

FORMAT = "fedjax_pfl model 1"
HEADER = "fedjax_pfl"
"""One name: with several, their order in the file would be random."""
TABLE = "models.csv"
DIRECTORY = "models"
"""Its name in the result of a command."""
CLIENTS = "clients"
_PARAMS = "params"
_MAX_DEPTH = 50
_FILE = re.compile(r"\d{3,}-[a-z0-9-]+/\d{3,}-[a-z0-9-]+\.safetensors")


class About(documents.Document):
    """Header of a file."""

    format: Literal["fedjax_pfl model 1"]
    model: str
    status: str
    settings: dict[str, Any]
    rounds: int | list[int] | None = None
    names: list[str] | None = None
    target_units: tuple[float, float] | None = None


def file_name(group: int, algorithm: str, point: int, model: str) -> str:
    """Returns the path of one file below the directory."""
    folder = f"{group:03d}-{plain_name(algorithm)}"
    return f"{folder}/{point:03d}-{plain_name(model)}.safetensors"


def is_file_name(text: str) -> bool:
    """Returns whether a text has the form of `file_name`."""
    return _FILE.fullmatch(text) is not None


def named(params: core.Params) -> dict[str, Any]:
    """Leaves of parameters by `params/<path>`."""
    paths = jax.tree.leaves(tree_paths.names(params))
    full = [f"{_PARAMS}/{path}" if path else _PARAMS for path in paths]
    if len(set(full)) < len(full):
        raise checks.InputError(
            f"Expected parameters whose leaves have paths of their own, got {paths}."
        )
    return dict(zip(full, jax.tree.leaves(params), strict=True))


def prefixed(arrays: Mapping[str, Any]) -> dict[str, Any]:
    """Returns arrays of another program under names like those of `named`."""
    if any(name.partition("/")[0] == _PARAMS for name in arrays):
        return dict(arrays)
    return {f"{_PARAMS}/{name}": value for name, value in arrays.items()}


def nested(arrays: Mapping[str, Any]) -> core.Params:
    """Inverts `named`, `params/<path>`; containers other than dicts become dicts."""
    if arrays.keys() == {_PARAMS}:
        return arrays[_PARAMS]
    paths = {tuple(name.split("/")): value for name, value in arrays.items()}
    inner = {path[:depth] for path in paths for depth in range(len(path))}
    # Names may come from a stranger: a leaf that is also a folder, or a deep path.
    for path in paths:
        if path[0] != _PARAMS or path in inner or len(path) > _MAX_DEPTH:
            raise ValueError(f"it has an array {'/'.join(path)[:80]!r}")
    return tree_paths.nested((path[1:], value) for path, value in paths.items())


def write(path: Path, arrays: dict[str, np.ndarray], header: dict[str, str]) -> None:
    """Writes arrays into a new file, atomically."""
    import safetensors  # only where something is saved
    import safetensors.numpy

    with plain_files.created(path) as temporary:
        try:
            safetensors.numpy.save_file(arrays, temporary, header)
        except safetensors.SafetensorError as error:  # how it reports a full disk
            raise OSError(None, " ".join(str(error).split())) from error
        # Files of safetensors are private, but readers of the directory need them.
        temporary.chmod(path.parent.stat().st_mode & 0o666)

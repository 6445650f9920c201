"""Names in a directory of trained models, and how trees become named arrays."""

import re
from collections.abc import Mapping
from typing import Any

import jax

from fedjax_pfl.core import checks, tree_paths

__all__ = [
    "CLIENTS",
    "DIRECTORY",
    "FORMAT",
    "HEADER",
    "TABLE",
    "file_name",
    "is_file_name",
    "named",
    "nested",
]

FORMAT = "fedjax_pfl model 1"
HEADER = "fedjax_pfl"
"""One name: with several, their order in the file would be random."""
TABLE = "models.csv"
DIRECTORY = "models"
"""Its name in the result of a command."""
CLIENTS = "clients"
_PARAMS = "params"
_FILE = re.compile(r"\d{3,}-[a-z0-9-]+/\d{3,}-[a-z0-9-]+\.safetensors")


def file_name(group: int, algorithm: str, point: int, model: str) -> str:
    """Returns the path of one file below the directory."""
    return f"{group:03d}-{_plain(algorithm)}/{point:03d}-{_plain(model)}.safetensors"


def is_file_name(text: str) -> bool:
    """Returns whether `file_name` makes such paths."""
    return _FILE.fullmatch(text) is not None


def _plain(name: str) -> str:
    """Returns a name in letters that every file system has."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") or "model"


def named(params: Any) -> dict[str, Any]:
    """Leaves of parameters by `params/<path>`.

    Raises:
      InputError: if two leaves have one path.
    """
    paths = jax.tree.leaves(tree_paths.names(params))
    full = [f"{_PARAMS}/{path}" if path else _PARAMS for path in paths]
    if len(set(full)) < len(full):
        raise checks.InputError(
            f"Expected parameters whose leaves have paths of their own, got {paths}."
        )
    return dict(zip(full, jax.tree.leaves(params), strict=True))


def nested(arrays: Mapping[str, Any]) -> Any:
    """Inverts `named` for trees of dicts; other containers become dicts of their parts.

    Args:
      arrays: by `params/<path>`.

    Returns:
      The tree.
    """
    if _PARAMS in arrays:
        return arrays[_PARAMS]
    return tree_paths.nested((n.split("/")[1:], value) for n, value in arrays.items())

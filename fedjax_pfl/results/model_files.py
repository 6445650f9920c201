"""Files of trained models, one per predictor and training, with a table of them."""

import contextlib
import dataclasses
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import jax
import numpy as np

from fedjax_pfl import core
from fedjax_pfl.core import checks, struct, tree_paths
from fedjax_pfl.results import csv_files, documents, plain_files

if TYPE_CHECKING:
    import pandas as pd

__all__ = [
    "CLIENTS",
    "DIRECTORY",
    "FORMAT",
    "HEADER",
    "TABLE",
    "TrainedModel",
    "TrainedModels",
    "file_name",
    "is_file_name",
    "load_models",
    "load_params",
    "named",
    "nested",
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
_COLUMNS = ("model", "clients", "numbers", "status", "file", "sha256")
_SHOWN = 5
_FILE = re.compile(r"\d{3,}-[a-z0-9-]+/\d{3,}-[a-z0-9-]+\.safetensors")


class _About(documents.Document):
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
    folder = f"{group:03d}-{plain_files.plain_name(algorithm)}"
    return f"{folder}/{point:03d}-{plain_files.plain_name(model)}.safetensors"


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
            raise OSError(None, plain_files.reason(error)) from error
        # Files of safetensors are private, but readers of the directory need them.
        temporary.chmod(path.parent.stat().st_mode & 0o666)


@dataclasses.dataclass(frozen=True, eq=False)
class TrainedModel:
    """One predictor of a method at the end of one training.

    Attributes:
      params: parameters for `apply` of the training's model, leaves `[K, *P]` with a
        row per client, or `[*P]` if all clients share them. Some methods have another
        tree, which their pages describe.
      clients: `int32[K]` numbers of the clients, in the order of the rows; None if
        all share one model.
      names: their names, in the same order, or None.
      target_units: mean m and deviation s of the training targets, if the model
        predicts (y - m) / s; or None.
      about: `model`, the predictor's name; `status` of the training; `settings`, its
        configuration by dotted name; `rounds`, the rounds of training of the model if
        it is not the last one's: one number, or one per client.
    """

    params: core.Params
    clients: np.ndarray | None
    names: tuple[str, ...] | None
    target_units: tuple[float, float] | None
    about: dict[str, Any]

    __post_init__ = struct.check_fields

    def __repr__(self) -> str:
        """Describes the model in one line."""
        owner = "the same for all clients"
        if self.clients is not None:
            owner = f"of {len(self.clients)} clients"
        algorithm = self.about["settings"].get("algorithm")
        return f"TrainedModel({self.about['model']} of {algorithm}, {owner})"

    def of(self, client: int | str) -> core.Params:
        """Returns the parameters for one client's predictions.

        Args:
          client: its number, or its name.

        Returns:
          `[*P]`, for `model.apply`.

        Raises:
          InputError: if the client's model was not saved.
        """
        if self.clients is None:
            return self.params
        identities = self.clients
        if isinstance(client, str) and self.names is not None:
            identities = np.array(self.names, object)
        rows = np.flatnonzero(identities == client)
        if len(rows) != 1:
            raise checks.InputError(
                f"Expected one of the {len(self.clients)} clients whose models were"
                f" saved, such as {identities[0]!r}, got {client!r}."
            )
        return jax.tree.map(lambda leaf: leaf[rows[0]], self.params)


@dataclasses.dataclass(frozen=True, eq=False)
class TrainedModels:
    """A directory of trained models, from `load_models`.

    Attributes:
      directory: folder of the files.
      table: one row per file: the columns of `Result.points`, then `model`, the
        predictor; `clients`, the number of clients, missing if all share one model;
        `numbers`, the parameters of one; `status`, `file` and its `sha256`.
    """

    directory: Path
    table: "pd.DataFrame"

    __post_init__ = struct.check_fields

    def __len__(self) -> int:
        """Counts the files."""
        return len(self.table)

    def __repr__(self) -> str:
        """Describes the models in one line."""
        return f"TrainedModels({len(self)} in '{self.directory}'; see .table, .find())"

    def find(self, **columns: Any) -> TrainedModel:
        """Reads the one model with these values in the table.

        Args:
          **columns: values by column, such as `algorithm="Flame"`, `model="personal"`;
            names with dots as in `**{"algorithm.lam": 0.1}`.

        Returns:
          The model.

        Raises:
          InputError: if there is none, if there are several, or if the file has
            changed.
        """
        rows: list[dict[Any, Any]] = self.table.to_dict("records")
        for name in columns:
            checks.known(name, list(self.table.columns), "column")
        hits = [r for r in rows if all(r[n] == v for n, v in columns.items())]
        if len(hits) != 1:
            query = ", ".join(f"{n} = {v!r}" for n, v in columns.items()) or "nothing"
            raise checks.InputError(
                f"Expected values of one model in '{self.directory}', got {query},"
                f" which {len(hits)} of {len(rows)} have{_differing(hits or rows)}."
            )
        return self._read(hits[0])

    def _read(self, row: dict[Any, Any]) -> TrainedModel:
        """Reads one file."""
        path = self.directory / row["file"]
        with _reading(path, foreign="it is no model of ours"):
            plain_files.check(path.parent, is_directory=True)
            # Before the file is parsed: a table and its files belong together.
            if plain_files.digest(path) != row["sha256"]:
                raise ValueError("it is not what was written")
            arrays, header = _content(path)
            about = documents.decode(header[HEADER], _About)
            clients = arrays.pop(CLIENTS, None)
            _check_rows(clients, about.names, arrays)
            params = nested(arrays)
        details = {
            n: getattr(about, n) for n in ("model", "status", "settings", "rounds")
        }
        names = None if about.names is None else tuple(about.names)
        return TrainedModel(params, clients, names, about.target_units, details)


@struct.checked_call
def load_params(path: str | os.PathLike[str]) -> core.Params:
    """Reads a model's parameters from a safetensors file, for `initial_params`.

    Args:
      path: a file of `models_to` or `--save-models` with a model that all clients
        share, or another file with names such as `hidden_0/kernel`.

    Returns:
      Nested dictionaries of NumPy arrays.

    Raises:
      InputError: if it is not such a file, or has a model per client.
    """
    path = checks.path("path", path)
    with _reading(path, foreign="it has numbers of a kind that NumPy does not know"):
        plain_files.check(path)
        arrays, _ = _content(path)
        if CLIENTS in arrays:
            raise checks.InputError(
                f"Expected a model that all clients share, such as a global one, but"
                f" '{path}' has those of {len(arrays[CLIENTS])} clients."
            )
        if not any(name.partition("/")[0] == _PARAMS for name in arrays):
            # They are of another program.
            arrays = {f"{_PARAMS}/{name}": value for name, value in arrays.items()}
        return nested(arrays)


@contextlib.contextmanager
def _reading(path: Path, foreign: str) -> Iterator[None]:
    """Turns errors of reading a file into one sentence, `foreign` of other formats."""
    import safetensors  # half of its time is only paid here

    try:
        yield
    except checks.InputError:
        raise
    except (OSError, ValueError, safetensors.SafetensorError) as error:
        reason = plain_files.reason(error)
        raise checks.InputError(f"Cannot read '{path}': {reason}.") from error
    except (KeyError, TypeError, AttributeError) as error:  # unknown number formats
        raise checks.InputError(f"Cannot read '{path}': {foreign}.") from error


def _content(path: Path) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """Reads the arrays and the header of a file."""
    import safetensors

    with safetensors.safe_open(path, framework="numpy") as file:
        arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        return arrays, file.metadata() or {}


def _check_rows(
    clients: np.ndarray | None, names: list[str] | None, arrays: dict[str, np.ndarray]
) -> None:
    """Refuses arrays or names that do not have a row per client."""
    count = 0 if clients is None else clients.size
    if names is not None and len(names) != count:
        raise ValueError("it has names of other clients")
    if clients is None:
        return
    is_list = clients.ndim == 1 and clients.dtype == np.int32
    if not is_list or any(a.shape[:1] != clients.shape for a in arrays.values()):
        raise ValueError("its arrays do not have one row per client")


@struct.checked_call
def load_models(directory: str | os.PathLike[str]) -> TrainedModels:
    """Opens a directory written by `models_to` or `--save-models`.

    Args:
      directory: the directory given as `models_to`, or the result of a command, with a
        folder `models`.

    Returns:
      A table of the models; `find` reads one.

    Raises:
      InputError: if it is not such a directory, or a damaged one.
    """
    directory = checks.path("directory", directory)
    subfolder = directory / DIRECTORY
    if not (directory / TABLE).exists() and subfolder.is_dir():
        directory = subfolder
    path = directory / TABLE
    if not path.exists():
        raise checks.InputError(
            f"Expected a directory of trained models with a {TABLE}, got"
            f" '{directory}'; a training makes it with models_to, a command with"
            " --save-models."
        )
    with _reading(path, foreign="it is no table of models"):
        table = csv_files.read(path, dtype={"clients": "Int64"})
        if lacking := set(_COLUMNS) - set(table.columns):
            raise ValueError(f"it has no column {min(lacking)}")
        # No path out of the directory.
        if not all(isinstance(f, str) and is_file_name(f) for f in table["file"]):
            raise ValueError("it names other files than those of models")
    return TrainedModels(directory, table)


def _differing(rows: Sequence[dict[Any, Any]]) -> str:
    """Describes the columns that distinguish these models."""
    text = ""
    for name in rows[0] if rows else ():
        values = list(dict.fromkeys(str(row[name]) for row in rows))
        if len(values) > 1 and name not in _COLUMNS[1:]:
            ellipsis = ", ..." if len(values) > _SHOWN else ""
            text += f"; {name} is {', '.join(values[:_SHOWN])}{ellipsis}"
    return text

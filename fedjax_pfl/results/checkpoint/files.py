"""One checkpoint: a folder that is written atomically and checked when read.

    state/           every leaf of the `State` of all points (orbax)
    rows-0-4.npz     or, of several processes, the rows of one of them
    own-NAME.npz     data of one process, such as which rows of a file are valid
    history.npz      all measurements so far, and the counts of early stopping
    checkpoint.json  format, the static configuration, code, SHA-256 of every file

`checkpoint.json` is compared before anything else is read. Nothing is unpickled.
"""

import dataclasses
import functools
import hashlib
import math
import os
import warnings
import zipfile
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Annotated, Any, BinaryIO

import jax
import msgspec
import numpy as np
from numpy.lib import format as npy

from fedjax_pfl import core
from fedjax_pfl.core import checks, processes, struct
from fedjax_pfl.results import documents, plain_files, provenance
from fedjax_pfl.results.checkpoint import arrays

__all__ = [
    "DamagedError",
    "Own",
    "Progress",
    "digests",
    "fingerprint",
    "flush",
    "has_ended",
    "read",
    "write_first",
    "write_own",
]

_HISTORY, _STATE = "history.npz", "state"
_ROWS, _OWN = "rows-", "own-"
_HEADERS = {
    (1, 0): npy.read_array_header_1_0,
    (2, 0): npy.read_array_header_2_0,
}


class _Description(documents.Document):
    """The file `checkpoint.json`."""

    backend: str
    done: Annotated[int, msgspec.Meta(ge=0)]
    ended: bool
    seconds: tuple[float, float]
    continued: tuple[str, ...]
    identity: dict[str, Any]
    files: dict[str, documents.Digest]


_DESCRIPTION = documents.Sealed(
    "checkpoint.json", "fedjax_pfl checkpoint 2", _Description
)
Own = Mapping[str, Mapping[str, np.ndarray]]
"""Arrays by the name of a file and their own."""


@dataclasses.dataclass(frozen=True)
class Progress:
    """A static group at one moment.

    Attributes:
      done: finished rounds.
      states: `State` of all points, or None if only the history is needed.
      arrays: all measurements so far, by name.
      seconds: compiling and running so far.
      ended: whether all training is done.
      continued: descriptions of other code that trained some of the rounds.
      own: arrays of this process only, in separate files; after reading, of all.
    """

    done: int
    states: core.Tree
    arrays: dict[str, np.ndarray]
    seconds: tuple[float, float]
    ended: bool
    continued: tuple[str, ...] = ()
    own: Own = dataclasses.field(default_factory=dict)

    __post_init__ = struct.check_fields


_DESCRIBED = ("done", "ended", "seconds", "continued")
"""Fields of a `Progress` that its description has, too."""


def write_own(folder: Path, progress: Progress) -> dict[str, str]:
    """Writes the data of this process only: rows on its devices, and `own`."""
    parts = {f"{_OWN}{name}.npz": part for name, part in progress.own.items()}
    rows, start, stop = arrays.own_rows(progress.states)
    if rows:
        parts[f"{_ROWS}{start:010d}-{stop:010d}.npz"] = rows
    for name, part in parts.items():
        _write(folder / name, functools.partial(np.savez, **part))
    return {name: plain_files.digest(folder / name) for name in parts}


def write_first(
    folder: Path,
    identity: Mapping[str, Any],
    progress: Progress,
    row_digests: Mapping[str, str],
) -> None:
    """Writes the shared files in the first process only, the description last."""
    states = arrays.whole(progress.states)
    if not processes.is_first():
        return
    arrays.write(folder / _STATE, states)
    _write(folder / _HISTORY, functools.partial(np.savez, **progress.arrays))
    shared_digests = digests(folder, skip=row_digests)
    text = _DESCRIPTION.text(
        backend=jax.default_backend(),
        **{name: getattr(progress, name) for name in _DESCRIBED},
        identity=identity,
        files=shared_digests | dict(row_digests),
    )
    # Last, since it has the digests of all other files, those of other processes too.
    _write(folder / _DESCRIPTION.name, lambda file: file.write(text.encode()))
    flush(folder)


def _compare(
    path: Path, stored: _Description, identity: Mapping[str, Any], *, anyway: bool
) -> list[str]:
    """Refuses checkpoints of another training or, unless `anyway`, of other code."""
    theirs, ours = dict(stored.identity), dict(identity)
    # Code first: other code may have other entries in the rest of the identity.
    code = theirs.pop("code", {}), ours.pop("code", {})
    differences = provenance.compare(path, *code, anyway=anyway)
    if difference := documents.difference(theirs, ours):
        name, was, now = difference
        raise checks.InputError(
            f"Checkpoint '{path}' belongs to another training: {name} was {was}"
            f" there and is {now} here."
        )
    if stored.backend != jax.default_backend():
        warnings.warn(
            f"Checkpoint '{path}' was written with backend {stored.backend}, this is"
            f" {jax.default_backend()}: results agree to rounding, not bit for bit.",
            stacklevel=4,
        )
    return differences


def fingerprint(tree: Any) -> str:
    """Returns SHA-256 of all leaves of a tree, their names, types and shapes."""
    digest = hashlib.sha256()
    for path, leaf in arrays.named(tree).items():
        value = np.ascontiguousarray(leaf)
        digest.update(f"{path} {value.dtype} {value.shape}".encode())
        digest.update(value.reshape(-1).view(np.uint8).data)
    return digest.hexdigest()


class DamagedError(Exception):
    """Damage of a checkpoint, with a short description."""


def has_ended(path: Path) -> bool:
    """Returns whether the training of a checkpoint has ended."""
    try:
        return _described(path).ended
    except DamagedError:
        return False  # `read` reports the damage


def _described(path: Path) -> _Description:
    """Reads and checks `checkpoint.json`."""
    try:
        plain_files.check(path, is_directory=True)
        return _DESCRIPTION.read(path)
    except (OSError, ValueError) as error:
        reason = f"its {_DESCRIPTION.name} is missing or not one"
        raise DamagedError(reason) from error


def _verify(path: Path, files: Mapping[str, str]) -> None:
    """Compares the digest of every file with the recorded one."""
    try:
        actual = digests(path)
    except checks.InputError as error:
        raise DamagedError("it has a link, a pipe or a device") from error
    except OSError as error:
        raise DamagedError(plain_files.reason(error)) from error
    actual.pop(_DESCRIPTION.name, None)
    for name in sorted(files.keys() | actual.keys()):
        if name not in actual:
            raise DamagedError(f"'{name}' is missing")
        if actual[name] != files.get(name):
            raise DamagedError(f"'{name}' is not what was written")


def digests(folder: Path, skip: Collection[str] = ()) -> dict[str, str]:
    """Returns SHA-256 of every file below a folder, by relative path."""
    return {
        path.relative_to(folder).as_posix(): plain_files.digest(path)
        for path in sorted(folder.rglob("*"))
        if (path.is_symlink() or not path.is_dir())
        and path.relative_to(folder).as_posix() not in skip
    }


def read(
    path: Path, identity: Mapping[str, Any], like: core.Tree, *, anyway: bool
) -> Progress:
    """Reads a checkpoint of this training, or `anyway` of other code."""
    stored = _described(path)
    differences = _compare(path, stored, identity, anyway=anyway)
    _verify(path, stored.files)
    try:
        measured = _read_arrays(path / _HISTORY)
        rows = {}
        for piece in path.glob(f"{_ROWS}*"):
            start, stop = map(int, piece.stem.removeprefix(_ROWS).split("-"))
            if arrays.needs(like, start, stop):
                rows[start, stop] = _read_arrays(piece)
        states = arrays.read(path / _STATE, rows, like)
        private_arrays = {
            piece.stem.removeprefix(_OWN): _read_arrays(piece)
            for piece in path.glob(f"{_OWN}*")
        }
    except Exception as error:  # zipfile and orbax raise many kinds
        raise DamagedError("its arrays are not those of this training") from error
    described = {name: getattr(stored, name) for name in _DESCRIBED}
    described["continued"] += tuple(differences)
    return Progress(states=states, arrays=measured, own=private_arrays, **described)


def _write(path: Path, save: Callable[[BinaryIO], object]) -> None:
    """Writes a file that survives a crash of the machine."""
    with plain_files.created(path) as draft, open(draft, "wb") as file:
        save(file)
        file.flush()
        os.fsync(file.fileno())


def _read_arrays(path: Path) -> dict[str, np.ndarray]:
    """Reads a file of `numpy.savez`; refuses headers larger than the data."""
    # NumPy would allocate as much as a header says, before it reads any data.
    with zipfile.ZipFile(path) as archive:
        for info in archive.infolist():
            with archive.open(info) as member:
                shape, _, dtype = _HEADERS[npy.read_magic(member)](member)
                size = math.prod(shape) * dtype.itemsize
                is_whole = info.file_size - member.tell() == size
            if info.compress_type != zipfile.ZIP_STORED or not is_whole:
                raise ValueError(f"{info.filename} is not what was written")
    with np.load(path, allow_pickle=False) as file:
        return {name: file[name] for name in file.files}


def flush(folder: Path) -> None:
    """Makes a folder's entries survive a crash of the machine, on POSIX systems."""
    if os.name == "posix":
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

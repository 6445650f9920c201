"""One checkpoint: a folder that is written whole or not at all, and checked when read.

    state/           every leaf of the `State` of all points (orbax)
    history.npz      everything measured so far, and what early stopping has counted
    checkpoint.json  format, the static configuration, code, SHA-256 of every file

`checkpoint.json` is compared before anything else is read. Nothing is unpickled.
"""

import contextlib
import dataclasses
import hashlib
import json
import logging
import math
import os
import re
import warnings
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import jax
import jax.numpy as jnp
import msgspec
import numpy as np
from numpy.lib import format as npy

from fedjax_pfl import core
from fedjax_pfl.core import checks
from fedjax_pfl.results import documents, plain_files, provenance

__all__ = [
    "DamagedError",
    "Description",
    "Progress",
    "compare",
    "digest_of_file",
    "digests",
    "fingerprint",
    "flush",
    "read",
    "read_description",
    "verify",
    "write",
]

_FORMAT = "fedjax_pfl checkpoint 2"
_DESCRIPTION, _HISTORY, _STATE = "checkpoint.json", "history.npz", "state"
_HEADERS = {
    (1, 0): npy.read_array_header_1_0,
    (2, 0): npy.read_array_header_2_0,
}


class Description(documents.Document):
    """The file `checkpoint.json`."""

    format: Literal["fedjax_pfl checkpoint 2"]
    backend: str
    done: Annotated[int, msgspec.Meta(ge=0)]
    ended: bool
    seconds: tuple[float, float]
    continued: tuple[str, ...]
    identity: dict[str, Any]
    files: dict[str, documents.Digest]


@dataclasses.dataclass(frozen=True)
class Progress:
    """A static group at one moment.

    Attributes:
      done: finished rounds.
      states: `State` of all points, or None where only the history is wanted.
      arrays: everything measured so far, by name.
      seconds: compiling and running so far.
      ended: whether nothing is left to train.
      continued: which code, other than that of now, has trained some of it, in words.
    """

    done: int
    states: Any
    arrays: dict[str, np.ndarray]
    seconds: tuple[float, float]
    ended: bool
    continued: tuple[str, ...] = ()


def write(folder: Path, identity: Mapping[str, Any], progress: Progress) -> None:
    """Writes all files of a checkpoint, the description last."""
    leaves = _leaves(progress.states)
    if jax.process_count() > 1:  # arrays of one process are no orbax's then
        leaves = jax.tree.map(np.asarray, leaves)
    _save_leaves(folder / _STATE, {n: v for n, v in leaves.items() if v.size})
    with plain_files.created(folder / _HISTORY) as new, open(new, "wb") as file:
        np.savez(file, **progress.arrays)  # pyright: ignore[reportArgumentType]
        file.flush()
        os.fsync(file.fileno())
    description = {
        "format": _FORMAT,
        "backend": jax.default_backend(),
        "done": progress.done,
        "ended": progress.ended,
        "seconds": progress.seconds,
        "continued": progress.continued,
        "identity": identity,
        "files": digests(folder),
    }
    with plain_files.created(folder / _DESCRIPTION) as new, open(new, "wb") as file:
        file.write(documents.seal(description).encode())
        file.flush()
        os.fsync(file.fileno())
    flush(folder)


def compare(
    path: Path, stored: Description, ours: dict[str, Any], *, anyway: bool
) -> list[str]:
    """Refuses checkpoints of another training or, but for `anyway`, of other code.

    Returns:
      What differs of the code, in words.
    """
    theirs = stored.identity
    code = [each.get("code", {}) for each in (theirs, ours)]
    differences = provenance.compare(path, *code, anyway=anyway)
    for name in dict.fromkeys([*theirs, *ours]):
        if name == "code":
            continue
        if theirs.get(name) != ours.get(name):
            was, now = (_shown(each.get(name)) for each in (theirs, ours))
            raise checks.InputError(
                f"Checkpoint '{path}' belongs to another training: {name} was {was}"
                f" there and is {now} here."
            )
    if stored.backend != jax.default_backend():
        warnings.warn(
            f"Checkpoint '{path}' was written with backend {stored.backend}, this is"
            f" {jax.default_backend()}: results agree to rounding, not bit for bit.",
            stacklevel=3,
        )
    return differences


def fingerprint(tree: Any) -> str:
    """Returns SHA-256 of all leaves of a tree, their names, types and shapes."""
    digest = hashlib.sha256()
    for path, leaf in _leaves(tree).items():
        value = np.ascontiguousarray(leaf)
        digest.update(f"{path} {value.dtype} {value.shape}".encode())
        digest.update(value.reshape(-1).view(np.uint8).data)
    return digest.hexdigest()


class DamagedError(Exception):
    """Damage of a checkpoint, in a few words."""


def read_description(path: Path) -> Description:
    """Reads and checks `checkpoint.json`."""
    try:
        plain_files.check(path, is_directory=True)
        return documents.read(path / _DESCRIPTION, Description)
    except (OSError, ValueError) as error:
        raise DamagedError(f"its {_DESCRIPTION} is missing or not one") from error


def verify(path: Path, files: dict[str, str]) -> None:
    """Compares every file with what was written."""
    try:
        actual = digests(path)
    except checks.InputError as error:
        raise DamagedError("it has a link, a pipe or a device") from error
    except OSError as error:
        raise DamagedError(f"{error.strerror or error}") from error
    actual.pop(_DESCRIPTION, None)
    for name in sorted(files.keys() | actual.keys()):
        if name not in actual:
            raise DamagedError(f"'{name}' is missing")
        if actual[name] != files.get(name):
            raise DamagedError(f"'{name}' is not what was written")


def digests(folder: Path) -> dict[str, str]:
    """Returns SHA-256 of every file below a folder, by relative path.

    Raises:
      InputError: if there is anything else than files and directories.
    """
    return {
        path.relative_to(folder).as_posix(): digest_of_file(path)
        for path in sorted(folder.rglob("*"))
        if path.is_symlink() or not path.is_dir()
    }


def digest_of_file(path: Path) -> str:
    """Returns SHA-256 of a file."""
    with plain_files.opened(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read(path: Path, stored: Description, like: Any) -> Progress:
    """Reads a verified checkpoint."""
    try:
        arrays = _read_arrays(path / _HISTORY)
        states = _restore_leaves(path / _STATE, like)
    except Exception as error:  # damage makes zipfile and orbax raise many kinds
        raise DamagedError("its arrays are not those of this training") from error
    return Progress(
        done=stored.done,
        states=states,
        arrays=arrays,
        seconds=stored.seconds,
        ended=stored.ended,
        continued=stored.continued,
    )


def _read_arrays(path: Path) -> dict[str, np.ndarray]:
    """Reads what `numpy.savez` wrote, where no header promises more than there is."""
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


def _leaves(tree: Any) -> dict[str, Any]:
    """Leaves by dotted path; keys as their integers."""
    flat, _ = jax.tree_util.tree_flatten_with_path(tree)
    return {jax.tree_util.keystr(path): _plain(leaf) for path, leaf in flat}


def _is_key(leaf: Any) -> bool:
    """Returns whether a leaf holds random keys."""
    return jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _plain(leaf: Any) -> Any:
    """Returns a leaf as numbers."""
    return jax.random.key_data(leaf) if _is_key(leaf) else leaf


def _save_leaves(path: Path, leaves: dict[str, Any]) -> None:
    """Writes arrays with orbax."""
    import orbax.checkpoint as ocp  # half a second, paid only where something is saved

    handler, options = _alone()
    with _without_logs(), ocp.Checkpointer(handler, **options) as checkpointer:
        try:
            checkpointer.save(path.absolute(), leaves)
        except ValueError as error:  # how its C++ part reports a full disk
            raise OSError(None, _last_words(error)) from error


def _alone() -> tuple[Any, dict[str, Any]]:
    """Returns orbax's handler of trees, which waits for no other process."""
    import orbax.checkpoint as ocp

    number = jax.process_index()
    alone = ocp.options.MultiprocessingOptions(
        primary_host=number,
        active_processes={number},
        barrier_sync_key_prefix=f"process-{number}",
    )
    options: dict[str, Any] = {"multiprocessing_options": alone}
    if jax.process_count() == 1:
        options = {}
    return ocp.PyTreeCheckpointHandler(**options), options


def _restore_leaves(path: Path, like: Any) -> Any:
    """Reads arrays into the structure of `like`, on this process's first device."""
    import orbax.checkpoint as ocp

    shapes = jax.eval_shape(_leaves, like)
    as_array = ocp.RestoreArgs(restore_type=np.ndarray)
    wanted = {name: as_array for name, shape in shapes.items() if shape.size}
    handler, options = _alone()
    with _without_logs(), ocp.Checkpointer(handler, **options) as checkpointer:
        stored = handler.metadata(path.absolute())
        stored = getattr(stored, "tree", stored)  # older versions return the tree
        for name in wanted:  # before arrays of any size are made
            if tuple(stored[name].shape) != shapes[name].shape:
                raise ValueError(f"{name} has another shape")
        arrays = checkpointer.restore(
            path.absolute(), args=ocp.args.PyTreeRestore(restore_args=wanted)
        )

    def join(path: Any, shape: Any) -> jax.Array:
        name = jax.tree_util.keystr(path)
        if not shape.size:  # which orbax does not write
            return jnp.zeros(shape.shape, shape.dtype)
        # A copy: donated buffers must not be those of NumPy.
        value = jnp.array(arrays[name], copy=True)
        return core.new_key(value) if _is_key(shape) else value

    return jax.tree_util.tree_map_with_path(join, like)


@contextlib.contextmanager
def _without_logs() -> Iterator[None]:
    """Keeps orbax from printing the tracebacks of errors, which it raises as well."""
    logger = logging.getLogger("absl")
    before = logger.disabled
    logger.disabled = True
    try:
        yield
    finally:
        logger.disabled = before


def _last_words(error: Exception) -> str:
    """Returns the reason at the end of a long message."""
    text = " ".join(str(error).split())
    known = re.search(r"No space left on device|File too large|Permission denied", text)
    return known.group() if known else text[:200]


def _shown(value: Any) -> str:
    """Returns a setting as text that fits into a sentence."""
    text = json.dumps(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def flush(folder: Path) -> None:
    """Makes a folder's entries survive a crash of the machine, where that is known."""
    if os.name == "posix":
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

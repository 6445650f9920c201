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
import os
import re
import warnings
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_pfl import core
from fedjax_pfl.core import checks
from fedjax_pfl.results import provenance

__all__ = [
    "DamagedError",
    "Progress",
    "compare",
    "digest_of",
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
    _save_leaves(folder / "state", {n: v for n, v in leaves.items() if v.size})
    with open(folder / "history.npz", "wb") as file:
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
    description["digest"] = digest_of(description)
    with open(folder / "checkpoint.json", "w", encoding="utf-8") as file:
        json.dump(description, file, indent=1)
        file.flush()
        os.fsync(file.fileno())
    flush(folder)


def compare(
    path: Path, stored: dict[str, Any], ours: dict[str, Any], *, anyway: bool
) -> list[str]:
    """Refuses checkpoints of another training or, but for `anyway`, of other code.

    Returns:
      What differs of the code, in words.
    """
    theirs = stored["identity"]
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
    if stored["backend"] != jax.default_backend():
        warnings.warn(
            f"Checkpoint '{path}' was written with backend {stored['backend']}, this"
            f" is {jax.default_backend()}: results agree to rounding, not bit for bit.",
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


def read_description(path: Path) -> dict[str, Any]:
    """Reads and checks the form of `checkpoint.json`."""
    try:
        stored = json.loads((path / "checkpoint.json").read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise DamagedError("its checkpoint.json is missing or unreadable") from error
    if not isinstance(stored, dict) or stored.get("format") != _FORMAT:
        raise DamagedError("its checkpoint.json is not one")
    digest = stored.pop("digest", None)
    if digest != digest_of(stored):
        raise DamagedError("its checkpoint.json is not what was written")
    return stored


def digest_of(description: Mapping[str, Any]) -> str:
    """Returns SHA-256 of what JSON holds, whatever the order of its names."""
    text = json.dumps(description, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def verify(path: Path, files: dict[str, str]) -> None:
    """Compares every file with what was written."""
    try:
        actual = digests(path)
    except OSError as error:
        raise DamagedError(f"{error.strerror or error}") from error
    actual.pop("checkpoint.json", None)
    for name in sorted(files.keys() | actual.keys()):
        if name not in actual:
            raise DamagedError(f"'{name}' is missing")
        if actual[name] != files.get(name):
            raise DamagedError(f"'{name}' is not what was written")


def digests(folder: Path) -> dict[str, str]:
    """Returns SHA-256 of every file below a folder, by relative path."""
    return {
        path.relative_to(folder).as_posix(): digest_of_file(path)
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def digest_of_file(path: Path) -> str:
    """Returns SHA-256 of a file."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read(path: Path, stored: dict[str, Any], like: Any) -> Progress:
    """Reads a verified checkpoint."""
    try:
        with np.load(path / "history.npz", allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
        states = _restore_leaves(path / "state", like)
        compiling, running = map(float, stored["seconds"])
        continued = tuple(map(str, stored["continued"]))
    except (OSError, ValueError, KeyError, TypeError, zipfile.BadZipFile) as error:
        raise DamagedError("its arrays are not those of this training") from error
    return Progress(
        done=stored["done"],
        states=states,
        arrays=arrays,
        seconds=(compiling, running),
        ended=stored["ended"],
        continued=continued,
    )


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

    with _without_logs(), ocp.PyTreeCheckpointer() as checkpointer:
        try:
            checkpointer.save(path.absolute(), leaves)
        except ValueError as error:  # how its C++ part reports a full disk
            raise OSError(None, _last_words(error)) from error


def _restore_leaves(path: Path, like: Any) -> Any:
    """Reads arrays into the structure of `like`, on this process's first device."""
    import orbax.checkpoint as ocp

    shapes = jax.eval_shape(_leaves, like)
    as_array = ocp.RestoreArgs(restore_type=np.ndarray)
    wanted = {name: as_array for name, shape in shapes.items() if shape.size}
    with _without_logs(), ocp.PyTreeCheckpointer() as checkpointer:
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

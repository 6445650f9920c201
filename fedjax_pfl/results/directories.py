"""Directories of results: checked before long work, locked, never half written."""

import contextlib
import datetime
import itertools
import json
import os
import platform
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from fedjax_pfl.core import checks, temporaries
from fedjax_pfl.results import documents, plain_files

__all__ = [
    "check_new",
    "check_writable",
    "filled",
    "litter",
    "locked",
    "nearest",
    "new",
    "staged",
    "writing",
]

_LOCK, _OWNER, _FILLING = ".lock", ".owner.json", ".filling"


class _Holder(documents.Document):
    """The process that holds a lock."""

    pid: int
    host: str
    since: str


@contextlib.contextmanager
def new(directory: Path) -> Iterator[Path]:
    """Makes a directory under a temporary name, and renames it at the end."""
    with writing(directory), staged(directory) as temporary:
        yield temporary


@contextlib.contextmanager
def staged(directory: Path) -> Iterator[Path]:
    """Opens a folder like `new` for a block that writes in blocks of `writing` only."""
    check_new(directory)
    temporary = directory.with_name(f".{directory.name}.{secrets.token_hex(4)}")
    # The block itself is not in `writing`: its errors may be of other files.
    with temporaries.registered(temporary):
        with writing(directory):
            directory.parent.mkdir(parents=True, exist_ok=True)
            temporary.mkdir()
        yield temporary
        with writing(directory):
            temporary.rename(directory)


@contextlib.contextmanager
def writing(directory: Path, noun: str = "directory") -> Iterator[None]:
    """Turns errors of writing files into one sentence."""
    checks.text("the name of the directory", str(directory))
    try:
        yield
    except OSError as error:
        raise checks.InputError(
            f"Cannot write the {noun} '{directory}': {plain_files.reason(error)}."
        ) from error


@contextlib.contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Locks a directory for this process; makes it if it does not exist."""
    import filelock  # needed by commands that write files only

    # The operating system frees the lock of a process that is killed.
    lock = filelock.FileLock(directory / _LOCK)
    with writing(directory):
        directory.mkdir(parents=True, exist_ok=True)
        plain_files.check(directory / _LOCK, in_place=True)
        try:
            lock.acquire(timeout=0)
        except filelock.Timeout:  # before OSError, which is its base class
            raise checks.InputError(
                f"Another process is writing in '{directory}': {_owner(directory)};"
                " wait until it has ended, or use another directory."
            ) from None
    time = datetime.datetime.now().isoformat(sep=" ", timespec="seconds")
    owner = {"pid": os.getpid(), "host": platform.node(), "since": time}
    try:
        with temporaries.registered(directory / _OWNER):
            with writing(directory):
                plain_files.write_text(directory / _OWNER, json.dumps(owner))
            yield
    finally:
        lock.release()


def _owner(directory: Path) -> str:
    """Describes the owner of the lock as far as possible."""
    try:
        owner = documents.decode(plain_files.content(directory / _OWNER), _Holder)
        return f"process {owner.pid} on {owner.host} since {owner.since}"
    except (OSError, ValueError):
        return "one that has just started"


@contextlib.contextmanager
def filled(directory: Path, last: str) -> Iterator[Path]:
    """Adds files to an existing directory; `last`, which completes it, comes last."""
    # Below the directory, so that renames stay within one file system.
    folder = directory / f"{_FILLING}-{secrets.token_hex(4)}"
    with temporaries.registered(folder), writing(directory):
        for leftover in directory.glob(f"{_FILLING}*"):
            plain_files.check(leftover, is_directory=True)
            temporaries.remove(leftover)
        folder.mkdir()
        yield folder
        names = sorted(os.listdir(folder), key=lambda name: name == last)
        for name in names:
            is_directory = (folder / name).is_dir()
            plain_files.check(directory / name, is_directory=is_directory)
        for name in names:
            target = directory / name
            if target.is_dir():  # left by a process that was killed here
                shutil.rmtree(target)
            os.replace(folder / name, target)


def litter(directory: Path, *names: str) -> list[Path]:
    """Lists files that killed processes left of `locked`, `filled` and others."""
    paths = [directory / name for name in (_OWNER, *names)]
    paths = [path for path in paths if os.path.lexists(path)]
    patterns = (f"{_FILLING}*", f"{plain_files.NEW}*")
    return [*paths, *itertools.chain.from_iterable(map(directory.glob, patterns))]


def check_new(directory: str | os.PathLike[str]) -> None:
    """Checks before a long run that a result can be saved."""
    directory = Path(directory)
    if os.path.lexists(directory):
        raise checks.InputError(
            f"Expected an output directory that does not exist yet, got '{directory}'."
        )
    check_writable(directory.absolute().parent, reported_path=directory)


def check_writable(directory: Path, *, reported_path: Path | None = None) -> None:
    """Checks that files can be written into a directory; makes no file."""
    with writing(reported_path or directory):
        os.rmdir(tempfile.mkdtemp(dir=nearest(directory), prefix=".check-"))


def nearest(directory: Path) -> Path:
    """Returns the directory itself, or the nearest of its parents that exists."""
    ancestor = directory.absolute()
    while not os.path.lexists(ancestor):
        ancestor = ancestor.parent
    return ancestor

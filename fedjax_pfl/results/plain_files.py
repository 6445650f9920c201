"""Files of a result folder: made new when written, no links or pipes when read.

A folder may come from a stranger. What is written under a new name and renamed changes
nothing outside the folder, whatever a link in its place points to; a pipe or a device
is never opened, as reading one may last for ever.
"""

import contextlib
import io
import os
import re
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path

from fedjax_pfl.core import checks, temporaries

__all__ = ["NEW", "check", "content", "created", "opened", "plain_name", "write_text"]

NEW = ".new-"
"""Prefix of what is not complete."""
_ONLY_FILES = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
_NAME_LENGTH = 40
_MEMORY_PER_BYTE = 20  # of JSON and tables, once parsed


def check(path: Path, *, is_directory: bool = False, in_place: bool = False) -> None:
    """Checks that there is a regular file, or nothing.

    Args:
      path: of the file.
      is_directory: whether a directory is expected instead.
      in_place: whether the file is going to be changed rather than replaced, so that it
        may have no second name.
    """
    try:
        status = os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return
    mode = status.st_mode
    is_expected = (stat.S_ISDIR if is_directory else stat.S_ISREG)(mode)
    if is_expected and not (in_place and status.st_nlink > 1):
        return
    kinds = {stat.S_IFLNK: "a link", stat.S_IFDIR: "a directory"}
    kinds[stat.S_IFREG] = "a hard link" if in_place else "a file"
    kind = kinds.get(stat.S_IFMT(mode), "a pipe, a socket or a device")
    expected = "a directory" if is_directory else "a file"
    raise checks.InputError(f"Expected '{path}' to be {expected}, but it is {kind}.")


@contextlib.contextmanager
def created(path: Path) -> Iterator[Path]:
    """Makes a new file beside another one or none, which it replaces at the end.

    Yields:
      The path of an empty file with the suffix of `path`; it is removed if the block
      fails.
    """
    check(path)
    new = path.with_name(f"{NEW}{secrets.token_hex(4)}-{path.name}")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | _ONLY_FILES
    with temporaries.registered(new):
        os.close(os.open(new, flags, 0o666))
        yield new
        os.replace(new, path)


def write_text(path: Path, text: str) -> None:
    """Writes a text as a new file, in place of an older one; see `created`."""
    with created(path) as new:
        new.write_text(text, "utf-8")


def opened(path: Path) -> io.BufferedReader:
    """Opens a regular file for reading."""

    def only_files(name: str, flags: int) -> int:
        check(path)
        return os.open(name, flags | _ONLY_FILES)

    return open(path, "rb", opener=only_files)


def content(path: Path) -> bytes:
    """Reads a document."""
    with opened(path) as file:
        needed = _MEMORY_PER_BYTE * os.fstat(file.fileno()).st_size
        checks.memory(f"Parsing '{path}'", needed, "it is no document of ours")
        return file.read()


def plain_name(name: str) -> str:
    """Returns a name in letters that every file system has, and not too many.

    Example:
      >>> plain_name("../My Method")
      'my-method'
    """
    plain = re.sub(r"[^a-z0-9]+", "-", name.lower())[:_NAME_LENGTH].strip("-")
    return plain or "unnamed"

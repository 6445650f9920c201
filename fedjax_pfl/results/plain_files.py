"""Files of a result folder: written as new files, never read from links or pipes."""

import contextlib
import hashlib
import io
import os
import re
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path

from fedjax_pfl.core import checks, temporaries

__all__ = [
    "NEW",
    "check",
    "content",
    "created",
    "digest",
    "opened",
    "plain_name",
    "reason",
    "write_text",
]

NEW = ".new-"
"""Prefix of incomplete files."""
_ONLY_FILES = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
_NAME_LENGTH = 40
_MEMORY_PER_BYTE = 20  # of JSON and tables, once parsed


def check(path: Path, *, is_directory: bool = False, in_place: bool = False) -> None:
    """Checks that a path is a regular file or a directory, or does not exist."""
    try:
        status = os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return
    mode = status.st_mode
    # A folder may come from a stranger. A file that is changed in place must not have a
    # second name outside of the folder.
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
    """Yields a new empty file that replaces `path` at the end; an error removes it."""
    check(path)
    # A link in the place of `path` is replaced, and its target never changed.
    temporary = path.with_name(f"{NEW}{secrets.token_hex(4)}-{path.name}")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | _ONLY_FILES
    with temporaries.registered(temporary):
        os.close(os.open(temporary, flags, 0o666))
        yield temporary
        os.replace(temporary, path)


def write_text(path: Path, text: str) -> None:
    """Writes a text as a new file that replaces an older one; see `created`."""
    with created(path) as temporary:
        temporary.write_text(text, "utf-8")


def opened(path: Path) -> io.BufferedReader:
    """Opens a regular file for reading."""

    # Pipes and devices are never opened: reading from them may take forever.
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


def digest(path: Path) -> str:
    """Returns SHA-256 of a file."""
    with opened(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def reason(error: Exception) -> str:
    """Returns the reason of an error, of the system or a library, in one line."""
    text = str(getattr(error, "strerror", None) or error)
    return " ".join(text.split()).rstrip(".")


def plain_name(name: str) -> str:
    """Returns a short name in letters that every file system supports."""
    plain = re.sub(r"[^a-z0-9]+", "-", name.lower())[:_NAME_LENGTH].strip("-")
    return plain or "unnamed"

"""Files of a data directory: finding, reading and comparing them.

Every defect of a file is answered by one sentence.
"""

import gzip
import hashlib
import io
import os
import pathlib
import stat
import zlib
from collections.abc import Iterable

from fedjax_pfl.core import checks

__all__ = [
    "check_directory",
    "check_sha256",
    "find_file",
    "find_files",
    "fingerprint",
    "is_inside",
    "read_bytes",
    "read_content",
    "read_text",
]


_BLOCK = 1 << 24
_HARMLESS, _RATIO = 1 << 26, 200  # bytes unpacked, and times the size of the file
_SMALLER = "give a smaller file"


def check_directory(path: pathlib.Path) -> None:
    """Checks that a data directory exists and can be listed.

    Args:
      path: the directory.

    Raises:
      InputError: if it is missing, not a directory or unreadable.
    """
    try:
        if not path.exists():
            raise checks.InputError(f"The data directory '{path}' does not exist.")
        if not path.is_dir():
            raise checks.InputError(f"The data directory '{path}' is not a directory.")
        next(path.iterdir(), None)
    except OSError as error:
        raise checks.InputError(
            f"The data directory '{path}' cannot be read: {error.strerror}."
        ) from error


def is_inside(path: pathlib.Path, root: str) -> bool:
    """Whether a path, its links followed, lies in a folder.

    Args:
      path: what may be a link, or lie behind one.
      root: the folder, its own links followed.

    Returns:
      Whether it does; for links that form a loop, wherever they are.
    """
    # Unlike pathlib's function, `realpath` returns from a loop of links.
    return pathlib.Path(os.path.realpath(path)).is_relative_to(root)


def find_file(directory: pathlib.Path, name: str) -> pathlib.Path | None:
    """Finds a file under its plain name or, failing that, compressed with gzip.

    Args:
      directory: where to look.
      name: plain file name.

    Returns:
      The path of `name` or `name.gz`, or None.
    """
    candidates = (directory / name, directory / f"{name}.gz")
    return next((path for path in candidates if path.is_file()), None)


def find_files(directory: pathlib.Path, pattern: str) -> tuple[pathlib.Path, ...]:
    """Finds the files of a pattern, plain or compressed with gzip.

    Args:
      directory: where to look.
      pattern: of plain file names, as for `pathlib.Path.glob`.

    Returns:
      The paths in the order of their names; a file that is there twice, plain and
      compressed, counts once, plain.
    """
    matching = {*directory.glob(pattern), *directory.glob(f"{pattern}.gz")}
    paths = {path for path in matching if path.is_file()}
    return tuple(
        sorted(
            path
            for path in paths
            if path.suffix != ".gz" or path.with_suffix("") not in paths
        )
    )


def fingerprint(paths: Iterable[pathlib.Path]) -> tuple[tuple[int, int], ...]:
    """Modification time and size of every file, by which a changed file is noticed.

    Args:
      paths: the files.

    Returns:
      One pair per file.

    Raises:
      InputError: if a file is gone, its directory cannot be read, or it is no file (a
        pipe or a device, from which one could read for ever).
    """
    found = []
    for path in paths:
        try:
            status = path.stat()
        except OSError as error:
            raise _unreadable(path, error) from error
        if not stat.S_ISREG(status.st_mode):
            kind = "a folder" if stat.S_ISDIR(status.st_mode) else "a pipe or a device"
            raise checks.InputError(
                f"Expected '{path}' to be a file, but it is {kind}."
            )
        found.append((status.st_mtime_ns, status.st_size))
    return tuple(found)


def read_bytes(path: pathlib.Path) -> bytes:
    """Reads a file as it is.

    Args:
      path: the file.

    Returns:
      The bytes.

    Raises:
      InputError: if the file cannot be read.
    """
    try:
        checks.memory(f"The file '{path}'", path.stat().st_size, _SMALLER)
        return path.read_bytes()
    except OSError as error:
        raise _unreadable(path, error) from error


def read_content(path: pathlib.Path) -> bytes:
    """Reads a file and undoes gzip where the name ends in `.gz`.

    Args:
      path: the file.

    Returns:
      The content.

    Raises:
      InputError: if the file cannot be read or is not a complete gzip file.
    """
    content = read_bytes(path)
    if path.suffix != ".gz":
        return content
    try:
        return _decompressed(content, path)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise checks.InputError(
            f"The file '{path}' is not a complete gzip file, download it again:"
            f" {error}."
        ) from error


def _decompressed(content: bytes, path: pathlib.Path) -> bytes:
    """Undoes gzip; a small file may hold very much, which is found while reading."""
    parts, size = [], 0
    with gzip.open(io.BytesIO(content)) as stream:
        while part := stream.read(_BLOCK):
            parts.append(part)
            size += len(part)
            if size > max(_HARMLESS, _RATIO * len(content)):
                raise checks.InputError(
                    f"The file '{path}' unpacks to more than {_RATIO} times its size,"
                    " which is refused as a likely attack; give it unpacked."
                )
            # All parts exist once more when joined, and again when they are parsed.
            checks.memory(f"The content of '{path}'", 2 * size, _SMALLER)
    return b"".join(parts)


def read_text(content: bytes, path: pathlib.Path) -> str:
    """Decodes UTF-8, with or without a byte order mark.

    Args:
      content: uncompressed content.
      path: shown in the message.

    Returns:
      The text, with one line feed between lines.

    Raises:
      InputError: if the content is not UTF-8.
    """
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        raise checks.InputError(
            f"The file '{path}' is not text in UTF-8: line {line} holds the byte"
            f" 0x{content[error.start]:02x}."
        ) from error
    return text.replace("\r\n", "\n")


def check_sha256(content: bytes, path: pathlib.Path, expected: str) -> None:
    """Checks that a file is the official one.

    The uncompressed content is compared, because the same file is distributed under
    several compressions; an archive is compared as it is.

    Args:
      content: content as `read_content` or, for an archive, `read_bytes` returns it.
      path: shown in the message.
      expected: SHA-256 of the official content, in hexadecimal.

    Raises:
      InputError: if the checksum differs.
    """
    found = hashlib.sha256(content).hexdigest()
    if found != expected:
        raise checks.InputError(
            f"The file '{path}' differs from the official one: its content has SHA-256"
            f" {found}, expected {expected} (verify=False accepts it)."
        )


def _unreadable(path: pathlib.Path, error: OSError) -> checks.InputError:
    """The sentence for a file that the operating system refuses."""
    return checks.InputError(f"The file '{path}' cannot be read: {error.strerror}.")

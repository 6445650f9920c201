"""Files of a data directory: finding, reading and comparing them."""

import codecs
import contextlib
import gzip
import hashlib
import io
import os
import stat
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path

from fedjax_pfl.core import checks

__all__ = [
    "check_directory",
    "check_inside",
    "check_sha256",
    "complete",
    "find_files",
    "fingerprint",
    "read_bytes",
    "read_content",
    "read_text",
    "readable",
    "unpacked",
]


_BLOCK = 1 << 24
_HARMLESS, _RATIO = 1 << 26, 200  # bytes unpacked, and times the size of the file
_SMALLER = "give a smaller file"


@contextlib.contextmanager
def readable(name: str) -> Iterator[None]:
    """Reports errors of the operating system in one sentence about a file or folder."""
    try:
        yield
    except OSError as error:
        raise checks.InputError(f"{name} cannot be read: {error.strerror}.") from error


def check_directory(path: Path) -> None:
    """Checks that a data directory exists and can be listed."""
    with readable(f"The data directory '{path}'"):
        if not path.is_dir():
            state = "is not a directory" if path.exists() else "does not exist"
            raise checks.InputError(f"The data directory '{path}' {state}.")
        next(path.iterdir(), None)


def check_inside(path: Path, root: str) -> None:
    """Checks that a path, its links followed, lies in a folder."""
    # Unlike pathlib's function, `realpath` returns from a loop of links.
    if not Path(os.path.realpath(path)).is_relative_to(root):
        raise checks.InputError(
            f"The link '{path}' leads out of the folder of data, which is refused."
        )


def find_files(directory: Path, pattern: str) -> tuple[Path, ...]:
    """Finds the files of a glob pattern, plain or `.gz`, sorted by name."""
    matching = {*directory.glob(pattern), *directory.glob(f"{pattern}.gz")}
    paths = {path for path in matching if path.is_file()}
    # A file that is there twice, plain and compressed, counts once, plain.
    return tuple(sorted(paths - {path.with_name(f"{path.name}.gz") for path in paths}))


def fingerprint(paths: Iterable[Path]) -> tuple[tuple[int, int], ...]:
    """Returns modification time and size of every file, which reveal a change."""
    states = []
    for path in paths:
        with readable(f"The file '{path}'"):
            status = path.stat()
        # Reading a pipe would wait for ever.
        if not stat.S_ISREG(status.st_mode):
            kind = "a folder" if stat.S_ISDIR(status.st_mode) else "a pipe or a device"
            raise checks.InputError(
                f"Expected '{path}' to be a file, but it is {kind}."
            )
        states.append((status.st_mtime_ns, status.st_size))
    return tuple(states)


def read_bytes(path: Path) -> bytes:
    """Reads the bytes of a file."""
    with readable(f"The file '{path}'"):
        checks.memory(f"The file '{path}'", path.stat().st_size, _SMALLER)
        return path.read_bytes()


def read_content(path: Path) -> bytes:
    """Reads a file, decompressed if the name ends in `.gz`."""
    content = read_bytes(path)
    return unpacked(content, path) if path.suffix == ".gz" else content


@contextlib.contextmanager
def complete(path: Path, kind: str, *errors: type[Exception]) -> Iterator[None]:
    """Reports errors of some classes as an incomplete or damaged file."""
    try:
        yield
    except checks.InputError:
        raise
    except errors as error:
        raise checks.InputError(
            f"The file '{path}' is not a complete {kind}: {error}."
        ) from error


def unpacked(content: bytes, path: Path, kind: str = "gzip file") -> bytes:
    """Decompresses in blocks, as a small file may unpack to very much."""
    parts, size = [], 0
    errors = EOFError, zlib.error, gzip.BadGzipFile
    with complete(path, kind, *errors), gzip.open(io.BytesIO(content)) as stream:
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


def read_text(
    content: bytes, path: Path, encoding: str = "utf-8", advice: str = ""
) -> str:
    """Decodes text, UTF-8 with or without a byte order mark."""
    name = codecs.lookup(encoding).name
    try:
        text = content.decode("utf-8-sig" if name == "utf-8" else name)
    except UnicodeError as error:
        start = error.start if isinstance(error, UnicodeDecodeError) else 0
        line = content[:start].count(b"\n") + 1
        raise checks.InputError(
            f"The file '{path}' is not text in {name.upper()}: line {line} holds the"
            f" byte 0x{content[start]:02x}{advice}."
        ) from error
    # Files that Windows has written have the same lines, and so the same examples.
    return text.replace("\r\n", "\n")


def check_sha256(content: bytes, path: Path, expected: str) -> None:
    """Checks that a file is the official one, by its SHA-256 in hexadecimal."""
    # The uncompressed content is compared, because the same file is distributed under
    # several compressions; an archive is compared whole.
    actual = hashlib.sha256(content).hexdigest()
    if actual != expected:
        raise checks.InputError(
            f"The file '{path}' differs from the official one: its content has SHA-256"
            f" {actual}, expected {expected} (verify=False accepts it)."
        )

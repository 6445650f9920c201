"""Leases on units of work, in a folder that processes of several hosts share.

The leases on a unit are numbered files, `unit.1`, `unit.2`, and so on: the process that
made the highest number holds the unit, and increments a count in its file.
"""

import contextlib
import os
import platform
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import msgspec

from fedjax_pfl.results import directories, documents, plain_files

__all__ = ["BEATS", "Lease", "Leases", "LostError"]

BEATS = 6
"""Signs of life per period; a lease without any in a whole period is lost."""
_SIZE = 512  # of a lease, which is written in one piece
_NO_LINKS = getattr(os, "O_NOFOLLOW", 0)


class LostError(Exception):
    """Another process has taken over a unit of work."""


class _Holder(documents.Document):
    """Content of a lease."""

    pid: int
    host: Annotated[str, msgspec.Meta(pattern=r"\A[\w.-]{1,255}\Z")]
    count: int
    is_released: bool


class Lease:
    """A unit of work held by this process, until the end of its `with` block."""

    def __init__(self, folder: Path, name: str, number: int, seconds: float):
        """Takes over a file that `Leases.claim` has made."""
        self.name, self.number = name, number
        self._path = folder / f"{name}.{number}"
        self._next = folder / f"{name}.{number + 1}"
        self._seconds, self._count = seconds, 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._beat_on, daemon=True)

    def check(self) -> None:
        """Makes sure that this process still holds the unit."""
        # A holder that was only suspended finds the next number here, before it saves.
        with directories.writing(self._path.parent):
            try:
                os.lstat(self._next)
            except FileNotFoundError:
                os.lstat(self._path)
                return
        raise LostError(self.name)

    def beat(self) -> None:
        """Gives a sign of life."""
        self._count += 1
        self._write(is_released=False)

    def _write(self, *, is_released: bool) -> None:
        """Rewrites the file in place: no other process ever writes there."""
        descriptor = os.open(self._path, os.O_WRONLY | _NO_LINKS)
        try:
            os.write(descriptor, _content(self._count, is_released=is_released))
        finally:
            os.close(descriptor)

    def _beat_on(self) -> None:
        """Gives signs of life until the end; `check` reports a missing folder."""
        while not self._ended.wait(self._seconds / BEATS):
            with contextlib.suppress(OSError):
                self.beat()

    def __enter__(self) -> "Lease":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        with contextlib.suppress(OSError):
            self._write(is_released=True)


class Leases:
    """Leases of all units of some work, as one process sees them."""

    def __init__(
        self,
        folder: Path,
        seconds: float,
        *,
        clock: Callable[[], float] = time.monotonic,
    ):
        """Makes the folder; a lease is lost after `seconds` without a sign of life."""
        self._folder, self._seconds, self._clock = folder, seconds, clock
        # By file: its content, and when this process saw that first by its own
        # monotonic clock. Clocks of different hosts are never compared.
        self._seen: dict[Path, tuple[bytes, float]] = {}
        with directories.writing(folder):
            plain_files.check(folder, is_directory=True)
            folder.mkdir(parents=True, exist_ok=True)

    def claim(self, name: str) -> Lease | None:
        """Takes a unit that is free, or that has an expired lease."""
        with directories.writing(self._folder):
            number = self._newest(name)
            if number and not self._is_free(self._folder / f"{name}.{number}"):
                return None
            # A file that must not exist yet is made atomically, on network file systems
            # too, so exactly one process gets each number. None is removed or renamed
            # while there is work, so no number is used twice.
            path = self._folder / f"{name}.{number + 1}"
            try:
                with open(path, "xb", buffering=0) as file:
                    file.write(_content(0, is_released=False))
            except FileExistsError:
                return None
        return Lease(self._folder, name, number + 1, self._seconds)

    def holder(self, name: str) -> str | None:
        """Returns the holder of a unit, alive or not; None if it is free."""
        with directories.writing(self._folder):
            number = self._newest(name)
            if not number:
                return None
            holder = _holder(self._read(self._folder / f"{name}.{number}"))
        if holder is None:
            return "a process that has just started"
        if holder.is_released:
            return None
        return f"process {holder.pid} on {holder.host}"

    def _newest(self, name: str) -> int:
        """Returns the highest number of a unit's leases, 0 if there is none."""
        files = (file.rpartition(".") for file in os.listdir(self._folder))
        numbers = (number for unit, _, number in files if unit == name)
        return max(map(int, filter(str.isdecimal, numbers)), default=0)

    def _is_free(self, path: Path) -> bool:
        """Returns whether a lease was released, or its count stayed for a period."""
        content = self._read(path)
        holder = _holder(content)
        if holder is not None and holder.is_released:
            return True
        old_content, since = self._seen.get(path, (None, 0.0))
        time_now = self._clock()
        if content != old_content:
            self._seen[path] = content, time_now
            return False
        return time_now - since >= self._seconds

    def _read(self, path: Path) -> bytes:
        """Returns the content of a lease."""
        with plain_files.opened(path) as file:
            return file.read(_SIZE)


def _content(count: int, *, is_released: bool) -> bytes:
    """Returns the content of a lease of this process, padded to a fixed size."""
    host = "".join(c if c.isalnum() or c in "-." else "_" for c in platform.node())
    holder = _Holder(
        pid=os.getpid(),
        host=host[:255] or "unnamed",
        count=count,
        is_released=is_released,
    )
    return msgspec.json.encode(holder).ljust(_SIZE)


def _holder(content: bytes) -> _Holder | None:
    """Reads a lease; None if it is not, or only half, written."""
    try:
        return documents.decode(content, _Holder)
    except ValueError:
        return None

"""Temporary files and directories, which are removed when a process ends."""

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path

__all__ = ["registered", "remove", "remove_all"]

_paths: dict[Path, None] = {}


@contextlib.contextmanager
def registered(path: Path) -> Iterator[Path]:
    """Removes a path at the end of the block, or of the process if a signal ends it."""
    _paths[path] = None
    try:
        yield path
    finally:
        remove(path)
        del _paths[path]


def remove(path: Path) -> None:
    """Removes a directory, a file, or a link itself, if it exists."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)


def remove_all() -> None:
    """Removes all registered paths, the newest first."""
    # Called by command/signals.py: a signal ends a command without `finally` blocks.
    for path in reversed(list(_paths)):
        remove(path)

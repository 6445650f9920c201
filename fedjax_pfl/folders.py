"""New directories of results: checked before long work, never half written."""

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from fedjax_pfl import checks

__all__ = ["check_new", "new"]


@contextlib.contextmanager
def new(directory: Path) -> Iterator[Path]:
    """Makes a directory under a temporary name beside it; renames it at the end.

    Args:
      directory: path that does not exist; its parents are made.

    Yields:
      The temporary directory; nothing is left of it if the block fails.

    Raises:
      InputError: if the directory exists or cannot be written.
    """
    check_new(directory)
    temporary = None
    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        temporary = directory.with_name(f".{directory.name}.{os.getpid()}")
        temporary.mkdir()
        yield temporary
        temporary.rename(directory)
    except OSError as error:
        raise _unwritable(directory, error) from error
    finally:
        if temporary is not None:
            shutil.rmtree(temporary, ignore_errors=True)


def check_new(directory: str | os.PathLike[str]) -> None:
    """Checks that a result can be saved; to be called before a long run.

    Args:
      directory: path that must not exist yet.

    Raises:
      InputError: if it exists or if no directory can be made there.
    """
    directory = Path(directory)
    if os.path.lexists(directory):
        raise checks.InputError(
            f"Expected an output directory that does not exist yet, got '{directory}'."
        )
    ancestor = directory.absolute().parent
    while not os.path.lexists(ancestor):
        ancestor = ancestor.parent
    try:
        os.rmdir(tempfile.mkdtemp(dir=ancestor, prefix=".check-"))
    except OSError as error:
        raise _unwritable(directory, error) from error


def _unwritable(directory: Path, error: OSError) -> checks.InputError:
    """The sentence for a directory that cannot be written."""
    reason = error.strerror or error
    return checks.InputError(f"Cannot write the directory '{directory}': {reason}.")

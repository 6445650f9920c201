"""Stores of checkpoints: writing, finding the newest intact one, removing old ones."""

import contextlib
import dataclasses
import json
import os
import re
import secrets
import shutil
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from fedjax_pfl import core
from fedjax_pfl.core import checks, processes, struct, temporaries
from fedjax_pfl.results import directories, plain_files
from fedjax_pfl.results.checkpoint import files

__all__ = ["Checkpoints", "Store", "kept"]

_ROUNDS = re.compile(r"\d{8}")
_OLD = ".old-"
_UNFINISHED = (plain_files.NEW, _OLD)  # left by processes that were killed


@dataclasses.dataclass(frozen=True)
class Checkpoints:
    """Directory and frequency of the checkpoints from which trainings continue.

    Attributes:
      directory: made if it does not exist; one per call of `simulate` or `grid`.
      min_seconds: a checkpoint follows an evaluation if the last one is at least this
        old, and always the last evaluation and an interruption. A killed process loses
        at most these seconds and the rounds between two evaluations.
      keep: newest checkpoints kept per static group, at least 1; only the last one
        after the training of a group has ended.
      resume_anyway: whether to continue even if the code has changed since (the
        package, your own modules, versions); the result records the change.
    """

    directory: str | os.PathLike[str]
    min_seconds: float = struct.static_field(default=5.0, at_least=0)
    keep: int = struct.static_field(default=2, at_least=1)
    resume_anyway: bool = False

    __post_init__ = struct.check_fields

    @property
    def path(self) -> Path:
        """The directory."""
        return Path(self.directory)

    def store(
        self, number: int, name: str, guard: Callable[[], None] = lambda: None
    ) -> "Store":
        """Returns the checkpoints of one static group; writes no file yet.

        Args:
          number: number of the group, from 0.
          name: name of its algorithm.
          guard: called before each checkpoint; raises an error if the checkpoint must
            not be written any more.
        """
        folder = self.path / f"{number:03d}-{plain_files.plain_name(name)}"
        return Store(folder, self, guard)

    def check(self, groups: int) -> None:
        """Checks that the directory holds checkpoints of that many groups, or none.

        Raises:
          InputError: if the directory holds anything else.
        """
        for name in sorted(path.name for path in self.path.glob("*")):
            number, dash, _ = name.partition("-")
            is_group = dash and number.isdecimal() and int(number) < groups
            if not is_group and not name.startswith("."):
                raise checks.InputError(
                    f"Expected only checkpoints of this training in '{self.path}', "
                    f"found '{name}'."
                )


class Store:
    """Checkpoints of one static group of grid points.

    Attributes:
      folder: directory of the checkpoints.
      keep: how many are kept.
    """

    def __init__(
        self,
        folder: Path,
        options: Checkpoints,
        guard: Callable[[], None] = lambda: None,
    ):
        """Makes a store of one group; for `guard` see `Checkpoints.store`."""
        self._guard = guard
        self.folder, self.keep, self._options = folder, options.keep, options
        self._written = time.monotonic()

    def due(self) -> bool:
        """Returns whether the last checkpoint is old enough for the next."""
        return time.monotonic() - self._written >= self._options.min_seconds

    def has_ended(self) -> bool:
        """Returns whether the training of the newest checkpoint has ended."""
        return any(map(files.has_ended, self._paths()[-1:]))

    def latest(
        self,
        identity: Mapping[str, Any],
        like: core.Tree,
        accept: Callable[[files.Progress], None] = lambda progress: None,
    ) -> files.Progress | None:
        """Reads the newest intact checkpoint; damaged newer ones cause a warning.

        Args:
          identity: flat configuration of JSON values; only a checkpoint that was saved
            with an equal one is continued. Its `code` may differ if the options allow
            it.
          like: shapes of the states.
          accept: raises a ValueError if files that belong to a checkpoint are missing.

        Returns:
          The saved progress, or None without checkpoints.

        Raises:
          InputError: if a checkpoint belongs to another training or to other code, or
            if none is intact.
        """
        self._clean()
        problems = []
        for path in reversed(self._paths()):
            try:
                anyway = self._options.resume_anyway
                progress = files.read(path, identity, like, anyway=anyway)
                try:
                    accept(progress)
                except (ValueError, KeyError) as error:
                    raise files.DamagedError(str(error)) from error
            except files.DamagedError as error:
                if not path.exists():  # a process that stood still has replaced it
                    return self.latest(identity, like, accept)
                problems.append(f"'{path}' is damaged ({error})")
                continue
            if problems:
                warnings.warn(
                    f"Checkpoint {' and '.join(problems)}; continuing from '{path}',"
                    " the newest intact one.",
                    stacklevel=2,
                )
            return progress
        if problems:
            raise checks.InputError(
                f"Checkpoint {' and '.join(problems)}, and no other one exists; remove"
                f" '{self.folder}' to train its points from the start."
            )
        return None

    def save(self, identity: Mapping[str, Any], progress: files.Progress) -> None:
        """Writes a checkpoint and removes checkpoints that are too old.

        If there are several processes, each writes the rows on its devices and its own
        data, and the first one writes the shared files.

        Args:
          identity: see `latest`.
          progress: what to save.

        Raises:
          InputError: if it cannot be written; earlier checkpoints are still there.
        """
        final = self.folder / f"{progress.done:08d}"
        # All processes write into one folder; the first one draws its name.
        token = processes.first(secrets.token_hex(4) if processes.is_first() else None)
        temporary = self.folder / f"{plain_files.NEW}{token}"
        try:
            with _writing(final):
                if processes.is_first():
                    self._guard()
                    plain_files.check(self.folder, is_directory=True)
                    temporary.mkdir(parents=True)
            digests_here, all_digests = {}, {}
            with _writing(final):
                digests_here = files.write_own(temporary, progress)
            for digests in processes.gathered(json.dumps(digests_here)):
                all_digests |= json.loads(digests)
            with _writing(final):
                files.write_first(temporary, identity, progress, all_digests)
                if processes.is_first():
                    self._put(temporary, final, keep=1 if progress.ended else self.keep)
        except checks.InputError:
            temporaries.remove(temporary)
            raise
        self._written = time.monotonic()

    def _put(self, temporary: Path, final: Path, keep: int) -> None:
        """Renames a finished checkpoint, and removes checkpoints that are too old."""
        if final.exists():  # damaged, or the same
            _remove(final)
        temporary.rename(final)
        files.flush(self.folder)
        for path in self._paths()[:-keep]:
            _remove(path)

    def _paths(self) -> list[Path]:
        """Returns the checkpoints, oldest first."""
        plain_files.check(self.folder, is_directory=True)
        paths = sorted(self.folder.glob("*"))
        return [path for path in paths if _ROUNDS.fullmatch(path.name)]

    def _clean(self) -> None:
        """Removes checkpoints that killed processes left half written or removed."""
        plain_files.check(self.folder, is_directory=True)
        for unfinished in _UNFINISHED:
            for path in self.folder.glob(f"{unfinished}*"):
                temporaries.remove(path)


@contextlib.contextmanager
def _writing(checkpoint: Path) -> Iterator[None]:
    """Raises errors of one process in all of them, so that none waits."""
    with processes.together(), directories.writing(checkpoint, "checkpoint"):
        yield


@contextlib.contextmanager
def kept(save: Callable[[], None], *, is_due: bool) -> Iterator[None]:
    """Saves a checkpoint around foreign code, so that its errors lose no rounds.

    Args:
      save: writes a checkpoint.
      is_due: whether to save before the block too, not only after an error in it.
    """
    if is_due:
        save()
    try:
        yield
    except Exception:
        if not is_due:
            save()
        raise


def _remove(path: Path) -> None:
    """Removes a checkpoint atomically: renames it first."""
    aside = path.with_name(f"{_OLD}{secrets.token_hex(4)}")
    with contextlib.suppress(FileNotFoundError):  # another process was faster
        path.rename(aside)
    shutil.rmtree(aside, ignore_errors=True)

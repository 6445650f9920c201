"""A profile of a few rounds of a training, for Perfetto, TensorBoard and XProf."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import jax

from fedjax_pfl.results import directories, plain_files

__all__ = ["Profile"]

_TRACED = 1  # the first segment compiles


class Profile:
    """Profile of the second segment of a training, in a directory."""

    def __init__(self, directory: str | os.PathLike[str]):
        """Checks that the directory can be written."""
        self.directory = Path(directory)
        directories.check_writable(self.directory)
        for name in ("plugins", "plugins/profile"):
            plain_files.check(self.directory / name, is_directory=True)
        self._is_done = False

    @contextlib.contextmanager
    def around(self, segment: int) -> Iterator[None]:
        """Returns the context in which a segment is run."""
        # A profile of a whole training would be too large to be opened.
        if segment != _TRACED or self._is_done:
            yield
            return
        self._is_done = True
        options = jax.profiler.ProfileOptions()
        options.python_tracer_level = 0  # which would be most of the file
        with jax.profiler.trace(self.directory, profiler_options=options):
            yield

    def newest(self) -> Path | None:
        """Returns the file for Perfetto; None if the training had no second segment."""
        if not self._is_done:
            return None
        traces = self.directory.glob("plugins/profile/*/*.trace.json.gz")
        return max(traces, key=lambda path: path.stat().st_mtime_ns, default=None)

"""Rows of a population in files, one per device; a process has those of its devices."""

import re
from collections.abc import Mapping
from pathlib import Path

import jax
import numpy as np

from fedjax_pfl import core
from fedjax_pfl.core import local_parts, processes, sharding
from fedjax_pfl.engine.streaming import routes, row_store

__all__ = ["DividedRows"]

_NAME = re.compile(r"rows-(\d{10})-(\d{10})")
_BLOCK = 1024  # rows that are copied at once


def _name(start: int, stop: int) -> str:
    """Returns the name of the file of rows `start <= row < stop`."""
    return f"rows-{start:010d}-{stop:010d}"


class DividedRows:
    """Rows of N clients with their owners; only rows that were written take space."""

    def __init__(
        self,
        folder: Path,
        num_rows: int,
        shapes: core.Tree,
        execution: sharding.Execution,
        keep: int = 1,
    ):
        """Opens the files of this process, which are made if they do not exist."""
        self._folder, self._shapes, self._keep = folder, shapes, keep
        self._execution, self._stale = execution, False
        self.router = routes.Router(num_rows, execution)
        self.is_written = np.zeros(num_rows, bool)  # by any process
        self._commits = 0
        numbers = [0]
        if self.router.count > 1:
            numbers = local_parts.numbers(execution)
        self._files = {number: self._open(*self._range(number)) for number in numbers}

    def _range(self, number: int) -> tuple[int, int]:
        """Returns the first client of a device, and the one after the last."""
        start, stop = self.router.bounds[number : number + 2].tolist()
        return start, stop

    def _open(self, start: int, stop: int) -> row_store.RowStore | None:
        """Opens a file, or returns None for a device without clients."""
        if start == stop:
            return None
        path = self._folder / f"{_name(start, stop)}.bin"
        return row_store.RowStore(path, stop - start, self._shapes, self._keep)

    def read(self, route: routes.Route) -> core.Tree:
        """Reads rows `[n * C, ...]` of a cohort, at owners; zeros if never written."""
        if self.router.count == 1:
            return self._owned(0, route)
        parts = {number: self._owned(number, route) for number in self._files}
        return local_parts.joined(parts, self._execution)

    def _owned(self, number: int, route: routes.Route) -> core.Tree:
        """Reads the rows `[C, ...]` that one device hands in."""
        file, clients = self._files[number], route.of(number)
        if file is None:
            return jax.tree.map(
                lambda s: np.zeros((route.size, *s.shape), s.dtype), self._shapes
            )
        return file.read(clients - self._range(number)[0], route.size)

    def write(self, route: routes.Route, rows: core.Tree) -> None:
        """Writes rows `[n * C, ...]` of distinct clients; waits for the devices."""
        self.is_written[route.members] = True
        if self.router.count == 1:
            parts = {0: jax.tree.map(np.asarray, rows)}
        else:
            parts = local_parts.of(rows, self._execution)
        for number, part in parts.items():
            file, clients = self._files[number], route.of(number)
            if file is not None:
                file.write(clients - self._range(number)[0], part)

    def commit(self) -> dict[str, dict[str, np.ndarray]]:
        """Makes the rows survive a crash; returns arrays by name of every file."""
        files = {
            _name(*self._range(number)): file.commit()
            for number, file in self._files.items()
            if file is not None
        }
        self._commits += 1
        # Checkpoints that are kept may still need files of an earlier division.
        if self._stale and self._commits > self._keep and processes.is_first():
            self._remove_stale()
        return files

    def _remove_stale(self) -> None:
        """Removes files of other divisions, once no checkpoint needs them."""
        self._stale = False
        names = {_name(*self._range(number)) for number in range(self.router.count)}
        for path in self._folder.glob("rows-*.bin"):
            if _NAME.fullmatch(path.stem) and path.stem not in names:
                path.unlink()

    def restore(self, files: Mapping[str, Mapping[str, np.ndarray]]) -> None:
        """Goes back to a commit of all processes, from the arrays of their files."""
        ranges = {}
        for name, arrays in files.items():
            match = _NAME.fullmatch(name)
            if match is not None:
                start, stop = map(int, match.groups())
                ranges[start, stop] = arrays
        ends = [0, *(stop for _, stop in sorted(ranges))]
        if [start for start, _ in sorted(ranges)] != ends[:-1]:
            raise ValueError("it has not the rows of all clients")
        if ends[-1] != len(self.is_written):
            raise ValueError("it has the rows of another number of clients")
        self.is_written[:] = False
        for (start, stop), arrays in ranges.items():
            rows = arrays["rows"]
            # From a file that may be damaged: checked before they become indices.
            if (
                rows.dtype.kind != "i"
                or (rows < 0).any()
                or (rows >= stop - start).any()
            ):
                raise ValueError("its rows have no places")
            self.is_written[start + rows] = True
        for number, file in self._files.items():
            bounds = self._range(number)
            if file is None:
                continue
            if bounds in ranges:
                file.restore(ranges[bounds])
            else:
                # Rows with other owners than before are copied to those owners.
                self._stale = True
                self._collect(bounds, file, ranges)

    def _collect(
        self,
        bounds: tuple[int, int],
        file: row_store.RowStore,
        ranges: Mapping[tuple[int, int], Mapping[str, np.ndarray]],
    ) -> None:
        """Copies rows from the files of other devices into one of this process."""
        file.clear()
        for (start, stop), arrays in ranges.items():
            low, high = max(bounds[0], start), min(bounds[1], stop)
            if low >= high:
                continue
            source = self._open(start, stop)
            assert source is not None
            source.restore(arrays)
            rows = start + source.written()
            rows = rows[(rows >= low) & (rows < high)]
            # In blocks, since all rows of a device may exceed the memory.
            for done in range(0, len(rows), _BLOCK):
                block = rows[done : done + _BLOCK]
                file.write(block - bounds[0], source.read(block - start))

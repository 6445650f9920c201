"""Rows of clients in a memory-mapped file that holds only those ever written.

A row is one record with all leaves of a client.
"""

import os
import zlib
from collections.abc import Mapping
from pathlib import Path

import jax
import numpy as np

from fedjax_pfl import core
from fedjax_pfl.core import checks
from fedjax_pfl.results import plain_files

__all__ = ["RowStore"]

_GROWTH = 1024
"""Least number of places by which the file grows."""


def _record(shapes: core.Tree) -> np.dtype:
    """Returns the type of one row, from the shapes of its leaves."""
    leaves = jax.tree.leaves(shapes)
    fields = [(f"f{k}", leaf.dtype, leaf.shape) for k, leaf in enumerate(leaves)]
    return np.dtype(fields, align=True)


class RowStore:
    """Rows of N clients; only rows that were written take space."""

    ARRAYS = ("rows", "places", "sums")
    """Names of the arrays that `commit` returns."""

    def __init__(self, path: Path, num_rows: int, like: core.Tree, keep: int = 1):
        """Opens a file, which is made if it does not exist.

        Args:
          path: of the file.
          num_rows: N.
          like: shapes of one row's leaves.
          keep: commits that stay readable, at least 1.

        Raises:
          InputError: if the file cannot be opened, or is a link.
        """
        self._path, self._keep = path, keep
        self._structure = jax.tree.structure(like)
        self._type = _record(like)
        self._places = np.full(num_rows, -1, np.int32)
        self._free: list[int] = []
        self._released: list[int] = []
        self._closed: list[list[int]] = []
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            plain_files.check(path.parent, is_directory=True)
            plain_files.check(path, in_place=True)
            path.touch()
        except OSError as error:
            raise _cannot(path, error) from error
        size = os.path.getsize(path) // max(self._type.itemsize, 1)
        self._map(size)
        # The last entry is taken first: the file fills from its beginning.
        self._free = list(range(size - 1, -1, -1))

    def _map(self, size: int) -> None:
        """Maps the first `size` places of the file."""
        self._size = size
        self._fresh = np.zeros(size, bool)
        self._sums = np.zeros(size, np.uint32)
        self._rows = np.zeros(0, self._type)
        if size:
            self._rows = np.memmap(self._path, self._type, "r+", shape=(size,))

    @property
    def row_bytes(self) -> int:
        """Bytes of one row."""
        return self._type.itemsize

    def is_written(self, rows: np.ndarray) -> np.ndarray:
        """Returns which of the rows `int[K]` have been written, `bool[K]`."""
        return self._places[rows] >= 0

    def written(self) -> np.ndarray:
        """Returns rows that have been written, ascending."""
        return np.flatnonzero(self._places >= 0)

    def read(self, rows: np.ndarray, size: int | None = None) -> core.Tree:
        """Reads rows.

        Args:
          rows: `int[K]`.
          size: C, of the arrays; K if not given.

        Returns:
          Pytree of `[C, ...]`, copies; zeros for rows never written, and past K.
        """
        places = self._places[rows]
        records = np.zeros(len(rows) if size is None else size, self._type)
        (is_written,) = np.nonzero(places >= 0)
        records[is_written] = self._rows[places[is_written]]
        leaves = [np.ascontiguousarray(records[name]) for name in self._names]
        return jax.tree.unflatten(self._structure, leaves)

    @property
    def _names(self) -> tuple[str, ...]:
        return self._type.names or ()

    def write(self, rows: np.ndarray, values: core.Tree) -> None:
        """Writes rows.

        Args:
          rows: `int[K]`, distinct.
          values: pytree of `[C, ...]`; the first K are written.

        Raises:
          InputError: if the disk is full.
        """
        if not self._names:
            return  # a method whose clients keep nothing
        places = self._places[rows]
        # A row that changes for the first time after a commit moves, so that a killed
        # process leaves the rows of the commit.
        moves = places < 0
        moves[~moves] = ~self._fresh[places[~moves]]
        self._released.extend(places[moves & (places >= 0)].tolist())
        self._places[rows[moves]] = self._take(int(moves.sum()))
        places = self._places[rows]
        self._fresh[places] = True
        for name, leaf in zip(self._names, jax.tree.leaves(values), strict=True):
            self._rows[name][places] = np.asarray(leaf)[: len(rows)]

    def _take(self, count: int) -> list[int]:
        """Returns free places; grows the file if there are too few."""
        if count > len(self._free):
            self._grow(max(count - len(self._free), self._size // 2, _GROWTH))
        taken = self._free[len(self._free) - count :]
        del self._free[len(self._free) - count :]
        return taken

    def _grow(self, count: int) -> None:
        """Adds places at the end of the file."""
        old, new, length = self._size, self._size + count, self._type.itemsize
        fresh, sums = self._fresh, self._sums
        try:
            os.truncate(self._path, new * length)
            if hasattr(os, "posix_fallocate"):
                # Space is taken now: a full disk must not become a signal in a write.
                with open(self._path, "r+b") as file:
                    os.posix_fallocate(file.fileno(), old * length, count * length)
        except OSError as error:
            os.truncate(self._path, old * length)
            raise _cannot(self._path, error) from error
        self._map(new)
        self._fresh[:old], self._sums[:old] = fresh, sums
        self._free = [*range(new - 1, old - 1, -1), *self._free]

    def commit(self) -> dict[str, np.ndarray]:
        """Makes the rows survive a crash of this process.

        Returns:
          Arrays by name, for `restore`.

        Raises:
          InputError: if the disk is full.
        """
        try:
            if isinstance(self._rows, np.memmap):
                self._rows.flush()
            with open(self._path, "r+b") as file:
                os.fsync(file.fileno())
        except OSError as error:
            raise _cannot(self._path, error) from error
        self._sum_up(np.flatnonzero(self._fresh))
        self._fresh[:] = False
        written = self.written()
        places = self._places[written]
        arrays = {"rows": written, "places": places, "sums": self._sums[places]}
        # Old places are free once no kept checkpoint needs them.
        self._closed.append(self._released)
        self._released = []
        while len(self._closed) > self._keep - 1:
            self._free.extend(self._closed.pop(0))
        return arrays

    def _sum_up(self, places: np.ndarray) -> None:
        """Computes the check sums of rows at some places."""
        for place in places:
            self._sums[place] = zlib.crc32(self._rows[place].tobytes())

    def restore(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Goes back to a commit.

        Args:
          arrays: from `commit`.

        Raises:
          ValueError: if the file does not hold the rows of that commit.
        """
        rows, places, sums = (arrays[name] for name in self.ARRAYS)
        is_list = rows.ndim == 1 and rows.shape == places.shape == sums.shape
        if not is_list or any(
            v.dtype.kind != "i" or (v < 0).any() for v in (rows, places)
        ):
            raise ValueError("its rows have no places")
        if (rows >= len(self._places)).any() or (places >= self._size).any():
            raise ValueError(f"'{self._path.name}' is too short")
        # Pages may be lost in a crash of the machine: sums show it.
        self._sum_up(places)
        if (self._sums[places] != sums).any():
            raise ValueError(f"'{self._path.name}' is not what was written")
        self.clear()
        self._places[rows] = places
        used = np.zeros(self._size, bool)
        used[places] = True
        self._free = np.flatnonzero(~used)[::-1].tolist()

    def clear(self) -> None:
        """Forgets all rows and commits."""
        self._places[:] = -1
        self._fresh[:] = False
        self._released, self._closed = [], []
        self._free = list(range(self._size - 1, -1, -1))


def _cannot(path: Path, error: OSError) -> checks.InputError:
    """Returns the error, with its one sentence."""
    return checks.InputError(
        f"Cannot write the clients' rows '{path}': {error.strerror or error}."
    )

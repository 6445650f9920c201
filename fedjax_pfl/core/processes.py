"""Exchange between the processes of one training, over JAX's runtime.

All processes call the same functions in the same order, and wait for each other there.
"""

import contextlib
from collections.abc import Iterator

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from fedjax_pfl.core import checks, sharding

__all__ = ["first", "gathered", "is_first", "together"]


def is_first() -> bool:
    """Returns whether this process writes files and prints."""
    return jax.process_index() == 0


def gathered(text: str) -> list[str]:
    """Gathers the texts of all processes in every process, in their order."""
    # A training of one process never waits.
    if jax.process_count() == 1:
        return [text]
    content = np.frombuffer(text.encode(), np.uint8).astype(np.int32)
    sizes = _rows(np.array([content.size], np.int32))[:, 0]
    # Devices exchange arrays of one shape: texts are padded to the longest.
    rows = _rows(np.pad(content, (0, max(sizes.max(), 1) - content.size)))
    pairs = zip(rows.astype(np.uint8), sizes, strict=True)
    return [row[:size].tobytes().decode() for row, size in pairs]


def first(text: str | None) -> str | None:
    """Returns the text of the first process that has one, or None."""
    return next(filter(None, gathered(text or "")), None)


@contextlib.contextmanager
def together() -> Iterator[None]:
    """Raises an `InputError` in all processes if one raises it in the block."""
    refusal = None
    try:
        yield
    except checks.InputError as error:
        refusal = error
    # Exchanged before anything is raised, so that no process waits for another.
    sentence = first(None if refusal is None else str(refusal))
    if refusal is not None:
        raise refusal
    if sentence is not None:
        raise checks.InputError(sentence)


def _rows(row: np.ndarray) -> np.ndarray:
    """Returns arrays `int32[W]` of all processes as rows, from one device of each."""
    mesh = sharding.client_mesh(0)
    split = NamedSharding(mesh, PartitionSpec(sharding.AXIS))
    shape = (mesh.size, row.size)
    table = jax.make_array_from_callback(shape, split, lambda part: row[None])
    owners = [device.process_index for device in mesh.devices.flat]
    firsts = [owners.index(number) for number in range(jax.process_count())]
    return sharding.fetch(table)[firsts]

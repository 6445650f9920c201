"""Arrays of a checkpoint: shared ones in orbax's format, divided ones as rows."""

import contextlib
import logging
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_pfl import core

__all__ = ["named", "needs", "own_rows", "read", "whole", "write"]

_REASON = re.compile("No space left on device|File too large|Permission denied")


def named(tree: core.Tree) -> dict[str, jax.Array]:
    """Returns leaves by dotted path, random keys as their integers."""
    return {
        name: jax.random.key_data(leaf) if _is_key(leaf) else leaf
        for name, leaf in _by_path(tree).items()
    }


def _is_key(leaf: jax.Array | jax.ShapeDtypeStruct) -> bool:
    """Returns whether a leaf holds random keys."""
    return jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def write(path: Path, leaves: Mapping[str, np.ndarray | jax.Array]) -> None:
    """Writes arrays, without the ones that have no values."""
    full = {name: leaf for name, leaf in leaves.items() if leaf.size}
    try:
        with _checkpointer() as (checkpointer, _):
            checkpointer.save(path.absolute(), full)
    except ValueError as error:  # how its C++ part reports a full disk
        text = " ".join(str(error).split())
        reason = _REASON.search(text)  # at the end of a long message
        raise OSError(None, reason.group() if reason else text[:200]) from error


def _is_divided(leaf: Any) -> bool:
    """Returns whether several processes have parts of an array."""
    sharding = getattr(leaf, "sharding", None)
    if not isinstance(sharding, jax.sharding.NamedSharding):
        return False
    return not (sharding.is_fully_addressable or sharding.is_fully_replicated)


def _extent(leaf: Any) -> tuple[int, int, int]:
    """Returns the axis along which an array is divided, and this process's rows."""
    axis = next(k for k, name in enumerate(leaf.sharding.spec) if name is not None)
    places = leaf.sharding.addressable_devices_indices_map(leaf.shape).values()
    ranges = [place[axis].indices(leaf.shape[axis]) for place in places]
    return axis, min(r[0] for r in ranges), max(r[1] for r in ranges)


def whole(tree: core.Tree) -> Mapping[str, np.ndarray | jax.Array]:
    """Returns the arrays that every process has completely, by dotted path."""
    leaves = {n: v for n, v in named(tree).items() if not _is_divided(v)}
    if jax.process_count() == 1:
        return leaves
    # This orbax handler takes arrays of a single process only.
    return {n: np.asarray(v.addressable_data(0)) for n, v in leaves.items()}


def own_rows(tree: core.Tree) -> tuple[dict[str, np.ndarray], int, int]:
    """Returns this process's rows of divided arrays, with their start and stop."""
    # No process holds all rows of an array that is divided between processes. Rows are
    # NumPy files, since orbax writes NumPy arrays of its primary process only, and
    # arrays of several processes in an exchange in which one failing process would
    # leave the others waiting.
    rows, start, stop = {}, 0, 0
    for name, leaf in named(tree).items():
        if _is_divided(leaf):
            axis, start, stop = _extent(leaf)
            parts = {s.index[axis].start or 0: s.data for s in leaf.addressable_shards}
            ordered = [np.asarray(parts[row]) for row in sorted(parts)]
            rows[name] = np.concatenate(ordered, axis)
    return rows, start, stop


@contextlib.contextmanager
def _checkpointer() -> Iterator[tuple[Any, Any]]:
    """Opens orbax for trees, with its handler, set up to wait for no other process."""
    import orbax.checkpoint as ocp  # half a second, paid only where something is saved

    options: dict[str, Any] = {}
    if jax.process_count() > 1:
        number = jax.process_index()
        # By default orbax waits for all processes at its barriers.
        options["multiprocessing_options"] = ocp.options.MultiprocessingOptions(
            primary_host=number,
            active_processes={number},
            barrier_sync_key_prefix=f"process-{number}",
        )
    handler = ocp.PyTreeCheckpointHandler(**options)
    # It would print tracebacks of the errors that it also raises.
    logger = logging.getLogger("absl")
    was_disabled, logger.disabled = logger.disabled, True
    try:
        with ocp.Checkpointer(handler, **options) as checkpointer:
            yield checkpointer, handler
    finally:
        logger.disabled = was_disabled


Rows = Mapping[tuple[int, int], Mapping[str, np.ndarray]]


def needs(like: core.Tree, start: int, stop: int) -> bool:
    """Returns whether this process needs some of the rows `start <= row < stop`."""
    ranges = [_extent(leaf)[1:] for leaf in jax.tree.leaves(like) if _is_divided(leaf)]
    return not ranges or any(start < high and low < stop for low, high in ranges)


def read(path: Path, rows: Rows, like: core.Tree) -> core.Tree:
    """Reads arrays like `like`, on the first device; divided rows on their devices."""
    divided = {n: leaf for n, leaf in _by_path(like).items() if _is_divided(leaf)}
    row_names = {name for part in rows.values() for name in part}
    shapes = jax.eval_shape(named, like).items()
    loaded = _loaded(path, {n: s for n, s in shapes if s.size and n not in row_names})

    def join(path: tuple[Any, ...], shape: jax.ShapeDtypeStruct) -> jax.Array:
        name = jax.tree_util.keystr(path)
        if not shape.size:  # which orbax does not write
            return jnp.zeros(shape.shape, shape.dtype)
        if name in row_names or name in divided:
            # An array may be divided now and have been whole when it was saved, or the
            # reverse.
            parts = {(0, 0): loaded[name]} if name in loaded else None
            parts = parts or {bounds: part[name] for bounds, part in rows.items()}
            return _placed(shape, parts, divided.get(name))
        # A copy: buffers of NumPy must not be donated.
        value = jnp.array(loaded[name], copy=True)
        return core.new_key(value) if _is_key(shape) else value

    return jax.tree_util.tree_map_with_path(join, like)


def _by_path(tree: core.Tree) -> dict[str, Any]:
    """Returns unchanged leaves by dotted path."""
    flat, _ = jax.tree_util.tree_flatten_with_path(tree)
    return {jax.tree_util.keystr(path): leaf for path, leaf in flat}


def _placed(
    shape: jax.ShapeDtypeStruct, parts: Mapping[Any, np.ndarray], leaf: Any
) -> jax.Array:
    """Joins a complete set of rows into one array on the devices of `leaf`."""
    ordered = [parts[rows] for rows in sorted(parts)]
    if leaf is None:  # the rows are parts along the first axis that is shorter
        pairs = enumerate(zip(ordered[0].shape, shape.shape, strict=True))
        axis = next((k for k, (size, full) in pairs if size != full), 0)
        lowest, highest = 0, shape.shape[axis]
    else:
        axis, lowest, highest = _extent(leaf)
    block, offset = np.concatenate(ordered, axis), min(parts)[0]
    size = block.shape[axis]
    if offset > lowest or offset + size < highest:
        raise ValueError("rows are missing")
    # Without a leaf that is divided here, the rows must be the whole array.
    size = highest if leaf is None else size
    if block.shape != (*shape.shape[:axis], size, *shape.shape[axis + 1 :]):
        raise ValueError("rows have another shape")
    if leaf is None:
        return jnp.array(block, copy=True)

    def part(place: tuple[slice, ...] | None) -> np.ndarray:
        slices = list(place or ())
        start, stop, _ = slices[axis].indices(shape.shape[axis])
        slices[axis] = slice(start - offset, stop - offset)
        return block[tuple(slices)]

    return jax.make_array_from_callback(shape.shape, leaf.sharding, part)


def _loaded(path: Path, shapes: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Reads arrays of these shapes."""
    import orbax.checkpoint as ocp

    with _checkpointer() as (checkpointer, handler):
        stored = handler.metadata(path.absolute())
        stored = getattr(stored, "tree", stored)  # older versions return the tree
        for name, shape in shapes.items():  # before arrays of any size are made
            if tuple(stored[name].shape) != shape.shape:
                raise ValueError(f"{name} has another shape")
        restore_args = dict.fromkeys(shapes, ocp.RestoreArgs(restore_type=np.ndarray))
        return checkpointer.restore(
            path.absolute(), args=ocp.args.PyTreeRestore(restore_args=restore_args)
        )

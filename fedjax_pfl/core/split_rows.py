"""Rows of a cohort, gathered from the devices that store them, and written back."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec

from fedjax_pfl.core import client_rows, sharding
from fedjax_pfl.core.aliases import Tree

__all__ = ["at_places", "put", "take"]

_SPLIT, _WHOLE = PartitionSpec(sharding.AXIS), PartitionSpec()


def _size(tree: Tree, execution: sharding.Execution) -> int:
    """Counts the devices that divide the rows of a tree; 0 if none do."""
    leaves = jax.tree.leaves(tree)
    if execution.mode != "shard" or not leaves:
        return 0
    size = sharding.client_mesh(execution.num_devices).size
    if size == 1 or leaves[0].shape[0] % size:
        return 0
    return size


def _places(rows: jax.Array, num_rows: int, size: int) -> jax.Array:
    """Pads a cohort `int32[K]` with the row N to equally many places on all devices."""
    return jnp.pad(rows, (0, -rows.shape[0] % size), constant_values=num_rows)


def take(tree: Tree, rows: jax.Array, execution: sharding.Execution) -> Tree:
    """Gathers rows `int32[K]` of leaves `[N, ...]`."""
    taken = at_places(tree, rows, execution, client_rows.take)
    if not _size(tree, execution):
        return taken
    return jax.tree.map(lambda leaf: leaf[: rows.shape[0]], taken)


def at_places(
    tree: Tree,
    rows: jax.Array,
    execution: sharding.Execution,
    gather: Callable[[Any, jax.Array], Any],
) -> Tree:
    """Gathers `gather(part, rows int32[P])`, pytrees of `[P, ...]`, at the places."""
    size = _size(tree, execution)
    if not size:
        return gather(tree, rows)
    num_rows = jax.tree.leaves(tree)[0].shape[0]
    # P is the next multiple of the number of devices; the last P - K rows are
    # arbitrary.
    places = _places(rows, num_rows, size)
    per_device = places.shape[0] // size

    def part(local: Tree, places: jax.Array) -> Tree:
        number, count = lax.axis_index(sharding.AXIS), num_rows // size
        mine = lax.dynamic_slice_in_dim(places, number * per_device, per_device)
        owner = jnp.minimum(mine // count, size - 1)

        # A place belongs to a fixed device, which may differ from the device of the
        # row. Every device sends a row for every place, and the place takes the one of
        # its owner, in one exchange: XLA alone would use a dozen.
        def exchange(sent: jax.Array) -> jax.Array:
            received = lax.all_to_all(sent, sharding.AXIS, 0, 0, tiled=True)
            return received[owner * per_device + jnp.arange(per_device)]

        at = jnp.clip(places - number * count, 0, count - 1)
        return jax.tree.map(exchange, gather(local, at))

    specs = (_SPLIT, _WHOLE)
    return sharding.on_devices(part, execution, specs, _SPLIT)(tree, places)


def put(
    tree: Tree, rows: jax.Array, values: Tree, execution: sharding.Execution
) -> Tree:
    """Scatters values `[K, ...]` into rows `int32[K]`; others stay bit-identical."""
    size = _size(tree, execution)
    if not size:
        return client_rows.put(tree, rows, values)
    num_rows = jax.tree.leaves(tree)[0].shape[0]
    places = _places(rows, num_rows, size)
    extra = places.shape[0] - rows.shape[0]
    filled = jax.tree.map(
        lambda leaf: jnp.pad(leaf, ((0, extra), *((0, 0),) * (leaf.ndim - 1))), values
    )

    def part(own: Tree, places: jax.Array, values: Tree) -> Tree:
        count = num_rows // size
        local = places - lax.axis_index(sharding.AXIS) * count
        # Padding has the row N, which no device stores.
        at = jnp.where((local >= 0) & (local < count), local, count)

        def exchange(leaf: jax.Array, new: jax.Array) -> jax.Array:
            # Every device needs only its rows, but gets all: rows may belong to any
            # device.
            new = lax.all_gather(new, sharding.AXIS, tiled=True)
            return leaf.at[at].set(new, mode="drop")

        return jax.tree.map(exchange, own, values)

    specs = (_SPLIT, _WHOLE, _SPLIT)
    return sharding.on_devices(part, execution, specs, _SPLIT)(tree, places, filled)

"""Rows of a cohort, gathered from the devices that store them, and written back.

Every place of a cohort belongs to a fixed device, which may differ from the device of
the drawn client's row. In one exchange every device sends its rows that are in the
cohort, and in a second one receives them back. XLA alone would use a dozen exchanges.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec

from fedjax_pfl.core import client_rows, sharding

__all__ = ["at_places", "put", "take"]

_SPLIT, _WHOLE = PartitionSpec(sharding.AXIS), PartitionSpec()


def _size(tree: Any, execution: sharding.Execution) -> int:
    """Counts the devices that divide the rows of a tree; 0 if none do."""
    leaves = jax.tree.leaves(tree)
    if execution.mode != "shard" or not leaves:
        return 0
    size = sharding.client_mesh(execution.num_devices).size
    if size == 1 or leaves[0].shape[0] % size:
        return 0
    return size


def _places(rows: jax.Array, num_rows: int, size: int) -> jax.Array:
    """Pads a cohort `int32[K]`, so that all devices have equally many places.

    Padding has the row N, which no device stores.
    """
    return jnp.pad(rows, (0, -rows.shape[0] % size), constant_values=num_rows)


def take(tree: Any, rows: jax.Array, execution: sharding.Execution) -> Any:
    """Gathers rows.

    Args:
      tree: pytree of numbers `[N, ...]`.
      rows: `int32[K]`.
      execution: execution mode of the map over clients.

    Returns:
      Pytree of `[K, ...]`.
    """
    taken = at_places(tree, rows, execution, client_rows.take)
    if not _size(tree, execution):
        return taken
    return jax.tree.map(lambda leaf: leaf[: rows.shape[0]], taken)


def at_places(
    tree: Any,
    rows: jax.Array,
    execution: sharding.Execution,
    gather: Callable[[Any, jax.Array], Any],
) -> Any:
    """Gathers results of a function of devices' rows, at the places of a cohort.

    Args:
      tree: pytree with a first leaf `[N, ...]`; devices divide all leaves.
      rows: `int32[K]`.
      execution: execution mode of the map over clients.
      gather: `(part, rows int32[P]) -> pytree of [P, ...]`, of a device's part of the
        tree and some of its rows.

    Returns:
      Pytree of `[P, ...]` with arbitrary values at the last P - K places. P is the next
      multiple of the number of devices that divide the tree, or K if none do.
    """
    size = _size(tree, execution)
    if not size:
        return gather(tree, rows)
    num_rows = jax.tree.leaves(tree)[0].shape[0]
    places = _places(rows, num_rows, size)
    per_device = places.shape[0] // size

    def part(local: Any, places: jax.Array) -> Any:
        number, count = lax.axis_index(sharding.AXIS), num_rows // size
        mine = lax.dynamic_slice_in_dim(places, number * per_device, per_device)
        owner = jnp.minimum(mine // count, size - 1)

        def exchange(sent: jax.Array) -> jax.Array:
            received = lax.all_to_all(sent, sharding.AXIS, 0, 0, tiled=True)
            return received[owner * per_device + jnp.arange(per_device)]

        at = jnp.clip(places - number * count, 0, count - 1)
        return jax.tree.map(exchange, gather(local, at))

    specs = (_SPLIT, _WHOLE)
    return sharding.on_devices(part, execution, specs, _SPLIT)(tree, places)


def put(tree: Any, rows: jax.Array, values: Any, execution: sharding.Execution) -> Any:
    """Scatters values `[K, ...]` into rows `int32[K]`; others stay bit-identical.

    Args:
      tree: pytree of `[N, ...]`.
      rows: `int32[K]`, distinct.
      values: pytree of `[K, ...]`.
      execution: execution mode of the map over clients.

    Returns:
      Pytree of `[N, ...]`.
    """
    size = _size(tree, execution)
    if not size:
        return client_rows.put(tree, rows, values)
    num_rows = jax.tree.leaves(tree)[0].shape[0]
    places = _places(rows, num_rows, size)
    extra = places.shape[0] - rows.shape[0]
    filled = jax.tree.map(
        lambda leaf: jnp.pad(leaf, ((0, extra), *((0, 0),) * (leaf.ndim - 1))), values
    )

    def part(own: Any, places: jax.Array, values: Any) -> Any:
        count = num_rows // size
        local = places - lax.axis_index(sharding.AXIS) * count
        at = jnp.where((local >= 0) & (local < count), local, count)

        def exchange(leaf: jax.Array, new: jax.Array) -> jax.Array:
            new = lax.all_gather(new, sharding.AXIS, tiled=True)
            return leaf.at[at].set(new, mode="drop")

        return jax.tree.map(exchange, own, values)

    specs = (_SPLIT, _WHOLE, _SPLIT)
    return sharding.on_devices(part, execution, specs, _SPLIT)(tree, places, filled)

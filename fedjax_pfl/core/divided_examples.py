"""Examples divided among devices: each device has the examples of its clients.

The pool then has parts of equal length, one per device, in the order of clients.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec

from fedjax_pfl.core import sharding, split_rows
from fedjax_pfl.core.aliases import Tree
from fedjax_pfl.core.federation import ClientData, Federation

__all__ = [
    "Shares",
    "client",
    "divided",
    "num_bytes",
    "of_cohort",
    "placed",
    "shares",
    "specs",
]

_PARTS = ("train", "validation", "test")
_SPLIT, _WHOLE = PartitionSpec(sharding.AXIS), PartitionSpec()


def num_bytes(data: ClientData) -> int:
    """Counts the bytes of an example with its target."""
    pooled = (data.x, data.y)
    return sum(leaf.dtype.itemsize * int(np.prod(leaf.shape[1:])) for leaf in pooled)


@dataclasses.dataclass(frozen=True)
class Shares:
    """Examples of each of n devices."""

    owned: Sequence[np.ndarray]  # sorted positions per device; empty for shapes alone
    size: int  # examples of a device with padding, the largest number of all devices
    count: int  # n


def shares(federations: Sequence[Federation], count: int, moved: int) -> Shares | None:
    """Computes the examples of every device; None if no division saves memory."""
    base = federations[0]
    total, num_clients = base.train.x.shape[0], base.num_clients
    # Parts with several pools, a divided pool, and unseen clients are not divided.
    is_one = all(_has_pool(federation, base) for federation in federations)
    if count == 1 or num_clients % count or not is_one:
        return None
    owned, size = [], -(-total // count)
    if not isinstance(base.train.index, jax.ShapeDtypeStruct):
        owned = [_owned(federations, part, count) for part in range(count)]
        # An example may belong to clients on several devices, by leaky partitions or
        # several federations of one pool; each device has a copy.
        size = max(max(map(len, owned)), 1)
    if size + moved >= total:
        return None
    return Shares(owned, size, count)


def divided(
    federations: Sequence[Federation],
    shares: Shares,
    execution: sharding.Execution,
    *,
    are_shapes: bool = False,
) -> list[Federation]:
    """Divides the pool of federations among devices, or only its shapes."""
    pool = _pool(federations[0], shares, execution, are_shapes=are_shapes)
    distinct = {id(federation): federation for federation in federations}
    results = {name: _with_pool(f, pool, shares) for name, f in distinct.items()}
    return [results[id(federation)] for federation in federations]


def _has_pool(federation: Federation, base: Federation) -> bool:
    """Returns whether all parts have the undivided pool of the base federation."""
    parts = [getattr(federation, name) for name in _PARTS]
    pool = (base.train.x, base.train.y)
    is_same = all(part.x is pool[0] and part.y is pool[1] for part in parts)
    return is_same and federation.unseen is None and base.train.num_parts == 1


def _rows(num_clients: int, part: int, count: int) -> slice:
    """Returns the clients of a device."""
    size = num_clients // count
    return slice(part * size, (part + 1) * size)


def _is_example(data: ClientData) -> np.ndarray:
    """Returns `bool[N, M]`, False for padding in clients' lists."""
    slots = np.arange(data.index.shape[1])
    return slots < np.asarray(data.num_examples)[:, None]


def _owned(federations: Sequence[Federation], part: int, count: int) -> np.ndarray:
    """Returns the positions of all examples of a device's clients, in order."""
    positions = [np.zeros(0, np.int32)]
    for federation in {id(f): f for f in federations}.values():
        rows = _rows(federation.num_clients, part, count)
        for name in _PARTS:
            data = getattr(federation, name)
            positions.append(np.asarray(data.index)[rows][_is_example(data)[rows]])
    return np.unique(np.concatenate(positions))


def _pool(
    federation: Federation,
    shares: Shares,
    execution: sharding.Execution,
    *,
    are_shapes: bool,
) -> dict[str, Any]:
    """Places every device's examples; a process fills the parts of its devices."""
    placed = NamedSharding(sharding.client_mesh(execution.num_devices), _SPLIT)
    size, count = shares.size, shares.count

    def place(leaf: jax.Array | np.ndarray) -> Tree:
        shape = (count * size, *leaf.shape[1:])
        if are_shapes or not shares.owned:
            return jax.ShapeDtypeStruct(shape, leaf.dtype, sharding=placed)
        host = np.asarray(leaf)

        def rows(index: Any) -> np.ndarray:
            positions = shares.owned[(index[0].start or 0) // size]
            part = np.zeros((size, *host.shape[1:]), host.dtype)
            part[: len(positions)] = host[positions]
            return part

        return jax.make_array_from_callback(shape, placed, rows)

    train = federation.train
    pool = {"x": place(train.x), "y": place(train.y), "numbers": None}
    # Noise of examples is drawn by their numbers in the undivided pool.
    if train.noise_scale is not None:
        pool["numbers"] = place(np.arange(train.x.shape[0], dtype=np.int32))
    return pool | {"num_parts": count}


def _with_pool(
    federation: Federation, pool: dict[str, Any], shares: Shares
) -> Federation:
    """Returns a federation with a divided pool, and lists of positions in it."""

    def renumbered(data: ClientData) -> ClientData:
        if not shares.owned:  # only shapes are known
            return dataclasses.replace(data, **pool)
        old, real = np.asarray(data.index), _is_example(data)
        new = np.zeros_like(old)
        for part, positions in enumerate(shares.owned):
            rows = _rows(len(old), part, shares.count)
            at = np.where(real[rows], np.searchsorted(positions, old[rows]), 0)
            # Still positions in the whole pool: code that reads examples by position is
            # correct on any device, and XLA moves the data.
            new[rows] = part * shares.size + at
        return dataclasses.replace(data, **pool, index=jax.device_put(new))

    parts = {name: renumbered(getattr(federation, name)) for name in _PARTS}
    return dataclasses.replace(federation, **parts)


def placed(pool: Federation, execution: sharding.Execution) -> Federation:
    """Replicates data that clients share, and divides a divided pool."""
    if pool.train.num_parts == 1:
        return sharding.replicate(pool, execution)
    names, train = ("x", "y", "numbers"), pool.train
    data = {name: getattr(train, name) for name in names}
    data = sharding.shard_rows(data, train.x.shape[0], execution)
    remainder = {
        name: dataclasses.replace(getattr(pool, name), **dict.fromkeys(names))
        for name in _PARTS
    }
    copy = sharding.replicate(dataclasses.replace(pool, **remainder), execution)
    parts = {name: dataclasses.replace(getattr(copy, name), **data) for name in _PARTS}
    return dataclasses.replace(copy, **parts)


def specs(pool: ClientData) -> ClientData:
    """Returns how devices divide the pool in a map over clients."""
    tree = jax.tree.map(lambda _: _WHOLE, pool)
    if pool.num_parts == 1:
        return tree
    numbers = None if pool.numbers is None else _SPLIT
    return dataclasses.replace(tree, x=_SPLIT, y=_SPLIT, numbers=numbers)


def client(pool: ClientData, fields: dict[str, Any], *, is_part: bool) -> ClientData:
    """Returns the data of ONE client, from a pool or its device's part of the pool."""
    if is_part:
        # Positions count in the whole pool, of which the device has a part.
        start = lax.axis_index(sharding.AXIS) * pool.x.shape[0]
        fields = fields | {"index": fields["index"] - start}
    return pool.with_rows(fields)


def of_cohort(
    data: ClientData, cohort: jax.Array, execution: sharding.Execution
) -> ClientData:
    """Gathers the data of a cohort `int32[K]`, with examples if devices divide them."""
    fields = data.rows()
    if data.num_parts == 1 or execution.mode != "shard":
        return data.with_rows(split_rows.take(fields, cohort, execution))
    del fields["index"]  # the cohort gets new positions
    fields = split_rows.take(fields, cohort, execution)
    pool = {"x": data.x, "y": data.y}
    if data.numbers is not None:
        pool["numbers"] = data.numbers

    def gather(local: tuple[Any, Any], rows: jax.Array) -> Tree:
        index, part = local
        start = lax.axis_index(sharding.AXIS) * part["x"].shape[0]
        # Only results of the device with the client are used; others are arbitrary.
        at = jnp.clip(index[rows] - start, 0, part["x"].shape[0] - 1)
        return jax.tree.map(lambda leaf: leaf[at], part)

    # Examples are sent to the members' places, where they form a divided pool again.
    taken = split_rows.at_places((data.index, pool), cohort, execution, gather)
    taken = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), taken)
    count, slots = cohort.shape[0], data.index.shape[1]
    index = jnp.arange(count * slots, dtype=jnp.int32).reshape(count, slots)
    rows = fields | {"index": index}
    return dataclasses.replace(data.with_rows(rows), **taken)

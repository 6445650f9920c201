"""Examples divided among devices, each of which has those of its clients.

The pool of examples is then put together of parts of one length, one per device. Rows
of clients are divided in their order, and a client's list has positions in the part of
its device only. They stay positions in the whole pool: whatever reads examples by them
is right wherever it runs, and XLA moves what it needs. A map over clients reads the
part of its device. The examples of a cohort go to the places of its members, where they
are a divided pool again.
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
    """Examples of each of n devices.

    Attributes:
      owned: of every device, sorted positions in the undivided pool; none where only
        the shapes of the lists are known.
      size: examples of a device, padding included; those of the one that has most.
      count: n.
    """

    owned: Sequence[np.ndarray]
    size: int
    count: int


def shares(federations: Sequence[Federation], count: int, moved: int) -> Shares | None:
    """Finds out which examples devices would have, and whether that is less memory.

    Examples of clients on several devices, of leaky partitions or of several
    federations of one pool, are on each of them.

    Returns:
      The shares. None where devices do not divide the clients, where a pool is not
      shared by all parts, is divided already or has examples of clients that never
      train, or where a device would have as many examples as there are.
    """
    first = federations[0]
    total, num_clients = first.train.x.shape[0], first.num_clients
    is_one = all(_has_pool(federation, first) for federation in federations)
    if count == 1 or num_clients % count or not is_one:
        return None
    owned, size = [], -(-total // count)
    if not isinstance(first.train.index, jax.ShapeDtypeStruct):
        owned = [_owned(federations, part, count) for part in range(count)]
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
    """Divides the pool of federations among devices.

    Args:
      federations: of one pool.
      shares: of the devices of the execution.
      execution: an execution of mode `shard`.
      are_shapes: whether shapes of the pool are enough.
    """
    pool = _pool(federations[0], shares, execution, are_shapes=are_shapes)
    distinct = {id(federation): federation for federation in federations}
    made = {name: _with_pool(one, pool, shares) for name, one in distinct.items()}
    return [made[id(federation)] for federation in federations]


def _has_pool(federation: Federation, first: Federation) -> bool:
    """Returns whether all parts have the pool of a first federation, undivided."""
    parts = [getattr(federation, name) for name in _PARTS]
    pool = (first.train.x, first.train.y)
    is_same = all(part.x is pool[0] and part.y is pool[1] for part in parts)
    return is_same and federation.unseen is None and first.train.num_parts == 1


def _rows(num_clients: int, part: int, count: int) -> slice:
    """Returns the clients of a device."""
    each = num_clients // count
    return slice(part * each, (part + 1) * each)


def _real(data: ClientData) -> np.ndarray:
    """Returns `bool[N, M]`: which slots of clients' lists are no padding."""
    slots = np.arange(data.index.shape[1])
    return slots < np.asarray(data.num_examples)[:, None]


def _owned(federations: Sequence[Federation], part: int, count: int) -> np.ndarray:
    """Returns the positions of all examples of a device's clients, in order."""
    found = [np.zeros(0, np.int32)]
    for federation in {id(f): f for f in federations}.values():
        rows = _rows(federation.num_clients, part, count)
        for name in _PARTS:
            data = getattr(federation, name)
            found.append(np.asarray(data.index)[rows][_real(data)[rows]])
    return np.unique(np.concatenate(found))


def _pool(
    first: Federation,
    shares: Shares,
    execution: sharding.Execution,
    *,
    are_shapes: bool,
) -> dict[str, Any]:
    """Puts every device's examples on it; a process those of its own devices.

    Noise that belongs to examples is drawn by their numbers in the undivided pool.
    """
    placed = NamedSharding(sharding.client_mesh(execution.num_devices), _SPLIT)
    size, count = shares.size, shares.count

    def place(leaf: Any) -> Any:
        shape = (count * size, *leaf.shape[1:])
        if are_shapes or not shares.owned:
            return jax.ShapeDtypeStruct(shape, leaf.dtype, sharding=placed)
        host = np.asarray(leaf)

        def rows(index: Any) -> np.ndarray:
            own = shares.owned[(index[0].start or 0) // size]
            part = np.zeros((size, *host.shape[1:]), host.dtype)
            part[: len(own)] = host[own]
            return part

        return jax.make_array_from_callback(shape, placed, rows)

    train = first.train
    pool = {"x": place(train.x), "y": place(train.y), "numbers": None}
    if train.noise_scale is not None:
        pool["numbers"] = place(np.arange(train.x.shape[0], dtype=np.int32))
    return pool | {"num_parts": count}


def _with_pool(
    federation: Federation, pool: dict[str, Any], shares: Shares
) -> Federation:
    """Returns a federation with a divided pool, and lists of positions in it."""

    def renumbered(data: ClientData) -> ClientData:
        if not shares.owned:  # of shapes
            return dataclasses.replace(data, **pool)
        old, real = np.asarray(data.index), _real(data)
        new = np.zeros_like(old)
        for part, own in enumerate(shares.owned):
            rows = _rows(len(old), part, shares.count)
            at = np.where(real[rows], np.searchsorted(own, old[rows]), 0)
            new[rows] = part * shares.size + at
        return dataclasses.replace(data, **pool, index=jax.device_put(new))

    parts = {name: renumbered(getattr(federation, name)) for name in _PARTS}
    return dataclasses.replace(federation, **parts)


def placed(pool: Federation, execution: sharding.Execution) -> Any:
    """Places on all devices what clients share, but for examples that these divide.

    Args:
      pool: a federation without rows of clients; it may be of shapes.
      execution: an execution of mode `shard`.
    """
    if pool.train.num_parts == 1:
        return sharding.replicate(pool, execution)
    names, train = ("x", "y", "numbers"), pool.train
    own = {name: getattr(train, name) for name in names}
    own = sharding.shard_rows(own, train.x.shape[0], execution)
    rest = {
        name: dataclasses.replace(getattr(pool, name), **dict.fromkeys(names))
        for name in _PARTS
    }
    whole = sharding.replicate(dataclasses.replace(pool, **rest), execution)
    parts = {name: dataclasses.replace(getattr(whole, name), **own) for name in _PARTS}
    return dataclasses.replace(whole, **parts)


def specs(pool: ClientData) -> ClientData:
    """Returns how devices divide a pool that a map over clients is given."""
    whole = jax.tree.map(lambda _: _WHOLE, pool)
    if pool.num_parts == 1:
        return whole
    numbers = None if pool.numbers is None else _SPLIT
    return dataclasses.replace(whole, x=_SPLIT, y=_SPLIT, numbers=numbers)


def client(pool: ClientData, fields: dict[str, Any], *, is_part: bool) -> ClientData:
    """Returns the data of ONE client, from a pool or from its device's part of one."""
    if is_part:
        start = lax.axis_index(sharding.AXIS) * pool.x.shape[0]
        fields = fields | {"index": fields["index"] - start}
    return pool.with_rows(fields)


def of_cohort(
    data: ClientData, cohort: jax.Array, execution: sharding.Execution
) -> ClientData:
    """Gathers the data of a cohort, with its examples where devices divide them.

    Args:
      data: of all N clients.
      cohort: `int32[K]`.
      execution: how the map over clients is run.
    """
    fields = data.rows()
    if data.num_parts == 1 or execution.mode != "shard":
        return data.with_rows(split_rows.take(fields, cohort, execution))
    del fields["index"]  # of other positions here
    fields = split_rows.take(fields, cohort, execution)
    pool = {"x": data.x, "y": data.y}
    if data.numbers is not None:
        pool["numbers"] = data.numbers

    def own(local: tuple[Any, Any], rows: jax.Array) -> Any:
        index, part = local
        start = lax.axis_index(sharding.AXIS) * part["x"].shape[0]
        at = jnp.clip(index[rows] - start, 0, part["x"].shape[0] - 1)
        return jax.tree.map(lambda leaf: leaf[at], part)

    taken = split_rows.at_places((data.index, pool), cohort, execution, own)
    taken = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), taken)
    count, slots = cohort.shape[0], data.index.shape[1]
    index = jnp.arange(count * slots, dtype=jnp.int32).reshape(count, slots)
    rows = fields | {"index": index}
    return dataclasses.replace(data.with_rows(rows), **taken)

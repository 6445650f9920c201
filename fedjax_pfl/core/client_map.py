"""The map over clients in four executions."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec

from fedjax_pfl.core import client_rows, sharding

__all__ = ["chunked", "lane_max", "map_chunks", "map_clients"]


@jax.custom_batching.custom_vmap
def lane_max(x: jax.Array) -> jax.Array:
    """Returns the maximum over all lanes of the vmaps around the call, for every lane.

    A loop bounded by it has one trip count per chunk of clients, so that its body runs
    without the selects that a bound of each lane's own would need.

    Args:
      x: `[]` value of this lane.

    Returns:
      `[]` value that does not depend on the lane; `x` itself outside vmap.
    """
    return x


@lane_max.def_vmap
def _lane_max_rule(axis_size: int, in_batched: list[bool], x: jax.Array):
    del axis_size
    return lane_max(jnp.max(x, axis=0) if in_batched[0] else x), False


def map_clients(
    fn: Callable[[Any, Any], Any],
    rows: Any,
    shared: Any,
    execution: sharding.Execution,
    work: jax.Array | None = None,
) -> Any:
    """Applies a function of one client to all clients.

    Args:
      fn: `(row, shared) -> output`, written for one client.
      rows: pytree of `[K, ...]`.
      shared: pytree handed to every call as it is.
      execution: how; see `Execution`.
      work: `[K]` by which chunks are formed, where the execution wants that; more takes
        longer.

    Returns:
      Pytree of `[K, ...]` outputs.
    """
    if not execution.by_size:
        work = None
    count = jax.tree.leaves(rows)[0].shape[0]
    if execution.mode == "loop":
        outputs = [
            fn(client_rows.take(rows, jnp.asarray(i)), shared) for i in range(count)
        ]
        return jax.tree.map(lambda *leaves: jnp.stack(leaves), *outputs)
    if execution.mode == "shard":
        mesh = sharding.client_mesh(execution.num_devices)
        mapped = jax.shard_map(
            lambda r, s: map_chunks(fn, r[0], s, execution.chunk_size, r[1]),
            mesh=mesh,
            in_specs=(PartitionSpec(sharding.AXIS), PartitionSpec()),
            out_specs=PartitionSpec(sharding.AXIS),
            check_vma=False,
        )
        outputs = mapped(_pad_rows((rows, work), -count % mesh.size), shared)
        return jax.tree.map(lambda leaf: leaf[:count], outputs)
    chunk = execution.chunk_size if execution.mode == "chunk" else 0
    return map_chunks(fn, rows, shared, chunk, work)


def _pad_rows(rows: Any, extra: int) -> Any:
    """Repeats the last row `extra` times, so that devices are full."""
    if not extra:
        return rows
    return jax.tree.map(
        lambda leaf: jnp.concatenate([leaf, jnp.repeat(leaf[-1:], extra, axis=0)]), rows
    )


def map_chunks(
    fn: Callable[[Any, Any], Any],
    rows: Any,
    shared: Any,
    chunk: int,
    work: jax.Array | None = None,
) -> Any:
    """Maps over vmapped chunks of rows, one compiled body for all of them.

    Args:
      fn: `(row, shared) -> output`, written for one row.
      rows: pytree of `[K, ...]`.
      shared: pytree handed to every call as it is.
      chunk: most rows per chunk; 0 means all at once. Chunks are of one size, as small
        as their number allows, so that few rows of the last one are wasted.
      work: `[K]` by which chunks are formed, the most first; None takes rows in order.

    Returns:
      Pytree of `[K, ...]` outputs.
    """
    count = jax.tree.leaves(rows)[0].shape[0]
    # A row that is alone has no client axis: plain products are faster than batched.
    if count == 1:
        output = fn(jax.tree.map(lambda leaf: leaf[0], rows), shared)
        return jax.tree.map(lambda leaf: leaf[None], output)
    if chunk == 0 or chunk >= count:
        return jax.vmap(fn, in_axes=(0, None))(rows, shared)
    fn = jax.jit(fn, inline=True)  # traced once, not for its shapes and then again
    num_chunks = -(-count // chunk)
    chunk = -(-count // num_chunks)
    order = None if work is None else jnp.argsort(-work)
    read, write = _access(count, chunk, order)

    def step(number: jax.Array, outputs: Any) -> Any:
        chunk_outputs = map_chunks(fn, read(rows, number), shared, chunk=0)
        return write(outputs, chunk_outputs, number)

    row = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), rows)
    shapes = jax.eval_shape(fn, row, shared)
    outputs = jax.tree.map(lambda s: jnp.zeros((count, *s.shape), s.dtype), shapes)
    return lax.fori_loop(0, num_chunks, step, outputs)


def _access(
    count: int, chunk: int, order: jax.Array | None
) -> tuple[Callable[[Any, jax.Array], Any], Callable[[Any, Any, jax.Array], Any]]:
    """Returns the reader and the writer of a chunk's rows.

    Args:
      count: K.
      chunk: rows per chunk.
      order: `int32[K]` in which rows are taken, or None.

    Returns:
      `(tree, chunk number) -> rows` and `(tree, rows, chunk number) -> tree`. Where the
      last chunk lacks rows, it begins earlier and computes some again; with an order,
      the last row takes their place and is written once.
    """
    if chunk == 1 or order is None:

        def start(number: jax.Array) -> jax.Array:
            if order is not None:
                return order[number]
            # Slices: a gather and a scatter per leaf take long to compile.
            return jnp.minimum(number * chunk, count - chunk)

        def read_slice(tree: Any, number: jax.Array) -> Any:
            at = start(number)
            return jax.tree.map(
                lambda leaf: lax.dynamic_slice_in_dim(leaf, at, chunk), tree
            )

        def write_slice(tree: Any, new: Any, number: jax.Array) -> Any:
            at = start(number)
            return jax.tree.map(
                lambda leaf, value: lax.dynamic_update_slice_in_dim(leaf, value, at, 0),
                tree,
                new,
            )

        return read_slice, write_slice

    def members(number: jax.Array) -> tuple[jax.Array, jax.Array]:
        slots = number * chunk + jnp.arange(chunk)
        return order[jnp.minimum(slots, count - 1)], slots < count

    def gather(tree: Any, number: jax.Array) -> Any:
        return client_rows.take(tree, members(number)[0])

    def scatter(tree: Any, new: Any, number: jax.Array) -> Any:
        rows, is_member = members(number)
        at = jnp.where(is_member, rows, count)
        return jax.tree.map(
            lambda leaf, value: leaf.at[at].set(value, mode="drop"), tree, new
        )

    return gather, scatter


def chunked(fn: Callable[..., Any], chunk: int) -> Callable[..., Any]:
    """Wraps a function of one client to bound its memory however many are vmapped.

    Args:
      fn: function of pytrees, written for one client; must not close over traced
        values.
      chunk: most clients at once.

    Returns:
      The same function, for which `vmap` is a map over vmapped chunks.
    """
    mapped = jax.custom_batching.custom_vmap(fn)

    @mapped.def_vmap
    def rule(axis_size: int, in_batched: Any, *args):  # pyright: ignore[reportUnusedFunction]
        del axis_size
        leaves, structure = jax.tree.flatten(args)
        is_row = jax.tree.leaves(in_batched)
        rows = [leaf for leaf, row in zip(leaves, is_row, strict=True) if row]
        shared = [leaf for leaf, row in zip(leaves, is_row, strict=True) if not row]

        def one(rows: list[Any], shared: list[Any]):
            own, common = iter(rows), iter(shared)
            picked = [next(own) if row else next(common) for row in is_row]
            return fn(*jax.tree.unflatten(structure, picked))

        outputs = map_chunks(one, rows, shared, chunk)
        return outputs, jax.tree.map(lambda _: True, outputs)

    return mapped

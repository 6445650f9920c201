"""The map over clients in four executions."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from fedjax_pfl import checks
from fedjax_pfl.clients import rows as rows_

__all__ = [
    "Execution",
    "chunked",
    "client_mesh",
    "fetch",
    "lane_max",
    "map_chunks",
    "map_clients",
    "replicate",
    "shard_rows",
]

AXIS = "clients"


@dataclasses.dataclass(frozen=True)
class Execution:
    """How the map over clients is run; the mathematics is the same in all modes.

    Attributes:
      mode: `loop` (plain Python, uncompiled: the reference), `vmap`, `chunk` (vmapped
        chunks under `lax.map`: bounded memory) or `shard` (client axis over devices,
        chunks inside).
      chunk_size: clients per chunk; 0 means all at once. Used by `chunk` and `shard`.
      num_devices: devices of `shard`; 0 means all.
      by_size: whether chunks are formed of clients with about as much work, where it is
        known; a chunk takes as long as its largest client.
    """

    mode: str = "vmap"
    chunk_size: int = 0
    num_devices: int = 0
    by_size: bool = False

    def __post_init__(self):
        checks.known(self.mode, ("loop", "vmap", "chunk", "shard"), "execution")
        checks.whole("chunk_size", self.chunk_size, at_least=0)
        checks.whole("num_devices", self.num_devices, at_least=0)

    @classmethod
    def parse(cls, text: "str | Execution") -> "Execution":
        """Reads `loop`, `vmap`, `chunk=K`, `shard` or `shard=DEVICES`.

        Args:
          text: the text, or an `Execution`, which is returned as it is.

        Returns:
          The execution.

        Raises:
          InputError: if the text has another form.

        Example:
          >>> Execution.parse("chunk=8").chunk_size
          8
        """
        if isinstance(text, Execution):
            return text
        mode, _, number = text.partition("=")
        checks.known(mode, ("loop", "vmap", "chunk", "shard"), "execution")
        if number and (
            not number.isdecimal() or int(number) == 0 or mode in ("loop", "vmap")
        ):
            raise checks.InputError(
                f"Expected execution to be loop, vmap, chunk=K, shard or shard=DEVICES "
                f"with a positive number, got {text!r}."
            )
        if mode == "chunk" and not number:
            raise checks.InputError("Expected a chunk size, as in execution='chunk=8'.")
        count = int(number or 0)
        if mode == "shard":
            return cls(mode=mode, num_devices=count)
        return cls(mode=mode, chunk_size=count)

    def __str__(self) -> str:
        if self.mode != "shard":
            return f"{self.mode}={self.chunk_size}" if self.chunk_size else self.mode
        name = f"shard={self.num_devices}" if self.num_devices else "shard"
        return f"{name} in chunks of {self.chunk_size}" if self.chunk_size else name


@functools.cache
def client_mesh(num_devices: int) -> Mesh:
    """The one-axis mesh over `num_devices` devices (0: all).

    Args:
      num_devices: how many devices.

    Returns:
      The mesh, with automatic axis types.

    Raises:
      InputError: if there are fewer devices.
    """
    count = num_devices or jax.device_count()
    if count > jax.device_count():
        raise checks.InputError(
            f"Expected at most {jax.device_count()} devices, got num_devices={count}; "
            "on a CPU use --devices, or XLA_FLAGS before JAX starts."
        )
    devices = jax.devices()[:count]
    return jax.make_mesh(
        (count,), (AXIS,), axis_types=(AxisType.Auto,), devices=devices
    )


def shard_rows(tree: Any, num_rows: int, execution: Execution, *, axis: int = 0) -> Any:
    """Places leaves on the mesh: split where one axis has `num_rows` rows.

    Args:
      tree: pytree of arrays.
      num_rows: N, which need not divide by the number of devices (then replicated).
      execution: an execution of mode `shard`.
      axis: which axis has the rows.

    Returns:
      The same tree, placed.
    """
    mesh = client_mesh(execution.num_devices)
    split = PartitionSpec(*[None] * axis, AXIS)

    def place(leaf: jax.Array) -> jax.Array:
        rows = leaf.ndim > axis and leaf.shape[axis] == num_rows
        spec = split if rows and num_rows % mesh.size == 0 else PartitionSpec()
        return _placed(leaf, NamedSharding(mesh, spec))

    return jax.tree.map(place, tree)


def _placed(leaf: jax.Array, sharding: NamedSharding) -> jax.Array:
    """Places an array on the devices of all processes, each of which has all of it."""
    if sharding.is_fully_addressable:
        return jax.device_put(leaf, sharding)
    if not leaf.is_fully_addressable:  # placed before
        return jax.jit(lambda x: x, out_shardings=sharding)(leaf)
    if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        data = _placed(jax.random.key_data(leaf), sharding)
        return jax.random.wrap_key_data(data, impl=jax.random.key_impl(leaf))
    host = np.asarray(leaf)
    return jax.make_array_from_callback(host.shape, sharding, lambda part: host[part])


def fetch(tree: Any) -> Any:
    """Brings a tree to the host, in every process whole, as NumPy arrays."""

    def whole(leaf: Any) -> np.ndarray:
        if isinstance(leaf, jax.Array) and not leaf.is_fully_addressable:
            everywhere = NamedSharding(client_mesh(0), PartitionSpec())
            leaf = _placed(leaf, everywhere).addressable_data(0)
        return np.asarray(leaf)

    return jax.tree.map(whole, tree)


def replicate(tree: Any, execution: Execution) -> Any:
    """Places all of a tree on every device of an execution of mode `shard`."""
    sharding = NamedSharding(client_mesh(execution.num_devices), PartitionSpec())
    return jax.tree.map(lambda leaf: _placed(leaf, sharding), tree)


@jax.custom_batching.custom_vmap
def lane_max(x: jax.Array) -> jax.Array:
    """Maximum over all lanes of whatever vmaps surround the call, the same for all.

    A loop bounded by it has one trip count per chunk of clients, so that its body runs
    without the selects that a bound of each lane's own would need.

    Args:
      x: `[]` value of this lane.

    Returns:
      `[]` value that does not depend on the lane; `x` itself outside vmap.
    """
    return x


@lane_max.def_vmap
def _lane_max_rule(axis_size, in_batched, x):
    del axis_size
    return lane_max(jnp.max(x, axis=0) if in_batched[0] else x), False


def map_clients(
    fn: Callable[[Any, Any], Any],
    rows: Any,
    shared: Any,
    execution: Execution,
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
        outputs = [fn(rows_.take(rows, jnp.asarray(i)), shared) for i in range(count)]
        return jax.tree.map(lambda *leaves: jnp.stack(leaves), *outputs)
    if execution.mode == "shard":
        mesh = client_mesh(execution.num_devices)
        mapped = jax.shard_map(
            lambda r, s: map_chunks(fn, r[0], s, execution.chunk_size, r[1]),
            mesh=mesh,
            in_specs=(PartitionSpec(AXIS), PartitionSpec()),
            out_specs=PartitionSpec(AXIS),
            check_vma=False,
        )
        outputs = mapped(_pad_rows((rows, work), -count % mesh.size), shared)
        return jax.tree.map(lambda leaf: leaf[:count], outputs)
    chunk = execution.chunk_size if execution.mode == "chunk" else 0
    return map_chunks(fn, rows, shared, chunk, work)


def _pad_rows(rows: Any, extra: int) -> Any:
    """Repeats the last row `extra` times, so that chunks and devices are full."""
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
    if chunk == 0 or chunk >= count:
        return jax.vmap(fn, in_axes=(0, None))(rows, shared)
    chunk = -(-count // -(-count // chunk))
    order = None if work is None else jnp.argsort(-work)
    if order is not None:
        rows = rows_.take(rows, order)
    padded = _pad_rows(rows, -count % chunk)
    outputs = lax.map(lambda row: fn(row, shared), padded, batch_size=chunk)
    outputs = jax.tree.map(lambda leaf: leaf[:count], outputs)
    return outputs if order is None else rows_.take(outputs, jnp.argsort(order))


def chunked(fn: Callable[..., Any], chunk: int) -> Callable[..., Any]:
    """A function of one client that takes bounded memory however many are vmapped.

    Args:
      fn: function of pytrees, written for one client; must not close over traced
        values.
      chunk: most clients at once.

    Returns:
      The same function, for which `vmap` is a map over vmapped chunks.
    """
    mapped = jax.custom_batching.custom_vmap(fn)

    @mapped.def_vmap
    def rule(axis_size, in_batched, *args):  # pyright: ignore[reportUnusedFunction]
        del axis_size
        leaves, structure = jax.tree.flatten(args)
        is_row = jax.tree.leaves(in_batched)
        rows = [leaf for leaf, row in zip(leaves, is_row, strict=True) if row]
        shared = [leaf for leaf, row in zip(leaves, is_row, strict=True) if not row]

        def one(rows, shared):
            own, common = iter(rows), iter(shared)
            picked = [next(own) if row else next(common) for row in is_row]
            return fn(*jax.tree.unflatten(structure, picked))

        outputs = map_chunks(one, rows, shared, chunk)
        return outputs, jax.tree.map(lambda _: True, outputs)

    return mapped

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
    "split_parameters",
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


def split_parameters(tree: Any, execution: Execution) -> Any:
    """Moves rows of a compiled program from the client axis to the parameter axis.

    Every device then has its part of all rows; sums over parameters cross devices.

    Args:
      tree: pytree of `[K, *P]`.
      execution: how the map over clients is run; unless it is `shard`, nothing moves.

    Returns:
      The same values.
    """
    if execution.mode != "shard":
        return tree
    mesh = client_mesh(execution.num_devices)

    def split(leaf: jax.Array) -> jax.Array:
        matrix = leaf.reshape(leaf.shape[0], -1)
        spec = NamedSharding(mesh, PartitionSpec(None, AXIS))
        return lax.with_sharding_constraint(matrix, spec).reshape(leaf.shape)

    return jax.tree.map(split, tree)


def _placed(leaf: Any, sharding: NamedSharding) -> Any:
    """Places an array on the devices of all processes, each of which has all of it.

    Of an array's shape, says where the array would be.
    """
    if isinstance(leaf, jax.ShapeDtypeStruct):
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)
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
    """Places all of a tree on every device of an execution of mode `shard`.

    An array that is in several places of the tree is placed once.
    """
    sharding = NamedSharding(client_mesh(execution.num_devices), PartitionSpec())
    distinct = {id(leaf): leaf for leaf in jax.tree.leaves(tree)}
    placed = {name: _placed(leaf, sharding) for name, leaf in distinct.items()}
    return jax.tree.map(lambda leaf: placed[id(leaf)], tree)


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
        found = map_chunks(fn, read(rows, number), shared, chunk=0)
        return write(outputs, found, number)

    row = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), rows)
    shapes = jax.eval_shape(fn, row, shared)
    outputs = jax.tree.map(lambda s: jnp.zeros((count, *s.shape), s.dtype), shapes)
    return lax.fori_loop(0, num_chunks, step, outputs)


def _access(
    count: int, chunk: int, order: jax.Array | None
) -> tuple[Callable[[Any, jax.Array], Any], Callable[[Any, Any, jax.Array], Any]]:
    """How the rows of a chunk are read and written.

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
        return rows_.take(tree, members(number)[0])

    def scatter(tree: Any, new: Any, number: jax.Array) -> Any:
        rows, is_member = members(number)
        at = jnp.where(is_member, rows, count)
        return jax.tree.map(
            lambda leaf, value: leaf.at[at].set(value, mode="drop"), tree, new
        )

    return gather, scatter


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

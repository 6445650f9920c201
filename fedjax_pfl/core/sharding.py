"""Execution modes, meshes, and leaves placed on devices."""

import contextlib
import contextvars
import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import core, lax
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
from jax.typing import ArrayLike

from fedjax_pfl.core import checks, struct
from fedjax_pfl.core.aliases import Tree

__all__ = [
    "AXIS",
    "Execution",
    "client_mesh",
    "divides",
    "dividing",
    "fetch",
    "num_devices",
    "on_devices",
    "over",
    "replicate",
    "shard_rows",
    "shard_stacked",
    "split_parameters",
]

_MODES = "loop", "vmap", "chunk", "shard"

AXIS = "clients"
"""Name of the mesh axis that carries clients."""


@dataclasses.dataclass(frozen=True)
class Execution:
    """Execution mode of the map over clients; all modes compute the same mathematics.

    Attributes:
      mode: `loop` (plain Python, uncompiled: the reference), `vmap`, `chunk` (vmapped
        chunks under `lax.map`: bounded memory) or `shard` (client axis over devices,
        chunks inside).
      chunk_size: clients per chunk; 0 means all at once. Used by `chunk` and `shard`.
      num_devices: devices of `shard`; 0 means all.
      by_size: whether chunks are formed of clients with similar amounts of work, if
        these are known; a chunk takes as long as its largest client.
    """

    mode: str = "vmap"
    chunk_size: int = struct.static_field(default=0, at_least=0)
    num_devices: int = struct.static_field(default=0, at_least=0)
    by_size: bool = False

    def __post_init__(self):
        struct.check_fields(self)
        checks.known(self.mode, _MODES, "execution")

    @classmethod
    def parse(cls, text: "str | Execution") -> "Execution":
        """Reads `loop`, `vmap`, `chunk=K`, `shard` or `shard=DEVICES`.

        Args:
          text: the text, or an `Execution`, which is returned unchanged.

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
        checks.is_text("execution", text)
        mode, _, number = text.partition("=")
        checks.known(mode, _MODES, "execution")
        # The number of clients in a chunk, or of devices.
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
    """Returns the one-axis mesh over `num_devices` devices (0: all).

    Args:
      num_devices: number of devices.

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


def num_devices(execution: Execution) -> int:
    """Counts the devices that share clients, 1 unless the mode is `shard`."""
    if execution.mode != "shard":
        return 1
    return client_mesh(execution.num_devices).size


_dividing: contextvars.ContextVar[Execution | None]
_dividing = contextvars.ContextVar("dividing", default=None)


@contextlib.contextmanager
def over(execution: Execution) -> Iterator[None]:
    """Declares, during tracing, that devices divide arrays with a row per client.

    Args:
      execution: execution mode of the map over clients; without `shard` on several
        devices, arrays are not divided.
    """
    token = _dividing.set(execution if num_devices(execution) > 1 else None)
    try:
        yield
    finally:
        _dividing.reset(token)


def dividing() -> Execution | None:
    """Returns the present execution if its devices divide client rows, or None."""
    return _dividing.get()


def divides(num_rows: int, execution: Execution) -> bool:
    """Returns whether N rows divide evenly among several devices."""
    count = num_devices(execution)
    return count > 1 and num_rows % count == 0


def shard_rows(
    tree: Tree,
    num_rows: int,
    execution: Execution,
    *,
    axis: int = 0,
) -> Tree:
    """Places leaves on the mesh: split if one axis has `num_rows` rows.

    Args:
      tree: pytree of arrays.
      num_rows: N; leaves are replicated if the number of devices does not divide it.
      execution: an execution of mode `shard`.
      axis: axis of the rows.

    Returns:
      The same tree, placed.
    """
    mesh = client_mesh(execution.num_devices)
    split = PartitionSpec(*[None] * axis, AXIS)

    def place(leaf: jax.Array) -> jax.Array:
        rows = leaf.ndim > axis and leaf.shape[axis] == num_rows
        spec = split if rows and num_rows % mesh.size == 0 else PartitionSpec()
        return _place(leaf, NamedSharding(mesh, spec))

    return jax.tree.map(place, tree)


def shard_stacked(tree: Tree, like: Tree) -> Tree:
    """Places leaves `[p, ...]` like leaves `[...]`, with an undivided first axis.

    Args:
      tree: pytree of arrays.
      like: tree of the same structure with placed leaves `[...]`; a leaf without a mesh
        leaves its counterpart unchanged.
    """

    def place(leaf: jax.Array, like: jax.Array) -> Any:
        if not isinstance(like.sharding, NamedSharding):
            return leaf
        spec = PartitionSpec(None, *like.sharding.spec)
        return _place(leaf, NamedSharding(like.sharding.mesh, spec))

    return jax.tree.map(place, tree, like)


def on_devices(
    fn: Callable[..., Any], execution: Execution, in_specs: Tree, out_specs: Tree
) -> Callable[..., Any]:
    """Returns a function of arrays that every device calls with its part.

    Args:
      fn: function of the parts of one device; sums over devices use the axis `AXIS`.
      execution: an execution of mode `shard`.
      in_specs: how arguments are divided, prefixes of their trees.
      out_specs: how results are assembled.
    """
    return jax.shard_map(
        fn,
        mesh=client_mesh(execution.num_devices),
        in_specs=in_specs,
        out_specs=out_specs,
        check_vma=False,
    )


def split_parameters(tree: Tree, execution: Execution) -> Tree:
    """Moves rows of a compiled program from the client axis to the parameter axis.

    Every device then has its part of all rows; sums over parameters cross devices.

    Args:
      tree: pytree of `[K, *P]`.
      execution: execution mode; without `shard`, the tree is unchanged.

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


def _place(leaf: Any, sharding: NamedSharding) -> Any:
    """Places an array, which every process has, on the devices of all processes."""
    if isinstance(leaf, core.Tracer):
        return lax.with_sharding_constraint(leaf, sharding)
    if isinstance(leaf, jax.ShapeDtypeStruct):
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)
    if getattr(leaf, "sharding", None) == sharding:
        return leaf
    if sharding.is_fully_addressable:
        return jax.device_put(leaf, sharding)
    if isinstance(leaf, jax.Array) and not leaf.is_fully_addressable:  # placed before
        return _mover(sharding)(leaf)
    if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        # Keys have no form in NumPy, their words do.
        data = _place(jax.random.key_data(leaf), sharding)
        return jax.random.wrap_key_data(data, impl=jax.random.key_impl(leaf))
    host = np.asarray(leaf)
    return jax.make_array_from_callback(host.shape, sharding, lambda part: host[part])


@functools.cache
def _mover(sharding: NamedSharding) -> Callable[[jax.Array], jax.Array]:
    """Returns the program that places arrays, compiled once per shape."""
    return jax.jit(lambda x: x, out_shardings=sharding)


def fetch(tree: Tree) -> Tree:
    """Copies a whole tree to the host of every process, as NumPy arrays."""

    def whole(leaf: ArrayLike) -> np.ndarray:
        if isinstance(leaf, jax.Array) and not leaf.is_fully_addressable:
            # This process has a part only: the whole array goes to all devices first.
            everywhere = NamedSharding(client_mesh(0), PartitionSpec())
            leaf = _place(leaf, everywhere).addressable_data(0)
        return np.asarray(leaf)

    return jax.tree.map(whole, tree)


def replicate(tree: Tree, execution: Execution) -> Tree:
    """Places a whole tree on every device of an execution of mode `shard`.

    An array that occurs several times in the tree is placed once.
    """
    sharding = NamedSharding(client_mesh(execution.num_devices), PartitionSpec())
    distinct = {id(leaf): leaf for leaf in jax.tree.leaves(tree)}
    placed = {name: _place(leaf, sharding) for name, leaf in distinct.items()}
    return jax.tree.map(lambda leaf: placed[id(leaf)], tree)

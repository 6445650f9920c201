"""The client axis: rows, sums over rows, and the map in four executions."""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.flatten_util import ravel_pytree
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from fedjax_pfl import checks

__all__ = [
    "Execution",
    "broadcast",
    "client_mesh",
    "finite_rows",
    "gram",
    "lane_max",
    "magnitude",
    "map_chunks",
    "map_clients",
    "mix",
    "put",
    "ravel_rows",
    "replicate",
    "select_rows",
    "shard_rows",
    "size",
    "take",
    "weighted_mean",
    "weighted_sum",
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
    """

    mode: str = "vmap"
    chunk_size: int = 0
    num_devices: int = 0

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
        count = self.num_devices if self.mode == "shard" else self.chunk_size
        return f"{self.mode}={count}" if count else self.mode


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
        return jax.device_put(leaf, NamedSharding(mesh, spec))

    return jax.tree.map(place, tree)


def replicate(tree: Any, execution: Execution) -> Any:
    """Places all of a tree on every device of an execution of mode `shard`."""
    sharding = NamedSharding(client_mesh(execution.num_devices), PartitionSpec())
    return jax.device_put(tree, sharding)


def take(tree: Any, rows: jax.Array) -> Any:
    """Gathers rows `int32[K]` of leaves `[N, ...]`."""
    return jax.tree.map(lambda leaf: leaf[rows], tree)


def put(tree: Any, rows: jax.Array, values: Any) -> Any:
    """Scatters values `[K, ...]` into rows `int32[K]`; others stay bit-identical."""
    return jax.tree.map(lambda leaf, new: leaf.at[rows].set(new), tree, values)


def broadcast(tree: Any, num_rows: int) -> Any:
    """Repeats leaves `[...]` along a new leading axis, `[num_rows, ...]`."""
    return jax.tree.map(lambda x: jnp.broadcast_to(x, (num_rows, *jnp.shape(x))), tree)


def size(tree: Any) -> int:
    """Number of values in a tree of arrays."""
    return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(tree))


def _column(values: jax.Array, like: jax.Array) -> jax.Array:
    """Reshapes `[K]` so that it broadcasts against `[K, ...]`."""
    return values.reshape(values.shape + (1,) * (like.ndim - 1))


def select_rows(condition: jax.Array, yes: Any, no: Any) -> Any:
    """Picks rows of `yes` where `condition bool[K]` holds, else rows of `no`."""
    return jax.tree.map(lambda a, b: jnp.where(_column(condition, a), a, b), yes, no)


def finite_rows(tree: Any, num_rows: int) -> jax.Array:
    """Says for every row whether all its floating values are finite.

    Args:
      tree: pytree of `[K, ...]`, may be empty.
      num_rows: K.

    Returns:
      `bool[K]`.
    """
    finite = jnp.ones((num_rows,), bool)
    for leaf in jax.tree.leaves(tree):
        if jnp.issubdtype(leaf.dtype, jnp.floating):
            finite &= jnp.isfinite(leaf).reshape(num_rows, -1).all(axis=1)
    return finite


def magnitude(tree: Any) -> jax.Array:
    """Largest absolute value in a tree of arrays.

    Args:
      tree: pytree of arrays of one dtype.

    Returns:
      `[]`, at least 0; NaN if a value is NaN.
    """
    largest = [jnp.abs(leaf).max(initial=0) for leaf in jax.tree.leaves(tree)]
    return functools.reduce(jnp.maximum, largest)


def weighted_sum(tree: Any, weights: jax.Array) -> Any:
    """Sums rows, `sum_k weights[k] * leaf[k]`, at highest precision.

    Args:
      tree: pytree of `[K, *P]`; rows of weight 0 may hold anything, NaN included.
      weights: `[K]`.

    Returns:
      Pytree of `[*P]`.
    """

    def sum_leaf(leaf: jax.Array) -> jax.Array:
        clean = jnp.where(_column(weights != 0, leaf), leaf, 0)
        w = weights.astype(leaf.dtype)
        return jnp.tensordot(w, clean, axes=1, precision=lax.Precision.HIGHEST)

    return jax.tree.map(sum_leaf, tree)


def weighted_mean(tree: Any, weights: jax.Array) -> Any:
    """Averages rows; zeros where the weights sum to zero.

    Args:
      tree: pytree of `[K, *P]`.
      weights: `[K]`, at least 0.

    Returns:
      Pytree of `[*P]`.
    """
    total = weights.sum()
    return weighted_sum(tree, weights / jnp.where(total > 0, total, 1))


def _matrix(leaf: jax.Array) -> jax.Array:
    """Flattens every row of `[K, *P]`, `[K, size]`."""
    return leaf.reshape(leaf.shape[0], -1)


def gram(tree: Any) -> jax.Array:
    """Inner products of all pairs of rows, one product per leaf, highest precision.

    Args:
      tree: pytree of `[K, *P]`, finite.

    Returns:
      `[K, K]`, symmetric to the last bit.
    """
    found = [
        lax.dot_general(
            _matrix(leaf),
            _matrix(leaf),
            (((1,), (1,)), ((), ())),
            precision=lax.Precision.HIGHEST,
        )
        for leaf in jax.tree.leaves(tree)
    ]
    total = sum(found[1:], found[0])
    return (total + total.T) / 2


def mix(tree: Any, weights: jax.Array) -> Any:
    """Sums rows with a row of weights per receiver, `sum_k weights[j, k] * leaf[k]`.

    Args:
      tree: pytree of `[K, *P]`, finite.
      weights: `[J, K]`.

    Returns:
      Pytree of `[J, *P]`, one product per leaf at highest precision.
    """

    def mix_leaf(leaf: jax.Array) -> jax.Array:
        product = jnp.matmul(
            weights.astype(leaf.dtype), _matrix(leaf), precision=lax.Precision.HIGHEST
        )
        return product.reshape(-1, *leaf.shape[1:])

    return jax.tree.map(mix_leaf, tree)


def ravel_rows(tree: Any) -> tuple[jax.Array, Callable[[jax.Array], Any]]:
    """Flattens every row of a tree into one vector.

    Args:
      tree: pytree of `[K, *P]` with one dtype.

    Returns:
      `[K, D]` and the function that turns `[D]` back into a tree of `[*P]`.
    """
    _, unravel = ravel_pytree(jax.tree.map(lambda leaf: leaf[0], tree))
    leaves = jax.tree.leaves(tree)
    if len(leaves) == 1:  # nothing to copy
        return _matrix(leaves[0]), unravel
    return jax.vmap(lambda row: ravel_pytree(row)[0])(tree), unravel


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
    fn: Callable[[Any, Any], Any], rows: Any, shared: Any, execution: Execution
) -> Any:
    """Applies a function of one client to all clients.

    Args:
      fn: `(row, shared) -> output`, written for one client.
      rows: pytree of `[K, ...]`.
      shared: pytree handed to every call as it is.
      execution: how; see `Execution`.

    Returns:
      Pytree of `[K, ...]` outputs.
    """
    count = jax.tree.leaves(rows)[0].shape[0]
    if execution.mode == "loop":
        outputs = [fn(take(rows, jnp.asarray(i)), shared) for i in range(count)]
        return jax.tree.map(lambda *leaves: jnp.stack(leaves), *outputs)
    if execution.mode == "shard":
        mesh = client_mesh(execution.num_devices)
        mapped = jax.shard_map(
            lambda r, s: map_chunks(fn, r, s, execution.chunk_size),
            mesh=mesh,
            in_specs=(PartitionSpec(AXIS), PartitionSpec()),
            out_specs=PartitionSpec(AXIS),
            check_vma=False,
        )
        outputs = mapped(_pad_rows(rows, -count % mesh.size), shared)
        return jax.tree.map(lambda leaf: leaf[:count], outputs)
    chunk = execution.chunk_size if execution.mode == "chunk" else 0
    return map_chunks(fn, rows, shared, chunk)


def _pad_rows(rows: Any, extra: int) -> Any:
    """Repeats the last row `extra` times, so that chunks and devices are full."""
    if not extra:
        return rows
    return jax.tree.map(
        lambda leaf: jnp.concatenate([leaf, jnp.repeat(leaf[-1:], extra, axis=0)]), rows
    )


def map_chunks(
    fn: Callable[[Any, Any], Any], rows: Any, shared: Any, chunk: int
) -> Any:
    """Maps over vmapped chunks of rows, one compiled body for all of them.

    Args:
      fn: `(row, shared) -> output`, written for one row.
      rows: pytree of `[K, ...]`.
      shared: pytree handed to every call as it is.
      chunk: most rows per chunk; 0 means all at once. Chunks are of one size, as small
        as their number allows, so that few rows of the last one are wasted.

    Returns:
      Pytree of `[K, ...]` outputs.
    """
    count = jax.tree.leaves(rows)[0].shape[0]
    if chunk == 0 or chunk >= count:
        return jax.vmap(fn, in_axes=(0, None))(rows, shared)
    chunk = -(-count // -(-count // chunk))
    padded = _pad_rows(rows, -count % chunk)
    outputs = lax.map(lambda row: fn(row, shared), padded, batch_size=chunk)
    return jax.tree.map(lambda leaf: leaf[:count], outputs)

"""Columns of messages, divided among the devices that share the clients.

Every device gets its columns of all rows; sums over columns are added up over devices.
"""

import contextlib
import contextvars
import functools
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec

from fedjax_pfl.core import client_rows, sharding
from fedjax_pfl.core.aliases import Message, Tree
from fedjax_pfl.core.randomness import Key

__all__ = ["apply", "count", "every", "gram", "largest", "mix", "total"]

# During tracing: the number D of all columns if they are divided.
_columns: contextvars.ContextVar[int | None]
_columns = contextvars.ContextVar("columns", default=None)


@contextlib.contextmanager
def _part_of(num_columns: int) -> Iterator[None]:
    """Declares, in a block, the total column count of the local shard."""
    token = _columns.set(num_columns)
    try:
        yield
    finally:
        _columns.reset(token)


def total(part: jax.Array) -> jax.Array:
    """Adds up the sums of all devices over their columns."""
    return part if _columns.get() is None else lax.psum(part, sharding.AXIS)


def largest(part: jax.Array) -> jax.Array:
    """Returns the maximum over the columns of all devices."""
    return part if _columns.get() is None else lax.pmax(part, sharding.AXIS)


def every(part: jax.Array) -> jax.Array:
    """Returns whether `bool[...]` holds in the columns of every device."""
    if _columns.get() is None:
        return part
    return lax.pmin(part.astype(jnp.int32), sharding.AXIS) == 1


def count(matrix: jax.Array) -> int:
    """Counts the columns D of a matrix `[K, ...]`, or of all its parts."""
    return _columns.get() or matrix.shape[1]


Rule = Callable[[Any, Any, Any, jax.Array, Any], tuple[Any, Any]]


def apply(
    rule: Rule,
    fields: Tree,
    key: Key | None,
    messages: Message,
    weights: jax.Array,
    reference: Tree,
) -> tuple[Any, Any]:
    """Applies a rule, on the columns of every device if that is possible."""
    # With divided columns, messages are an array `[K, d]`, the reference `[d]`.
    divided = functools.partial(_divided, rule)
    return _call(divided, rule, fields, key, messages, weights, reference)


def gram(tree: Tree) -> jax.Array:
    """Computes inner products of all pairs of rows; see `client_rows.gram`."""
    return _call(_divided_gram, client_rows.gram, tree)


def mix(tree: Tree, weights: jax.Array) -> Tree:
    """Sums rows with a row of weights per receiver; see `client_rows.mix`."""
    return _call(_divided_mix, client_rows.mix, tree, weights)


def _call(
    divided: Callable[..., Any], together: Callable[..., Any], *arguments: Tree
) -> Tree:
    """Calls a function of divided columns if possible, else one of whole rows."""
    execution = sharding.dividing()
    # Inside a rule columns are divided already.
    if execution is None or _columns.get() is not None:
        return together(*arguments)
    leaves, structure = jax.tree.flatten(arguments)

    @jax.custom_jvp
    def call(leaves: list[Any]) -> Tree:
        return divided(execution, *jax.tree.unflatten(structure, leaves))

    # Derivatives are computed with undivided columns.
    @call.defjvp
    def rule(primals: Tree, tangents: Tree):  # pyright: ignore[reportUnusedFunction]
        with sharding.over(sharding.Execution()):
            return jax.jvp(
                lambda leaves: together(*jax.tree.unflatten(structure, leaves)),
                primals,
                tangents,
            )

    return call(leaves)


def _mine(rows: jax.Array, num_rows: int) -> jax.Array:
    """Exchanges a device's rows `[K / n, D]` for its columns `[K, D / n]`."""
    return lax.all_to_all(rows, sharding.AXIS, 1, 0, tiled=True)[:num_rows]


def _padded(matrix: jax.Array, size: int) -> jax.Array:
    """Pads rows and columns with zeros, which change no sum."""
    rows, columns = matrix.shape
    return jnp.pad(matrix, ((0, -rows % size), (0, -columns % size)))


_WHOLE, _SPLIT = PartitionSpec(), PartitionSpec(sharding.AXIS)


def _divided_gram(execution: sharding.Execution, tree: Tree) -> jax.Array:
    """Computes inner products of all pairs as a sum over devices."""
    matrix, _ = client_rows.ravel_rows(tree)

    def part(rows: jax.Array) -> jax.Array:
        products = client_rows.pairs(_mine(rows, matrix.shape[0]))
        # `[K, K]` is communicated instead of messages `[K, D]`.
        return lax.psum(products, sharding.AXIS)

    size = sharding.client_mesh(execution.num_devices).size
    call = sharding.on_devices(part, execution, _SPLIT, _WHOLE)
    products = call(_padded(matrix, size))
    return (products + products.T) / 2


def _divided_mix(execution: sharding.Execution, tree: Tree, weights: jax.Array) -> Tree:
    """Mixes rows column by column; every device returns some of the mixtures."""
    matrix, unravel = client_rows.ravel_rows(tree)
    size = sharding.client_mesh(execution.num_devices).size

    def part(rows: jax.Array, weights: jax.Array) -> jax.Array:
        mixed = client_rows.dot(weights, _mine(rows, matrix.shape[0]))
        mixed = jnp.pad(mixed, ((0, -mixed.shape[0] % size), (0, 0)))
        return lax.all_to_all(mixed, sharding.AXIS, 0, 1, tiled=True)

    call = sharding.on_devices(part, execution, (_SPLIT, _WHOLE), _SPLIT)
    mixed = call(_padded(matrix, size), weights.astype(matrix.dtype))
    return jax.vmap(unravel)(mixed[: weights.shape[0], : matrix.shape[1]])


def _divided(
    rule: Rule,
    execution: sharding.Execution,
    fields: Tree,
    key: Key | None,
    messages: Message,
    weights: jax.Array,
    reference: Tree,
) -> tuple[Any, Any]:
    """Applies a rule to messages with columns divided among devices."""
    size = sharding.client_mesh(execution.num_devices).size
    matrix, center, unravel = client_rows.ravel_about(messages, reference)
    num_rows, num_columns = matrix.shape

    def part(
        fields: Tree,
        key: Key | None,
        rows: jax.Array,
        weights: jax.Array,
        center: jax.Array,
    ):
        # One all-to-all exchange: no device has all messages.
        mine = _mine(rows, num_rows)
        with _part_of(num_columns):
            row, report = rule(fields, key, mine, weights, center)
        return lax.all_gather(row, sharding.AXIS, tiled=True), report

    specs = (_WHOLE, _WHOLE, _SPLIT, _WHOLE, _SPLIT)
    row, report = sharding.on_devices(part, execution, specs, _WHOLE)(
        fields, key, _padded(matrix, size), weights, _padded(center[None], size)[0]
    )
    return unravel(row[:num_columns]), report

"""Columns of the messages, divided among the devices that share the clients.

A rule that looks at all clients' values of a coordinate, or at inner products of all
pairs of messages, needs no device with all of them. Every device gets its part of the
columns of all rows, in one exchange of all with all, and what is a sum over columns is
added up over the devices: a Gram matrix `[K, K]` instead of messages `[K, D]`.
"""

import contextlib
import contextvars
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec

from fedjax_pfl.core import client_rows, sharding

__all__ = ["apply", "count", "every", "largest", "over", "total"]

# What is being traced: which devices may divide columns, and the number D of all of
# them where they are divided.
_execution: contextvars.ContextVar[sharding.Execution | None]
_execution = contextvars.ContextVar("execution", default=None)
_columns: contextvars.ContextVar[int | None]
_columns = contextvars.ContextVar("columns", default=None)


@contextlib.contextmanager
def _with(variable: contextvars.ContextVar[Any], value: Any) -> Iterator[None]:
    """Gives a variable another value in a block."""
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)


def over(execution: sharding.Execution) -> contextlib.AbstractContextManager[None]:
    """Lets rules in a block divide columns among the devices of an execution.

    Args:
      execution: how the map over clients is run; unless it is `shard`, on several
        devices, nothing is divided.
    """
    if execution.mode != "shard":
        return _with(_execution, None)
    size = sharding.client_mesh(execution.num_devices).size
    return _with(_execution, execution if size > 1 else None)


def total(part: jax.Array) -> jax.Array:
    """Adds up what every device has summed over its columns."""
    return part if _columns.get() is None else lax.psum(part, sharding.AXIS)


def largest(part: jax.Array) -> jax.Array:
    """Returns the maximum of what every device has found in its columns."""
    return part if _columns.get() is None else lax.pmax(part, sharding.AXIS)


def every(part: jax.Array) -> jax.Array:
    """Says whether `bool[...]` holds in the columns of every device."""
    if _columns.get() is None:
        return part
    return lax.pmin(part.astype(jnp.int32), sharding.AXIS) == 1


def count(matrix: jax.Array) -> int:
    """Counts all columns D of a matrix `[K, ...]`, of which this may be a part."""
    return _columns.get() or matrix.shape[1]


Rule = Callable[[Any, Any, Any, jax.Array, Any], tuple[Any, Any]]


def apply(
    rule: Rule, fields: Any, key: Any, messages: Any, weights: jax.Array, reference: Any
) -> tuple[Any, Any]:
    """Applies a rule, with its columns divided where that is possible.

    Derivatives are those of the rule with its columns together.

    Args:
      rule: `(fields, key, messages, weights, reference) -> (aggregate, report)`, which
        sums over columns by the functions here. Where they are divided, messages are
        an array `[K, d]`, the reference one `[d]`, and so is the aggregate.
      fields: pytree that the rule takes.
      key: `[]`, or None.
      messages: pytree of `[K, *P]` with one dtype.
      weights: `[K]`.
      reference: pytree of `[*P]`.

    Returns:
      Pytree of `[*P]`, and the report.
    """
    execution = _execution.get()
    given = (fields, key, messages, weights, reference)
    if execution is None or _columns.get() is not None:
        return rule(*given)
    leaves, structure = jax.tree.flatten(given)

    @jax.custom_jvp
    def call(leaves: list[Any]) -> tuple[Any, Any]:
        return _divided(rule, execution, *jax.tree.unflatten(structure, leaves))

    @call.defjvp
    def together(primals: Any, tangents: Any):  # pyright: ignore[reportUnusedFunction]
        with _with(_execution, None):
            return jax.jvp(
                lambda leaves: rule(*jax.tree.unflatten(structure, leaves)),
                primals,
                tangents,
            )

    return call(leaves)


def _divided(
    rule: Rule,
    execution: sharding.Execution,
    fields: Any,
    key: Any,
    messages: Any,
    weights: jax.Array,
    reference: Any,
) -> tuple[Any, Any]:
    """Applies a rule to messages whose columns every device has a part of."""
    mesh = sharding.client_mesh(execution.num_devices)
    matrix, center, unravel = client_rows.ravel_about(messages, reference)
    num_rows, num_columns = matrix.shape
    extra = -num_columns % mesh.size  # zeros, which change no sum
    padding = ((0, -num_rows % mesh.size), (0, extra))

    def part(fields: Any, key: Any, rows: Any, weights: Any, center: Any):
        mine = lax.all_to_all(rows, sharding.AXIS, 1, 0, tiled=True)[:num_rows]
        with _with(_columns, num_columns):
            row, report = rule(fields, key, mine, weights, center)
        return lax.all_gather(row, sharding.AXIS, tiled=True), report

    whole, split = PartitionSpec(), PartitionSpec(sharding.AXIS)
    row, report = jax.shard_map(
        part,
        mesh=mesh,
        in_specs=(whole, whole, split, whole, split),
        out_specs=whole,
        check_vma=False,
    )(fields, key, jnp.pad(matrix, padding), weights, jnp.pad(center, (0, extra)))
    return unravel(row[:num_columns]), report

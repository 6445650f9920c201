"""Federations of several grid points as stacked rows and one shared pool."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from fedjax_pfl import core

__all__ = ["ROWS", "federation_rows", "join", "rows_of", "split", "stack"]

ROWS = ("train", "validation", "test")
_OWN = ("malicious", "others", "samples", "cluster", "moved")  # further rows of clients


def split(federation: core.Federation) -> tuple[dict[str, Any], core.Federation]:
    """Returns the rows of clients, and the federation without them and the unseen.

    It has no names, since programs that differ by these alone are the same.
    """
    rows: dict[str, Any] = {name: getattr(federation, name).rows() for name in ROWS}
    rows |= {name: getattr(federation, name) for name in _OWN}
    rows["pool"] = None
    empty: dict[str, Any] = {name: getattr(federation, name).pool() for name in ROWS}
    own = dict.fromkeys((*_OWN, "unseen", "client_names"))
    return rows, dataclasses.replace(federation, **empty, **own)


def join(rows: dict[str, Any], pool: core.Federation | None) -> core.Federation:
    """Inverts `split`; a point may bring a pool of its own among its rows."""
    pool = rows["pool"] if pool is None else pool
    assert pool is not None
    parts = {name: getattr(pool, name).with_rows(rows[name]) for name in ROWS}
    own = {name: rows[name] for name in _OWN}
    return dataclasses.replace(pool, **own, **parts)


def _pad_slots(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Pads index, label and sample rows of all points to one number of slots."""

    def pad(name: str) -> Callable[[dict[str, Any]], dict[str, Any]]:
        slots = max(row[name]["index"].shape[1] for row in rows)

        def widen(fields: dict[str, Any]) -> dict[str, Any]:
            grown = {
                key: jnp.pad(fields[key], ((0, 0), (0, slots - fields[key].shape[1])))
                for key in ("index", "labels")
                if fields[key] is not None
            }
            return fields | grown

        return widen

    padded = [row | {name: pad(name)(row[name]) for name in ROWS} for row in rows]
    slots = max(row["test"]["index"].shape[1] for row in rows)

    def widen_sample(leaf: jax.Array) -> jax.Array:
        return jnp.pad(leaf, ((0, 0), (0, slots - leaf.shape[1]), (0, 0)))

    return [
        row | {"samples": jax.tree.map(widen_sample, row["samples"])} for row in padded
    ]


@jax.jit
def stack(trees: Sequence[Any]) -> Any:
    """Stacks the leaves of trees of one structure along a new leading axis."""
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *trees)


def federation_rows(federations: Sequence[core.Federation]) -> tuple[Any, Any]:
    """Stacks the rows of all points and finds the pool they share.

    Args:
      federations: one per point; of shapes in place of arrays, shapes result.

    Returns:
      Rows `[G, ...]`, and the pool. Points whose pools differ (generated data of
      several seeds) have theirs stacked among the rows, and None is shared.
    """
    rows = rows_of(federations)
    pools = [split(federation)[1] for federation in federations]
    leaves = [jax.tree.leaves(pool) for pool in pools]
    if all(a is b for other in leaves for a, b in zip(leaves[0], other, strict=True)):
        return rows, pools[0]
    return rows | {"pool": _stack_pools(pools)}, None


def rows_of(federations: Sequence[core.Federation]) -> dict[str, Any]:
    """Stacks the rows of all points, `[G, ...]`, without pools."""
    rows = [split(federation)[0] for federation in federations]
    return _compute(lambda rows: stack(_pad_slots(rows)), rows)


def _compute(fn: Callable[[Any], Any], tree: Any) -> Any:
    """Applies a function, to shapes if there are shapes in the tree."""
    leaves = jax.tree.leaves(tree)
    if any(isinstance(leaf, jax.ShapeDtypeStruct) for leaf in leaves):
        return jax.eval_shape(fn, tree)
    return fn(tree)


def _stack_pools(pools: Sequence[core.Federation]) -> core.Federation:
    """Stacks pools; an array that parts of a pool share is stacked once."""
    columns = list(zip(*map(jax.tree.leaves, pools), strict=True))
    names = [tuple(map(id, column)) for column in columns]
    distinct = dict(zip(names, columns, strict=True))
    arrays = _compute(stack, list(zip(*distinct.values(), strict=True)))
    stacked = dict(zip(distinct, arrays, strict=True))
    structure = jax.tree.structure(pools[0])
    return jax.tree.unflatten(structure, [stacked[name] for name in names])

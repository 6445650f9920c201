"""Federations of several grid points as stacked rows and one shared pool."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from fedjax_pfl import core

__all__ = ["ROWS", "federation_rows", "join", "rows_of", "split", "stack"]

ROWS = ("train", "validation", "test")
_FIELDS = (
    "malicious",
    "others",
    "samples",
    "cluster",
    "extra_examples",
)  # more rows of clients


def split(federation: core.Federation) -> tuple[dict[str, Any], core.Federation]:
    """Returns rows of clients, and the federation without them and the unseen."""
    rows: dict[str, Any] = {name: getattr(federation, name).rows() for name in ROWS}
    rows |= {name: getattr(federation, name) for name in _FIELDS}
    rows["pool"] = None
    empty: dict[str, Any] = {name: getattr(federation, name).pool() for name in ROWS}
    # Programs must not depend on names and notes.
    blanks = dict.fromkeys((*_FIELDS, "unseen", "client_names"))
    return rows, dataclasses.replace(federation, **empty, **blanks, notes=())


def join(rows: dict[str, Any], pool: core.Federation) -> core.Federation:
    """Inverts `split`; a point may bring arrays of the pool among its rows."""
    pool = _filled(pool, rows["pool"])
    parts = {name: getattr(pool, name).with_rows(rows[name]) for name in ROWS}
    fields = {name: rows[name] for name in _FIELDS}
    return dataclasses.replace(pool, **fields, **parts)


def _filled(pool: core.Federation, arrays: core.Federation | None) -> core.Federation:
    """Returns a pool with a point's arrays in place of None."""
    if arrays is None:
        return pool
    return jax.tree.map(
        lambda shared, array: array if shared is None else shared,
        pool,
        arrays,
        is_leaf=lambda leaf: leaf is None,
    )


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

    # Points of one program may differ in their largest clients.
    padded = [row | {name: pad(name)(row[name]) for name in ROWS} for row in rows]
    slots = max(row["test"]["index"].shape[1] for row in rows)

    def widen_sample(leaf: jax.Array) -> jax.Array:
        return jnp.pad(leaf, ((0, 0), (0, slots - leaf.shape[1]), (0, 0)))

    return [
        row | {"samples": jax.tree.map(widen_sample, row["samples"])} for row in padded
    ]


@jax.jit
def _padded(rows: Sequence[dict[str, Any]]) -> core.Tree:
    """Stacks rows with the slots of the largest clients of all points."""
    return stack(_pad_slots(rows))


@jax.jit
def stack(trees: Sequence[Any]) -> core.Tree:
    """Stacks the leaves of trees of one structure along a new leading axis."""
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *trees)


def federation_rows(federations: Sequence[core.Federation]) -> tuple[Any, Any]:
    """Stacks the rows `[G, ...]` of all points, and finds the pool that they share."""
    rows = rows_of(federations)
    pools = [split(federation)[1] for federation in federations]
    # Arrays that differ between points, such as generated data of several seeds, are
    # stacked among the rows, and None in the pool.
    columns = list(zip(*map(jax.tree.leaves, pools), strict=True))
    is_shared = [all(leaf is column[0] for leaf in column) for column in columns]
    if all(is_shared):
        return rows, pools[0]
    # An array that parts of a pool share is stacked once.
    names = [tuple(map(id, column)) for column in columns]
    named = zip(names, columns, is_shared, strict=True)
    differ = {name: column for name, column, is_same in named if not is_same}
    arrays = _compute(stack, list(zip(*differ.values(), strict=True)))
    stacked = dict(zip(differ, arrays, strict=True))
    structure = jax.tree.structure(pools[0])
    shared = [
        c[0] if is_same else None for c, is_same in zip(columns, is_shared, strict=True)
    ]
    point_pool = jax.tree.unflatten(structure, map(stacked.get, names))
    return rows | {"pool": point_pool}, jax.tree.unflatten(structure, shared)


def rows_of(federations: Sequence[core.Federation]) -> dict[str, Any]:
    """Stacks the rows of all points, `[G, ...]`, without pools."""
    rows = [split(federation)[0] for federation in federations]
    return _compute(_padded, rows)


def _compute(fn: Callable[[Any], Any], tree: core.Tree) -> core.Tree:
    """Applies a function, to shapes if there are shapes in the tree."""
    leaves = jax.tree.leaves(tree)
    if any(isinstance(leaf, jax.ShapeDtypeStruct) for leaf in leaves):
        return jax.eval_shape(fn, tree)
    return fn(tree)

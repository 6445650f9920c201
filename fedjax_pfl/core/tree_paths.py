"""Leaves of a parameter tree by their paths."""

import functools
import re
from collections.abc import Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from fedjax_pfl.core import checks
from fedjax_pfl.core.aliases import Params, Tree

__all__ = [
    "blocks",
    "by_name",
    "check_pattern",
    "check_patterns",
    "head_and_body",
    "join",
    "join_blocks",
    "names",
    "nested",
    "split",
    "spread",
]


def names(tree: Tree) -> Tree:
    """Names every leaf by its path, such as `head/kernel`."""
    return jax.tree_util.tree_map_with_path(
        lambda path, _: jax.tree_util.keystr(path, simple=True, separator="/"), tree
    )


def spread(value: Any, tree: Tree) -> Tree:
    """Returns a tree of numbers `[]`, from one, or from `[L]` in JAX's order."""
    if jnp.ndim(value) == 0:
        return jax.tree.map(lambda _: value, tree)
    structure = jax.tree.structure(tree)
    if value.shape != (structure.num_leaves,):
        raise checks.InputError(
            f"Expected a value per layer of a model with {structure.num_leaves}"
            f" ({', '.join(by_name(tree))}), got {value.shape[0]} of them."
        )
    return jax.tree.unflatten(structure, list(value))


def by_name(tree: Tree) -> dict[str, Any]:
    """Returns the leaves of a tree by their paths, such as `head/kernel`."""
    return dict(zip(jax.tree.leaves(names(tree)), jax.tree.leaves(tree), strict=True))


def nested(leaves: Iterable[tuple[Sequence[str], Any]]) -> dict[str, Any]:
    """Builds nested dictionaries from leaves by their paths."""
    tree: dict[str, Any] = {}
    for (*above, last), leaf in leaves:
        place = tree
        for name in above:
            place = place.setdefault(name, {})
        place[last] = leaf
    return tree


def split(tree: Tree, pattern: str) -> tuple[Any, Any]:
    """Splits a tree into leaves with matching paths, and the rest; None elsewhere."""
    matches = jax.tree.map(lambda name: bool(re.search(pattern, name)), names(tree))

    def part(is_matching: bool) -> Tree:
        return jax.tree.map(
            lambda match, leaf: leaf if match == is_matching else None, matches, tree
        )

    return part(True), part(False)


def join(first: Tree, second: Tree) -> Tree:
    """Inverts `split`: takes each leaf from the tree that has it."""
    # For JAX None is an empty tree; here it marks a missing leaf.
    return jax.tree.map(
        lambda a, b: b if a is None else a, first, second, is_leaf=lambda x: x is None
    )


def head_and_body(params: Params, pattern: str) -> tuple[Any, Any]:
    """Splits parameters into head and body as in `split`, neither without leaves."""
    head, body = split(params, pattern)
    for part, words in ((head, "some"), (body, "not all")):
        if not jax.tree.leaves(part):
            raise checks.InputError(
                f"Expected head={pattern!r} to match {words} of the model's "
                f"parameters: {', '.join(by_name(params))}."
            )
    return head, body


def check_pattern(name: str, pattern: object) -> None:
    """Checks that a value is a regular expression."""
    _check(f"{name} to be a regular expression", pattern)


def check_patterns(patterns: Any) -> None:
    """Checks that a value is a tuple of regular expressions, at least one."""
    if not isinstance(patterns, tuple) or not patterns:
        raise checks.InputError(
            f"Expected patterns to be a tuple, not empty, got {checks.shown(patterns)}."
        )
    for pattern in patterns:
        _check("patterns to be regular expressions", pattern)


def _check(expected: str, pattern: object) -> None:
    """Checks a regular expression; `expected` begins the message."""
    message = f"Expected {expected}, got {checks.shown(pattern)}"
    if not isinstance(pattern, str):
        raise checks.InputError(f"{message}.")
    try:
        re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        raise checks.InputError(f"{message}: {error}.") from None


def blocks(tree: Tree, patterns: Sequence[str]) -> list[Any]:
    """Splits a tree into blocks: a leaf is in that of the first matching pattern."""
    parts, remainder = [], tree
    for pattern in patterns:
        block, remainder = split(remainder, pattern)
        if not jax.tree.leaves(block):
            raise checks.InputError(
                f"Expected every pattern to match a leaf that none before it does, but"
                f" {pattern!r} does not; the leaves are {', '.join(by_name(tree))}."
            )
        parts.append(block)
    if jax.tree.leaves(remainder):
        raise checks.InputError(
            f"Expected every leaf to match one of the patterns {list(patterns)}, but"
            f" these do not: {', '.join(by_name(remainder))}."
        )
    return parts


def join_blocks(parts: Sequence[Any]) -> Tree:
    """Inverts `blocks`."""
    return functools.reduce(join, parts)

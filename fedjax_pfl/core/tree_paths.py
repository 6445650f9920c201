"""Leaves of a parameter tree by their paths."""

import re
from collections.abc import Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from fedjax_pfl.core import checks

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


def names(tree: Any) -> Any:
    """Names every leaf by its path.

    Returns:
      The same tree with leaves such as `"head/kernel"`.
    """
    return jax.tree_util.tree_map_with_path(
        lambda path, _: jax.tree_util.keystr(path, simple=True, separator="/"), tree
    )


def spread(value: Any, tree: Any) -> Any:
    """Returns a number for every leaf of a tree.

    Args:
      value: `[]`, one for all leaves, or `[L]`, one per leaf in JAX's order.
      tree: pytree of L arrays.

    Returns:
      The tree with `[]` in place of arrays.

    Example:
      >>> spread(0.5, {"bias": 1.0, "kernel": 2.0})
      {'bias': 0.5, 'kernel': 0.5}
    """
    if jnp.ndim(value) == 0:
        return jax.tree.map(lambda _: value, tree)
    structure = jax.tree.structure(tree)
    if value.shape != (structure.num_leaves,):
        raise checks.InputError(
            f"Expected a value per layer of a model with {structure.num_leaves}"
            f" ({', '.join(by_name(tree))}), got {value.shape[0]} of them."
        )
    return jax.tree.unflatten(structure, list(value))


def by_name(tree: Any) -> dict[str, Any]:
    """Returns the leaves of a tree by their paths.

    Example:
      >>> by_name({"head": {"bias": 1, "kernel": 2}})
      {'head/bias': 1, 'head/kernel': 2}
    """
    return dict(zip(jax.tree.leaves(names(tree)), jax.tree.leaves(tree), strict=True))


def nested(leaves: Iterable[tuple[Sequence[str], Any]]) -> dict[str, Any]:
    """Builds nested dictionaries from leaves by their paths.

    Example:
      >>> nested([(("head", "bias"), 1), (("head", "kernel"), 2)])
      {'head': {'bias': 1, 'kernel': 2}}
    """
    tree: dict[str, Any] = {}
    for (*above, last), leaf in leaves:
        place = tree
        for name in above:
            place = place.setdefault(name, {})
        place[last] = leaf
    return tree


def split(tree: Any, pattern: str) -> tuple[Any, Any]:
    """Splits a tree into the leaves whose path matches and the others.

    Args:
      tree: parameter tree.
      pattern: regular expression searched in the leaf path, for example `"^head/"`.

    Returns:
      `(matching, rest)`, both with the tree's structure, and None for other leaves.

    Example:
      >>> split({"body": 1, "head": 2}, "^head")
      ({'body': None, 'head': 2}, {'body': 1, 'head': None})
    """
    paths = names(tree)
    matching = jax.tree.map(
        lambda n, x: x if re.search(pattern, n) else None, paths, tree
    )
    rest = jax.tree.map(lambda n, x: None if re.search(pattern, n) else x, paths, tree)
    return matching, rest


def join(first: Any, second: Any) -> Any:
    """Inverts `split`: takes each leaf from the tree that has it."""
    return jax.tree.map(
        lambda a, b: b if a is None else a, first, second, is_leaf=lambda x: x is None
    )


def head_and_body(params: Any, pattern: str) -> tuple[Any, Any]:
    """Splits a model's parameters into its head and its body, neither without leaves.

    Returns:
      `(head, body)` as from `split`.
    """
    head, body = split(params, pattern)
    for part, words in ((head, "some"), (body, "not all")):
        if not jax.tree.leaves(part):
            raise checks.InputError(
                f"Expected head={pattern!r} to match {words} of the model's "
                f"parameters: {_paths(params)}."
            )
    return head, body


def check_pattern(name: str, pattern: Any) -> None:
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


def _check(expected: str, pattern: Any) -> None:
    """Checks a regular expression; `expected` begins the message."""
    message = f"Expected {expected}, got {checks.shown(pattern)}"
    if not isinstance(pattern, str):
        raise checks.InputError(f"{message}.")
    try:
        re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        raise checks.InputError(f"{message}: {error}.") from None


def blocks(tree: Any, patterns: Sequence[str]) -> list[Any]:
    """Splits a tree into blocks: a leaf belongs to the first pattern that matches it.

    Example:
      >>> blocks({"body": 1, "head": 2}, ("^head", ""))
      [{'body': None, 'head': 2}, {'body': 1, 'head': None}]
    """
    parts, rest = [], tree
    for pattern in patterns:
        block, rest = split(rest, pattern)
        if not jax.tree.leaves(block):
            raise checks.InputError(
                f"Expected every pattern to match a leaf that none before it does, but"
                f" {pattern!r} does not; the leaves are {_paths(tree)}."
            )
        parts.append(block)
    if jax.tree.leaves(rest):
        raise checks.InputError(
            f"Expected every leaf to match one of the patterns {list(patterns)}, but"
            f" these do not: {_paths(rest)}."
        )
    return parts


def join_blocks(parts: Sequence[Any]) -> Any:
    """Inverts `blocks`."""
    tree, *tail = parts
    for part in tail:
        tree = join(tree, part)
    return tree


def _paths(tree: Any) -> str:
    """Returns the paths of a tree's leaves."""
    return ", ".join(jax.tree.leaves(names(tree)))

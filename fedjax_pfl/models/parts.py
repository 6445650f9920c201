"""Splits of a parameter tree into head and body by leaf-path rules."""

import re
from typing import Any

import jax

from fedjax_pfl.leaves import leaf_names

__all__ = ["join", "leaf_names", "split"]


def split(tree: Any, pattern: str) -> tuple[Any, Any]:
    """Splits a tree into the leaves whose path matches and the others.

    Args:
      tree: parameter tree.
      pattern: regular expression searched in the leaf path, for example `"^head/"`.

    Returns:
      `(matching, rest)`, both of the tree's structure with None in the other's places.

    Example:
      >>> split({"body": 1, "head": 2}, "^head")
      ({'body': None, 'head': 2}, {'body': 1, 'head': None})
    """
    names = leaf_names(tree)
    matching = jax.tree.map(
        lambda n, x: x if re.search(pattern, n) else None, names, tree
    )
    rest = jax.tree.map(lambda n, x: None if re.search(pattern, n) else x, names, tree)
    return matching, rest


def join(first: Any, second: Any) -> Any:
    """Undoes `split`: takes each leaf from the tree that has it."""
    return jax.tree.map(
        lambda a, b: b if a is None else a, first, second, is_leaf=lambda x: x is None
    )

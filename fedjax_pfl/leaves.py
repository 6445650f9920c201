"""Names of the leaves of a tree, by which rules choose parts of a model."""

from typing import Any

import jax

__all__ = ["leaf_names"]


def leaf_names(tree: Any) -> Any:
    """Names every leaf by its path.

    Args:
      tree: parameter tree.

    Returns:
      The same tree with leaves such as `"head/kernel"`.

    Example:
      >>> leaf_names({"head": {"bias": 1.0, "kernel": 2.0}})
      {'head': {'bias': 'head/bias', 'kernel': 'head/kernel'}}
    """
    return jax.tree_util.tree_map_with_path(
        lambda path, _: jax.tree_util.keystr(path, simple=True, separator="/"), tree
    )

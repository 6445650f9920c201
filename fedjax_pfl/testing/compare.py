"""Comparisons of trees; errors name the leaf, the place and the difference."""

from collections.abc import Iterator, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_pfl import core
from fedjax_pfl.testing import toy

__all__ = ["close", "finite", "same", "same_layout", "tight"]


def tight() -> float:
    """Returns the tolerance of rounding, absolute and relative, in the run's dtype."""
    # Sums over at most 9 examples and 8 clients in another order, a few steps of a
    # problem with condition number below 10: 1e3 units in the last place.
    return 1e3 * float(jnp.finfo(jnp.zeros(()).dtype).eps)


def _named(tree: core.Tree) -> Iterator[tuple[str, np.ndarray]]:
    """Yields every leaf with its path, as messages show it."""
    paths = [path for path, _ in jax.tree_util.tree_leaves_with_path(tree)]
    for path, leaf in zip(paths, toy.leaves(tree), strict=True):
        shape = ", ".join(map(str, leaf.shape))
        yield f"{jax.tree_util.keystr(path)} {leaf.dtype}[{shape}]", leaf


def _pairs(actual: core.Tree, expected: core.Tree, case: str):
    """Yields the leaves of two trees: name, and both values."""
    ours, theirs = list(_named(actual)), list(_named(expected))
    if len(ours) != len(theirs):
        raise AssertionError(
            f"{case}, there are {len(ours)} leaves in place of {len(theirs)}."
        )
    for (name, a), (partner, b) in zip(ours, theirs, strict=True):
        if a.shape != b.shape:
            raise AssertionError(f"{case}, leaf {name} is in place of {partner}.")
        yield name, a, b


def _refuse(
    wrong: np.ndarray,
    case: str,
    name: str,
    kind: str,
    values: Sequence[np.ndarray],
    expected: str = "",
) -> None:
    """Raises for wrong numbers of a leaf, and names the first one."""
    if not wrong.any():
        return
    place = tuple(int(i) for i in np.argwhere(wrong)[0])
    numbers = " in place of ".join(f"{value[place]}" for value in values)
    at = f" at {list(place)}" if place else ""
    raise AssertionError(
        f"{case}, {wrong.sum()} of the {wrong.size} numbers of leaf {name} are {kind},"
        f" the first {numbers}{at}{expected}."
    )


def same(actual: core.Tree, expected: core.Tree, case: str) -> None:
    """Raises unless all leaves have the same numbers, bit for bit (NaN equals NaN)."""
    for name, a, b in _pairs(actual, expected, case):
        # NaN is the only value that differs from itself.
        wrong = ~((a == b) | ((a != a) & (b != b)))
        _refuse(wrong, case, name, "others", (a, b), "; expected the same bits")


def close(actual: core.Tree, expected: core.Tree, case: str, tolerance: float) -> None:
    """Raises unless all leaves agree, absolutely or relatively (NaN equals NaN)."""
    allowed = f"; allowed are differences of {tolerance:.1e}, absolutely or relatively"
    for name, a, b in _pairs(actual, expected, case):
        wrong = ~np.isclose(a, b, rtol=tolerance, atol=tolerance, equal_nan=True)
        _refuse(wrong, case, name, "others", (a, b), allowed)


def finite(tree: core.Tree, case: str) -> None:
    """Raises unless all numbers are finite."""
    for name, leaf in _named(tree):
        if jnp.issubdtype(leaf.dtype, jnp.floating):
            _refuse(~np.isfinite(leaf), case, name, "not finite", (leaf,))


def same_layout(actual: core.Tree, expected: core.Tree, case: str) -> None:
    """Raises unless two trees of shapes have one structure, one shape and one dtype."""
    ours, theirs = (
        {jax.tree_util.keystr(p): f"{x.dtype}{list(x.shape)}" for p, x in leaves}
        for leaves in map(jax.tree_util.tree_leaves_with_path, (actual, expected))
    )
    for name in sorted(ours.keys() | theirs.keys()):
        a, b = ours.get(name, "nothing"), theirs.get(name, "nothing")
        if a != b:
            raise AssertionError(f"{case}, leaf {name} is {a} in place of {b}.")
    if jax.tree.structure(actual) != jax.tree.structure(expected):
        raise AssertionError(
            f"{case}, the tree is {jax.tree.structure(actual)} in place of"
            f" {jax.tree.structure(expected)}."
        )

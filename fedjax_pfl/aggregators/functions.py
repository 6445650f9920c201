"""Robust rules as plain functions, for use without the simulator.

Rows are an array `[K, D]`, or a pytree of `[K, *P]` such as K models; the result is one
row. Two functions map rows to rows and go in front of any other:

    >>> rows = jnp.array([[1.0, 2], [1.5, 2.5], [90.0, -90], [2.0, 3], [1.0, 3]])
    >>> trimmed_mean(rows, num_malicious=1).tolist()
    [1.5, 2.5]
    >>> mixed = nearest_neighbor_mixing(rows, num_malicious=1)
    >>> krum(mixed, num_malicious=1).tolist()
    [1.375, 2.625]

Every function is a call of the class of the same name; its docstring describes the
fields. Rows with a weight of 0 in `weights [K]` are left out; other weights matter only
if a rule weighs by examples. Rows with a non-finite value take no part either. Invalid
arguments raise an `InputError` of one sentence, unless traced. Functions may be
transformed by `jit`, `vmap` and, the medians, by `grad`.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import core as jax_core
from jax.typing import ArrayLike

from fedjax_pfl import core
from fedjax_pfl.aggregators import clipping, mixing, trimmed
from fedjax_pfl.aggregators.bulyan import Bulyan
from fedjax_pfl.aggregators.coordinate_median import CoordinateMedian
from fedjax_pfl.aggregators.geometric_median import GeometricMedian
from fedjax_pfl.aggregators.krum import Krum
from fedjax_pfl.core import checks, client_rows

__all__ = [
    "bucketing",
    "bulyan",
    "centered_clipping",
    "coordinate_median",
    "geometric_median",
    "krum",
    "meamed",
    "multi_krum",
    "nearest_neighbor_mixing",
    "norm_clipping",
    "trimmed_mean",
]

_Weights = ArrayLike | None  # [K], None for ones


def _checked(
    rule: core.Aggregator, rows: core.Tree, weights: _Weights
) -> tuple[Any, jax.Array]:
    """Returns rows as arrays and weights `[K]`, when the rule fits them."""
    rows = jax.tree.map(jnp.asarray, rows)
    leaves = jax.tree.leaves(rows)
    shapes = [leaf.shape for leaf in leaves]
    counts = {shape[0] if shape else 0 for shape in shapes}
    if len(counts) != 1 or counts == {0}:
        raise checks.InputError(
            "Expected rows to be arrays with one leading axis of K >= 1 rows, got"
            f" shapes {shapes}."
        )
    dtypes = {str(leaf.dtype) for leaf in leaves}
    if len(dtypes) != 1 or not jnp.issubdtype(leaves[0].dtype, jnp.floating):
        raise checks.InputError(
            f"Expected rows to have one floating dtype, got {', '.join(sorted(dtypes))}"
            "."
        )
    (count,) = counts
    rule.check_cohort(count)
    if weights is None:
        return rows, jnp.ones(count, leaves[0].dtype)
    checks.numbers("weights", weights, at_least=0)
    if np.shape(weights) != (count,):
        raise checks.InputError(
            f"Expected weights to have the shape ({count},), got {np.shape(weights)}."
        )
    return rows, jnp.asarray(weights, leaves[0].dtype)


def _apply(
    rule: core.Aggregator,
    rows: core.Tree,
    weights: _Weights,
    reference: core.Tree = None,
):
    """Applies the rule to rows, about a reference or zeros."""
    rows, weights = _checked(rule, rows, weights)
    if reference is None:
        reference = jax.tree.map(lambda leaf: jnp.zeros_like(leaf[0]), rows)
    else:
        reference = jax.tree.map(
            lambda r, leaf: jnp.asarray(r, leaf.dtype), reference, rows
        )
    return _compiled(rule, rows, weights, reference)


@jax.jit
def _compiled(rule: core.Aggregator, *given: Any) -> core.Tree:
    """Applies the rule in one program, not in a hundred single operations."""
    # None of these rules draws from its key.
    return rule(jax.random.key(0), *given)[0]


@jax.jit
def _mixed(rule: Any, *given: Any) -> Any:
    """Maps rows to rows, in one program."""
    return rule.mix(*given)


def krum(rows: core.Tree, weights: _Weights = None, **fields: Any) -> core.Tree:
    """Returns the row of lowest score, or the mean of several that tie.

    Args:
      rows: `[K, D]`, or pytree of `[K, *P]`.
      weights: `[K]`, or None for ones.
      **fields: of `Krum`: `num_malicious` or `malicious_fraction`, `squared`,
        `guarantee`, `num_selected`.

    Returns:
      `[D]`, or pytree of `[*P]`.

    Example:
      >>> float(krum(jnp.array([1.0, 9.0, 2.0, 2.6, 1.5]), num_malicious=1))
      1.5
    """
    return _apply(Krum(**fields), rows, weights)


def multi_krum(rows: core.Tree, weights: _Weights = None, **fields: Any) -> core.Tree:
    """Averages the rows of lowest score, n - f unless `num_selected` is given.

    Args:
      rows: `[K, D]`, or pytree of `[K, *P]`.
      weights: `[K]`, or None for ones.
      **fields: of `Krum`.

    Returns:
      `[D]`, or pytree of `[*P]`.

    Example:
      >>> float(multi_krum(jnp.array([1.0, 9.0, 2.0, 2.5, 1.5]), num_malicious=1))
      1.75
    """
    return _apply(Krum(**{"num_selected": None, **fields}), rows, weights)


def trimmed_mean(rows: core.Tree, weights: _Weights = None, **fields: Any) -> core.Tree:
    """Returns the mean per coordinate without the f smallest and the f largest values.

    Args:
      rows: `[K, D]`, or pytree of `[K, *P]`.
      weights: `[K]`, or None for ones.
      **fields: of `TrimmedMean`: `num_malicious` or `malicious_fraction`.

    Returns:
      `[D]`, or pytree of `[*P]`.
    """
    return _apply(trimmed.TrimmedMean(**fields), rows, weights)


def meamed(rows: core.Tree, weights: _Weights = None, **fields: Any) -> core.Tree:
    """Returns the mean per coordinate of the n - f values nearest to the median.

    Args:
      rows: `[K, D]`, or pytree of `[K, *P]`.
      weights: `[K]`, or None for ones.
      **fields: of `MeaMed`: `num_malicious` or `malicious_fraction`.

    Returns:
      `[D]`, or pytree of `[*P]`.
    """
    return _apply(trimmed.MeaMed(**fields), rows, weights)


def bulyan(rows: core.Tree, weights: _Weights = None, **fields: Any) -> core.Tree:
    """Returns the mean around the median of rows that Krum selects.

    Args:
      rows: `[K, D]`, or pytree of `[K, *P]`.
      weights: `[K]`, or None for ones.
      **fields: of `Bulyan`: `num_malicious` or `malicious_fraction`, `one_shot`.

    Returns:
      `[D]`, or pytree of `[*P]`.
    """
    return _apply(Bulyan(**fields), rows, weights)


def centered_clipping(
    rows: core.Tree,
    weights: _Weights = None,
    reference: core.Tree = None,
    **fields: Any,
) -> core.Tree:
    """Returns the mean of differences from a moving center, clipped.

    Args:
      rows: `[K, D]`, or pytree of `[K, *P]`.
      weights: `[K]`, or None for ones.
      reference: start of the center, like a row, or None for zeros.
      **fields: of `CenteredClipping`: `tau`, `num_iterations`.

    Returns:
      `[D]`, or pytree of `[*P]`.
    """
    return _apply(clipping.CenteredClipping(**fields), rows, weights, reference)


def norm_clipping(
    rows: core.Tree,
    weights: _Weights = None,
    reference: core.Tree = None,
    **fields: Any,
) -> core.Tree:
    """Returns the mean of rows, clipped in their distance from a reference.

    Args:
      rows: `[K, D]`, or pytree of `[K, *P]`.
      weights: `[K]`, or None for ones.
      reference: like a row, or None for zeros.
      **fields: of `NormClipping`: `max_norm`, or `num_malicious` or
        `malicious_fraction`.

    Returns:
      `[D]`, or pytree of `[*P]`.
    """
    return _apply(clipping.NormClipping(**fields), rows, weights, reference)


def coordinate_median(
    rows: core.Tree, weights: _Weights = None, **fields: Any
) -> core.Tree:
    """Returns the median per coordinate, exact or smoothed.

    Args:
      rows: `[K, D]`, or pytree of `[K, *P]`.
      weights: `[K]`, or None for ones.
      **fields: of `CoordinateMedian`.

    Returns:
      `[D]`, or pytree of `[*P]`.
    """
    return _apply(CoordinateMedian(**fields), rows, weights)


def geometric_median(
    rows: core.Tree, weights: _Weights = None, **fields: Any
) -> core.Tree:
    """Returns the geometric median, smoothed.

    Args:
      rows: `[K, D]`, or pytree of `[K, *P]`.
      weights: `[K]`, or None for ones.
      **fields: of `GeometricMedian`.

    Returns:
      `[D]`, or pytree of `[*P]`.
    """
    return _apply(GeometricMedian(**fields), rows, weights)


def nearest_neighbor_mixing(
    rows: core.Tree, weights: _Weights = None, **fields: Any
) -> core.Tree:
    """Replaces every row by the mean of its n - f nearest rows, itself included.

    Args:
      rows: `[K, D]`, or pytree of `[K, *P]`.
      weights: `[K]`, or None for ones.
      **fields: of `NearestNeighborMixing`: `num_malicious` or `malicious_fraction`.

    Returns:
      Rows like the given ones; rows that take no part are unchanged, so that the
      next function gets the same weights.
    """
    rule = mixing.NearestNeighborMixing(**fields)
    return _mixed(rule, *_checked(rule, rows, weights))


def _permutation(order: ArrayLike, count: int) -> jax.Array:
    """Returns an order of `count` rows as an array."""
    # Values of tracers are not known: a traced order is not checked.
    if isinstance(order, jax_core.Tracer):
        return order
    if sorted(np.asarray(order).tolist()) != list(range(count)):
        raise checks.InputError(
            f"Expected order to be a permutation of 0, ..., {count - 1}, got {order!r}."
        )
    return jnp.asarray(order, jnp.int32)


def bucketing(
    key: core.Key,
    rows: core.Tree,
    weights: _Weights = None,
    *,
    size: int = 2,
    order: ArrayLike | None = None,
) -> core.Tree:
    """Permutes rows and averages consecutive buckets.

    Args:
      key: `[]` of the permutation.
      rows: `[K, D]`, or pytree of `[K, *P]`.
      weights: `[K]`, or None for ones; rows of weight 0 fill no bucket.
      size: rows per bucket.
      order: `[K]` permutation of the rows in place of a drawn one.

    Returns:
      `[ceil(K / size), D]`, or a pytree; buckets without rows are NaN, and take no part
      in the next function.

    Example:
      >>> bucketing(jax.random.key(0), jnp.ones((5, 3))).shape
      (3, 3)
    """
    # Buckets without rows become NaN: the next function takes no weights from here, and
    # leaves out rows that are not finite.
    rule = mixing.Bucketing(size=size)
    rows, weights = _checked(rule, rows, weights)
    if order is not None:
        order = _permutation(order, len(weights))
    buckets, members = _mixed(rule, key, rows, weights, order)
    blanks = jax.tree.map(lambda leaf: jnp.full_like(leaf, jnp.nan), buckets)
    return client_rows.select_rows(members > 0, buckets, blanks)

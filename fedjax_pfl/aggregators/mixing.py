"""Mixing in front of a rule: rows become means of several rows.

Nearest-neighbor mixing replaces every one of n rows by the mean of its n - f nearest
rows, itself included. Bucketing permutes the rows and averages consecutive buckets of s
rows; the last bucket may be shorter and counts as one row. Both bring honest rows
nearer together before a rule looks for outliers.

References: Allouah, Farhadkhani, Guerraoui, Gupta, Pinot, Stephan, "Fixing by Mixing: A
Recipe for Optimal Byzantine ML under Heterogeneity"; Karimireddy, He, Jaggi,
"Byzantine-Robust Learning on Heterogeneous Datasets via Bucketing".
"""

from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from fedjax_pfl import core
from fedjax_pfl.aggregators import base, coordinate_median
from fedjax_pfl.core import client_rows, struct
from fedjax_pfl.numerics import pairwise_distances

__all__ = ["Bucketing", "NearestNeighborMixing"]


def _means_about(
    share: jax.Array, messages: core.Message, valid: jax.Array, center: jax.Array
) -> core.Message:
    """Averages valid rows to `[J, *P]` by shares `[J, K]` of sum 1, about a row."""
    # About a row, so that a common offset costs no digits; of halves, so that
    # differences cannot overflow.
    middle = jax.tree.map(lambda leaf: leaf[center][None] / 2, messages)
    halves = jax.tree.map(lambda leaf, half: leaf / 2 - half, messages, middle)
    zeros = jax.tree.map(jnp.zeros_like, messages)
    means = client_rows.mix(client_rows.select_rows(valid, halves, zeros), share)
    return jax.tree.map(lambda half, mean: 2 * (half + mean), middle, means)


@struct.pytree_dataclass
class NearestNeighborMixing(base.Counting):
    """A rule for rows that are means of their nearest rows.

    Rows of weight 0 and rows with a non-finite value take no part and do not count
    among the n rows; the others keep their weights. Rows at the distance of the last of
    these n - f count, too, so that no order of rows matters. Distances are those of
    `Krum`: a row that is 1e6 times as long as the median row (1e10 in float64) counts
    as that long, and distances closer than about 1e-5 of their size in float32 tie.

    Before anything is traced, a number f with 2 f + 1 > K is refused; a traced one, or
    one that is too large because messages are lost later, counts as the largest with
    2 f < n. The rule behind has a number of its own.

    Attributes:
      rule: the rule behind, any aggregator.
      num_malicious: `[]` f, a whole number, or None.
      malicious_fraction: static, f as a share of the n rows, rounded; or None. Without
        either f is the largest with 2 f < n.

    Example:
      >>> rows, weights = jnp.array([1.0, 9.0, 2.0, 2.5, 1.5]), jnp.ones(5)
      >>> NearestNeighborMixing().mix(rows, weights).tolist()
      [1.5, 4.5, 2.0, 2.0, 1.5]
      >>> reference = jnp.array(0.0)
      >>> rule = NearestNeighborMixing()
      >>> float(rule(jax.random.key(0), rows, weights, reference)[0])
      2.0
    """

    rule: core.Aggregator = coordinate_median.CoordinateMedian()
    of_pairs: ClassVar[bool] = True

    @property
    def by_columns(self) -> bool:
        """Returns whether several devices may divide the columns; see `MatrixRule`."""
        return self.rule.by_columns

    def check_cohort(self, size: int) -> None:
        """Refuses an f with 2 f + 1 > K, or a cohort that the rule behind refuses."""
        self._check_number(size, needed=True)
        self.rule.check_cohort(size)

    def mix(self, messages: core.Message, weights: jax.Array) -> core.Message:
        """Replaces every row by the mean of its nearest rows.

        Args:
          messages: pytree of `[K, *P]` with one dtype.
          weights: `[K]`; 0 means dropped, other values do not matter.

        Returns:
          Pytree of `[K, *P]`; rows that take no part are unchanged.
        """
        matrix, _ = client_rows.ravel_rows(messages)
        valid = (weights > 0) & base.in_use(messages, weights.shape[0])
        n = valid.sum(dtype=jnp.int32)
        near = n - self.minority(n, len(valid))
        _, search = pairwise_distances.search(matrix, valid, jnp.maximum(near - 1, 1))
        itself = jnp.eye(weights.shape[0], dtype=bool)
        # A row is its own nearest one, before others at distance 0.
        distance = jnp.where(itself, -1, search.distance)
        share = valid[None] & pairwise_distances.smallest(distance, near)
        share = share.astype(matrix.dtype)
        share = share / jnp.maximum(share.sum(axis=1, keepdims=True), 1)
        mixed = _means_about(share, messages, valid, search.row)
        return client_rows.select_rows(valid, mixed, messages)

    def _combined(
        self,
        key: core.Key,
        messages: core.Message,
        weights: jax.Array,
        reference: core.Message,
    ) -> tuple[Any, Any]:
        """Mixes rows `[K, *P]`, then applies the rule behind, which reports."""
        return self.rule(key, self.mix(messages, weights), weights, reference)


@struct.pytree_dataclass
class Bucketing(base.MatrixRule):
    """A rule for the means of random buckets of rows.

    Rows of weight 0 and rows with a non-finite value take no part and fill no bucket;
    the n others fill ceil(n / size) buckets. The weight of a bucket is the sum of its
    rows' weights, its row their plain mean. Which rows are together is drawn from the
    round's key.

    A rule behind with a number of malicious rows gets fewer rows; up to f of these
    hold a malicious one.

    Attributes:
      rule: the rule behind, any aggregator.
      size: static, rows per bucket; with 1 they are only permuted.

    Example:
      >>> rows, weights = jnp.array([1.0, 9.0, 2.0, 2.5, 1.5]), jnp.ones(5)
      >>> buckets, weights = Bucketing().mix(jax.random.key(0), rows, weights)
      >>> buckets.shape, weights.tolist()
      ((3,), [2.0, 2.0, 1.0])
    """

    rule: core.Aggregator = coordinate_median.CoordinateMedian()
    size: int = struct.static_field(default=2, at_least=1)

    @property
    def by_columns(self) -> bool:
        """Returns whether several devices may divide the columns; see `MatrixRule`."""
        return self.rule.by_columns

    @property
    def of_pairs(self) -> bool:
        """Returns whether the inner rule needs products of all pairs of buckets."""
        return self.rule.of_pairs

    def check_cohort(self, size: int) -> None:
        """Checks the number of buckets of K rows with the rule behind."""
        self.rule.check_cohort(-(-size // self.size))

    def mix(
        self,
        key: core.Key,
        messages: core.Message,
        weights: jax.Array,
        order: jax.Array | None = None,
    ) -> tuple[Any, jax.Array]:
        """Averages buckets of rows.

        Args:
          key: `[]` consumed.
          messages: pytree of `[K, *P]` with one dtype.
          weights: `[K]`, at least 0; 0 means dropped.
          order: `int32[K]` permutation in place of one drawn from the key: the rows in
            the order in which they fill buckets.

        Returns:
          Pytree of `[ceil(K / size), *P]`, and the weights of its rows; a bucket
          without rows has weight 0.
        """
        count = weights.shape[0]
        valid = (weights > 0) & base.in_use(messages, count)
        if order is None:
            order = jax.random.permutation(key, count)
        # A stable sort: rows that take part come first, in the drawn order.
        order = order[jnp.argsort(~valid[order], stable=True)]
        place = jnp.argsort(order)  # of every row among those that take part
        bucket = jnp.arange(-(-count // self.size))[:, None]
        member = valid[None] & (place[None] // self.size == bucket)
        share = member.astype(weights.dtype)
        share = share / jnp.maximum(share.sum(axis=1, keepdims=True), 1)
        zeros = jax.tree.map(jnp.zeros_like, messages)
        rows = client_rows.mix(client_rows.select_rows(valid, messages, zeros), share)
        return rows, jnp.where(member, weights[None], 0).sum(axis=1)

    def _combined(
        self,
        key: core.Key,
        messages: core.Message,
        weights: jax.Array,
        reference: core.Message,
    ) -> tuple[Any, Any]:
        """Averages buckets of rows `[K, *P]`, then applies the rule behind."""
        # The rule behind may draw as well.
        mix_key, key = jax.random.split(key)
        return self.rule(key, *self.mix(mix_key, messages, weights), reference)

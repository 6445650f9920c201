"""Krum and multi-Krum: the messages that are nearest to most of the others.

With n rows in use, up to f malicious, the score of a row is the sum of its
`max(1, n - f - 2)` smallest squared distances to other rows, with norms over the whole
model. Krum takes the row of lowest score, multi-Krum the mean of several.

Distances come from one Gram matrix (`pairwise_distances`).

Reference: Blanchard, El Mhamdi, Guerraoui, Stainer, "Machine Learning with Adversaries:
Byzantine Tolerant Gradient Descent". Their guarantee needs 2 f + 3 <= n. The package
byzfl counts n - f - 1 neighbors, which is an option.
"""

from typing import ClassVar, Literal

import jax
import jax.numpy as jnp

from fedjax_pfl.aggregators import base
from fedjax_pfl.core import checks, client_rows, struct
from fedjax_pfl.numerics import pairwise_distances

__all__ = ["Krum", "KrumInfo"]


@struct.pytree_dataclass
class KrumInfo:
    """Report of a round's selection.

    Attributes:
      row: `int32[]` row of lowest score, the first of several, -1 if none took part.
      selected: `bool[K]` rows that are averaged.
      scores: `[K]`, -1 for rows that took no part; inf for overflows.
    """

    row: jax.Array
    selected: jax.Array
    scores: jax.Array


@struct.pytree_dataclass
class Krum(base.Counting):
    """Row of lowest score, or the mean of several; scores by nearest neighbors.

    Rows of weight 0 and rows with a non-finite value take no part and do not count
    among the n rows; if none is left, the reference is returned. Other weights do not
    matter. Rows with tied scores are selected together, so that no order of rows
    matters: with one neighbor, the two rows nearest to each other always tie. (The
    paper takes the lower row.) Scores closer than about 1e-5 of their size in float32,
    which rounding cannot tell apart, tie. A row that is 1e6 times as long as the median
    row (1e10 in float64) counts as that long.

    Before anything is traced, a number f with 2 f + 3 > K is refused. If messages are
    lost later, the rule goes on with at least one neighbor; a traced f is not checked.

    Attributes:
      num_malicious: `[]` f, a whole number, or None.
      malicious_fraction: static, f as a share of the n rows, rounded; or None. Without
        either f is the largest with 2 f + 3 <= n.
      num_selected: static, 1 for Krum, more for multi-Krum, None for n - f.
      squared: static, whether distances are squared.
      neighbors: static, whether a score counts n - f - 2 neighbors as in the `paper`,
        or n - f - 1 as in `byzfl`.
      guarantee: static, whether 2 f + 3 <= K is demanded. Without it any f < K is
        accepted, as in published figures with a majority of attackers, without
        a guarantee: a score has at least one neighbor.

    Example:
      >>> rows, weights = jnp.array([1.0, 9.0, 2.0, 2.5, 1.5]), jnp.ones(5)
      >>> aggregate, info = Krum()(jax.random.key(0), rows, weights, jnp.array(0.0))
      >>> float(aggregate), info.scores.tolist()
      (1.75, [1.25, 91.25, 0.5, 1.25, 0.5])
    """

    num_selected: int | None = struct.static_field(default=1, at_least=1)
    squared: bool = struct.static_field(default=True)
    neighbors: Literal["paper", "byzfl"] = "paper"
    guarantee: bool = struct.static_field(default=True)
    margin: ClassVar[int] = 3
    chooses: ClassVar[str] = "which rows are averaged"
    of_pairs: ClassVar[bool] = True

    def check_cohort(self, size: int) -> None:
        """Refuses numbers that do not fit K rows, before tracing.

        2 f + 3 > K, or without the guarantee f >= K; an f that is not whole; more than
        K selected rows.
        """
        self._check_number(size, needed=self.guarantee)
        if self.num_selected is not None:
            name = f"num_selected with K={size} messages per round"
            checks.whole(name, self.num_selected, at_least=1, at_most=size)

    def combine(
        self, matrix: jax.Array, valid: jax.Array, weights: jax.Array, center: jax.Array
    ) -> tuple[jax.Array, KrumInfo]:
        """Takes the row of lowest score, or the mean of some."""
        num_valid = valid.sum(dtype=jnp.int32)
        f = self.target_count(num_valid, len(valid))
        # At least one neighbor, also if messages were lost after `check_cohort`.
        near = num_valid - f - (2 if self.neighbors == "paper" else 1)
        scale, search = pairwise_distances.search(
            matrix, valid, jnp.maximum(near, 1), squared=self.squared
        )
        row = search.row
        count = self.num_selected or jnp.maximum(num_valid - f, 1)
        selected = valid & pairwise_distances.smallest(search.scores, count)
        aggregate = client_rows.weighted_mean(matrix, selected.astype(matrix.dtype))
        # Distances are in units of `scale`; the report has those of the messages.
        scores = search.scores * (jnp.square(scale) if self.squared else scale)
        info = KrumInfo(
            row=jnp.where(num_valid > 0, row, -1),
            selected=selected,
            scores=jnp.where(valid, scores, -1),
        )
        return aggregate, info

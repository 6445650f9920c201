"""Krum and multi-Krum: the messages that are nearest to most of the others.

With n rows in use, of which f may be malicious, the score of a row is the sum of its
`max(1, n - f - 2)` smallest squared distances to other rows, with norms over the whole
model. Krum takes the row of lowest score, multi-Krum the mean of several.

Distances come from one Gram matrix, formed about a row; anew about the best row if that
lies too far from the center for its distances to be resolved. Rows are divided by a
power of two and the longest shortened (`lengths`), so that no square overflows.

Reference: Blanchard, El Mhamdi, Guerraoui, Stainer, "Machine Learning with Adversaries:
Byzantine Tolerant Gradient Descent". Their guarantee needs 2 f + 3 <= n. One popular
package counts n - f - 1 neighbors.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from fedjax_pfl import checks, clients, struct, types
from fedjax_pfl.aggregators import lengths

__all__ = ["Krum", "KrumInfo"]

# A best row this many of its neighbors' distances off the center asks for a new one:
# squared distances there have errors of eps 8^2, in float32 8e-6.
_FAR = 8.0
_MAX_CENTERS = 4  # every one gains the square root of the precision


@struct.pytree_dataclass
class KrumInfo:
    """What was chosen.

    Attributes:
      row: `int32[]` row of lowest score, -1 if none took part.
      selected: `bool[K]` rows whose mean is the result.
      scores: `[K]`, -1 for rows that took no part; inf where it overflows.
    """

    row: jax.Array
    selected: jax.Array
    scores: jax.Array


@struct.pytree_dataclass
class _Search:
    """Scores `[K]` about a row, the best row, and whether that is far away."""

    row: jax.Array
    scores: jax.Array
    far: jax.Array
    number: jax.Array


@struct.pytree_dataclass
class Krum:
    """Row of lowest score, or the mean of several; scores by nearest neighbors.

    Rows of weight 0 and rows with a non-finite value take no part and do not count
    among the n rows; if none is left, the reference is returned. Other weights do not
    matter. Ties go to the lower row. Rounding decides between scores closer than 1e-5
    of their size in float32. A row that is 1e6 times as long as the median row (1e10
    in float64) counts as that long.

    Before anything is traced, a number f with 2 f + 3 > K is refused. If messages are
    lost later, the rule goes on with at least one neighbor; a traced f is not checked.

    Attributes:
      num_malicious: `[]` f, a whole number, or None: the largest with 2 f + 3 <= n.
      num_selected: static, 1 for Krum, more for multi-Krum, None for n - f.
      squared: static, whether distances are squared.

    Example:
      >>> rows, weights = jnp.array([1.0, 9.0, 2.0, 2.5, 1.5]), jnp.ones(5)
      >>> aggregate, info = Krum()(jax.random.key(0), rows, weights, jnp.array(0.0))
      >>> float(aggregate), info.scores.tolist()
      (2.0, [1.25, 91.25, 0.5, 1.25, 0.5])
    """

    num_malicious: float | None = None
    num_selected: int | None = struct.static_field(default=1)
    squared: bool = struct.static_field(default=True)

    def __post_init__(self):
        checks.number("num_malicious", self.num_malicious, at_least=0)
        if self.num_selected is not None:
            checks.positive_int("num_selected", self.num_selected)
        checks.boolean("squared", self.squared)

    @property
    def incremental(self) -> None:
        """None: distances between all clients need all messages."""
        return None

    def check_cohort(self, size: int) -> None:
        """Refuses numbers that do not fit the number of rows; before tracing.

        Args:
          size: K, rows per round.

        Raises:
          InputError: if 2 f + 3 > K, f is not whole, or more than K are selected.
        """
        f = 0 if self.num_malicious is None else float(self.num_malicious)
        if f % 1 or 2 * f + 3 > size:
            raise checks.InputError(
                "Expected num_malicious of Krum to be a whole number f with 2 f + 3 <="
                f" K, got {f:g} with K={size} messages per round."
            )
        if self.num_selected is not None:
            name = f"num_selected with K={size} messages per round"
            checks.whole(name, self.num_selected, at_least=1, at_most=size)

    def __call__(
        self, key: types.Key, messages: Any, weights: jax.Array, reference: Any
    ) -> tuple[Any, KrumInfo]:
        """Takes the row of lowest score, or the mean of some.

        Args:
          key: `[]` unused.
          messages: pytree of `[K, *P]` with one dtype.
          weights: `[K]`; 0 means dropped, other values do not matter.
          reference: pytree of `[*P]`, returned if no row takes part.

        Returns:
          Pytree of `[*P]`, and what was chosen.
        """
        del key
        matrix, _ = clients.ravel_rows(messages)
        valid = (weights > 0) & jnp.isfinite(lengths.magnitudes(matrix))
        num_valid = valid.sum(dtype=matrix.dtype)
        scale, found = self._search(matrix, valid, num_valid)
        row = jnp.argmin(found.scores).astype(jnp.int32)
        some = num_valid > 0
        if self.num_selected == 1:
            selected = valid & (jnp.arange(valid.shape[0]) == row)
            chosen = clients.take(messages, row)
        else:
            rank = jnp.argsort(jnp.argsort(found.scores, stable=True))
            selected = valid & (rank < self._kept(num_valid))
            chosen = clients.weighted_mean(messages, selected.astype(matrix.dtype))
        scores = found.scores * (jnp.square(scale) if self.squared else scale)
        info = KrumInfo(
            row=jnp.where(some, row, -1),
            selected=selected,
            scores=jnp.where(valid, scores, -1),
        )
        return jax.tree.map(lambda m, r: jnp.where(some, m, r), chosen, reference), info

    def _malicious(self, num_valid: jax.Array) -> jax.Array:
        """The number f."""
        if self.num_malicious is None:
            return jnp.maximum((num_valid - 3) // 2, 0)
        return jnp.asarray(self.num_malicious, num_valid.dtype)

    def _kept(self, num_valid: jax.Array) -> jax.Array:
        """Number of rows whose mean is taken, at least 1."""
        if self.num_selected is None:
            return jnp.maximum(num_valid - self._malicious(num_valid), 1)
        return jnp.asarray(self.num_selected, num_valid.dtype)

    def _search(
        self, matrix: jax.Array, valid: jax.Array, num_valid: jax.Array
    ) -> tuple[jax.Array, _Search]:
        """The unit of length, and scores about a row near the best one."""
        p = valid / jnp.maximum(num_valid, 1)
        size = lengths.measure(matrix, valid, p)
        neighbors = jnp.maximum(num_valid - self._malicious(num_valid) - 2, 1)

        def again(last: _Search) -> jax.Array:
            return last.far & (last.number < _MAX_CENTERS)

        def about(last: _Search) -> _Search:
            center = matrix[last.row] / size.divisor[last.row] * size.factor[last.row]
            gram = size.gram(matrix, center)
            scores = self._scores(gram, valid, neighbors)
            row = jnp.argmin(scores).astype(jnp.int32)
            mean = scores[row] / neighbors
            near = _FAR**2 * (mean if self.squared else jnp.square(mean))
            far = gram[row, row] > near
            return _Search(row=row, scores=scores, far=far, number=last.number + 1)

        typical = jnp.abs(size.norm - lengths.median(size.norm, p))
        row = jnp.argmin(jnp.where(valid, typical, jnp.inf)).astype(jnp.int32)
        first = _Search(
            row=row,
            scores=jnp.zeros_like(size.norm),
            far=jnp.ones((), bool),
            number=jnp.zeros((), jnp.int32),
        )
        return size.scale, lax.while_loop(again, about, first)

    def _scores(
        self, gram: jax.Array, valid: jax.Array, neighbors: jax.Array
    ) -> jax.Array:
        """Scores `[K]` from a Gram matrix; inf for rows that take no part."""
        square = jnp.diag(gram)
        distance = jnp.maximum((square[:, None] + square[None]) - 2 * gram, 0)
        if not self.squared:
            distance = jnp.sqrt(distance)
        others = valid[:, None] & valid[None] & ~jnp.eye(valid.shape[0], dtype=bool)
        nearest = jnp.sort(jnp.where(others, distance, jnp.inf), axis=1)
        rank = jnp.arange(valid.shape[0], dtype=neighbors.dtype)
        counted = (rank < neighbors)[None] & jnp.isfinite(nearest)
        return jnp.where(valid, jnp.where(counted, nearest, 0).sum(axis=1), jnp.inf)

"""Another rule for every block of leaves, such as the layers of a network."""

from typing import Any

import jax
import jax.numpy as jnp

from fedjax_pfl import core
from fedjax_pfl.core import checks, client_rows, struct, tree_paths

__all__ = ["Blockwise"]


@struct.pytree_dataclass
class Blockwise(core.Aggregator):
    """Combines every block of leaves by a rule of its own.

    A leaf belongs to the first pattern that is found in its path; the leaves of one
    pattern are one block, with one norm and one choice of rows. A row with a non-finite
    value anywhere takes no part in any block; if none is left, the reference is
    returned. Every block has outliers of its own.

    Attributes:
      patterns: static, regular expressions searched in paths such as `head/kernel`; the
        empty one matches every leaf.
      parts: aggregators, one per pattern.

    Example:
      >>> import fedjax_pfl as fp
      >>> parts = fp.aggregators.Mean(), fp.GeometricMedian()
      >>> rule = Blockwise(patterns=("^head", ""), parts=parts)
      >>> rows = {"body": jnp.array([1.0, 2, 60]), "head": jnp.array([1.0, 2, 6])}
      >>> reference = {"body": jnp.array(0.0), "head": jnp.array(0.0)}
      >>> median, _ = rule(jax.random.key(0), rows, jnp.ones(3), reference)
      >>> round(float(median["body"]), 3), float(median["head"])
      (2.0, 3.0)
    """

    parts: tuple[core.Aggregator, ...]
    patterns: tuple[str, ...] = struct.static_field()

    def __post_init__(self):
        tree_paths.check_patterns(self.patterns)
        if not isinstance(self.parts, tuple) or len(self.patterns) != len(self.parts):
            raise checks.InputError(
                f"Expected parts to be a tuple with one part per pattern of"
                f" {self.patterns!r}, got {checks.shown(self.parts)}."
            )

    @property
    def incremental(self) -> str | None:
        """The weighting that all parts share, or None."""
        weightings = {part.incremental for part in self.parts}
        return weightings.pop() if len(weightings) == 1 else None

    @property
    def by_columns(self) -> bool:
        """Returns whether devices may divide the columns of all blocks."""
        return all(part.by_columns for part in self.parts)

    @property
    def of_pairs(self) -> bool:
        """Returns whether a part needs inner products of all pairs of messages."""
        return any(part.of_pairs for part in self.parts)

    def check_cohort(self, size: int) -> None:
        """Checks the number K of rows with every part, before tracing."""
        for part in self.parts:
            part.check_cohort(size)

    def __call__(
        self,
        key: core.Key,
        messages: core.Message,
        weights: jax.Array,
        reference: core.Message,
    ) -> tuple[Any, tuple[Any, ...]]:
        """Combines block by block; the reports of the parts are in their order."""
        # A row that is not finite in one block has weight 0 in all of them.
        finite = client_rows.finite_rows(messages, weights.shape[0])
        weights = jnp.where(finite, weights, 0)
        rows = tree_paths.blocks(messages, self.patterns)
        references = tree_paths.blocks(reference, self.patterns)
        blocks = zip(self.parts, rows, references, strict=True)
        pairs = [
            # Random parts must not draw alike.
            part(jax.random.fold_in(key, number), block, weights, point)
            for number, (part, block, point) in enumerate(blocks)
        ]
        aggregates, reports = zip(*pairs, strict=True)
        return tree_paths.join_blocks(aggregates), reports

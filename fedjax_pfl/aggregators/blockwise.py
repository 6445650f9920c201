"""Another rule for every block of leaves, such as the layers of a network."""

import re
from typing import Any

import jax
import jax.numpy as jnp

from fedjax_pfl import checks, clients, leaves, struct, types

__all__ = ["Blockwise"]


@struct.pytree_dataclass
class Blockwise:
    """Combines every block of leaves by a rule of its own.

    A leaf belongs to the first pattern that is found in its path; the leaves of one
    pattern are one block, with one norm and one choice of rows. A row with a non-finite
    value anywhere takes no part in any block; if none is left, the reference is
    returned. Which rows are outliers is decided anew in every block.

    Attributes:
      patterns: static, regular expressions searched in paths such as `head/kernel`; the
        empty one matches every leaf.
      parts: aggregators, one per pattern.

    Example:
      >>> import fedjax_pfl as fp
      >>> parts = fp.Mean(), fp.GeometricMedian()
      >>> rule = Blockwise(patterns=("^head", ""), parts=parts)
      >>> rows = {"body": jnp.array([1.0, 2, 60]), "head": jnp.array([1.0, 2, 6])}
      >>> reference = {"body": jnp.array(0.0), "head": jnp.array(0.0)}
      >>> found, _ = rule(jax.random.key(0), rows, jnp.ones(3), reference)
      >>> round(float(found["body"]), 3), float(found["head"])
      (2.0, 3.0)
    """

    parts: tuple[types.Aggregator, ...]
    patterns: tuple[str, ...] = struct.static_field()

    def __post_init__(self):
        if not isinstance(self.patterns, tuple) or not isinstance(self.parts, tuple):
            raise checks.InputError(
                "Expected patterns and parts to be tuples, got"
                f" {type(self.patterns).__name__} and {type(self.parts).__name__}."
            )
        if not self.patterns or len(self.patterns) != len(self.parts):
            raise checks.InputError(
                f"Expected one part per pattern, got {len(self.parts)} parts and"
                f" patterns={self.patterns!r}."
            )
        for pattern in self.patterns:
            try:
                re.compile(pattern)
            except (re.error, TypeError) as error:
                raise checks.InputError(
                    f"Expected patterns to be regular expressions, got {pattern!r}:"
                    f" {error}."
                ) from None

    @property
    def incremental(self) -> str | None:
        """The weighting that all parts share, or None."""
        weightings = {part.incremental for part in self.parts}
        return weightings.pop() if len(weightings) == 1 else None

    def check_cohort(self, size: int) -> None:
        """Lets every part refuse a number of rows; before tracing.

        Args:
          size: K, rows per round.
        """
        for part in self.parts:
            check = getattr(part, "check_cohort", None)
            if check is not None:
                check(size)

    def __call__(
        self, key: types.Key, messages: Any, weights: jax.Array, reference: Any
    ) -> tuple[Any, tuple[Any, ...]]:
        """Combines block by block.

        Args:
          key: `[]` what random parts draw from.
          messages: pytree of `[K, *P]`, with one dtype per block.
          weights: `[K]`, at least 0; 0 means dropped.
          reference: pytree of `[*P]`, returned if no row takes part.

        Returns:
          Pytree of `[*P]`, and the reports of the parts in their order.

        Raises:
          InputError: if a pattern gets no leaf, or a leaf no pattern.
        """
        block = self._blocks(messages)
        finite = clients.finite_rows(messages, weights.shape[0])
        weights = jnp.where(finite, weights, 0)
        joined: list[Any] = [None] * len(block)
        structure = jax.tree.structure(messages)
        reports = []
        for number, part in enumerate(self.parts):

            def own(tree: Any, number: int = number) -> Any:
                each = zip(jax.tree.leaves(tree), block, strict=True)
                chosen = [leaf if b == number else None for leaf, b in each]
                return jax.tree.unflatten(structure, chosen)

            found, report = part(
                jax.random.fold_in(key, number), own(messages), weights, own(reference)
            )
            places = [place for place, b in enumerate(block) if b == number]
            for place, leaf in zip(places, jax.tree.leaves(found), strict=True):
                joined[place] = leaf
            reports.append(report)
        return jax.tree.unflatten(structure, joined), tuple(reports)

    def _blocks(self, messages: Any) -> list[int]:
        """The number of every leaf's pattern."""
        found = []
        for name in jax.tree.leaves(leaves.names(messages)):
            matching = (n for n, p in enumerate(self.patterns) if re.search(p, name))
            number = next(matching, None)
            if number is None:
                raise checks.InputError(
                    f"Expected every leaf to match one of patterns={self.patterns!r},"
                    f" got {name!r}, which matches none."
                )
            found.append(number)
        for number, pattern in enumerate(self.patterns):
            if number not in found:
                names = ", ".join(jax.tree.leaves(leaves.names(messages)))
                raise checks.InputError(
                    f"Expected pattern {pattern!r} to be the first that matches some"
                    f" leaf, got the leaves {names}."
                )
        return found

"""A phi of its own for every block of leaves."""

from typing import Any

import jax
import jax.numpy as jnp

from fedjax_pfl import aggregators, core
from fedjax_pfl.aggregators.base import Weighting
from fedjax_pfl.algorithms import registry
from fedjax_pfl.algorithms.phi import functions
from fedjax_pfl.core import checks, struct, tree_paths

__all__ = ["LayerWise"]

_FUNCTIONS = tuple(name for name in registry.PHIS if name != "layer_wise")


@struct.pytree_dataclass
class LayerWise(functions.Phi):
    """`sum_l c_l phi_l(x_l)` over blocks of leaves; everything separates.

    Several leaves of a block share one norm. The prox of `c phi` with radius rho is
    that of phi with radius `c rho`. A block with `zero` is local, one with `indicator`
    is as in FedProx.

    Attributes:
      patterns: static regular expressions; a leaf belongs to the first that is found in
        its path, such as `"^head/"`. The empty one takes all that is left.
      phis: static names of functions, one per pattern.
      scales: c_l > 0, one per pattern, or None for ones. If the radius is a quantile
        of distances they make no difference.

    Example:
      >>> phi = LayerWise(patterns=("^head/", ""), phis=("zero", "sq"))
      >>> x = {"body": jnp.array(3.0), "head": {"bias": jnp.array(3.0)}}
      >>> jax.tree.map(float, phi.prox(x, 2.0))
      {'body': 1.0, 'head': {'bias': 3.0}}
    """

    patterns: tuple[str, ...] = struct.static_field(default=("^head/", ""))
    phis: tuple[str, ...] = struct.static_field(default=("zero", "l2"))
    scales: tuple[float, ...] | None = None

    def __post_init__(self):
        tree_paths.check_patterns(self.patterns)
        if not isinstance(self.phis, tuple):
            raise checks.InputError(f"Expected phis to be a tuple, got {self.phis!r}.")
        for name in self.phis:
            checks.known(name, _FUNCTIONS, "phi of a block")
        counts = {"phis": len(self.phis)}
        if self.scales is not None:
            if not isinstance(self.scales, tuple):
                raise checks.InputError(
                    "Expected scales to be a tuple of numbers, got"
                    f" {checks.shown(self.scales)}."
                )
            counts["scales"] = len(self.scales)
            for scale in self.scales:
                checks.number("every scale", scale, above=0)
        for name, count in counts.items():
            if count != len(self.patterns):
                raise checks.InputError(
                    f"Expected as many {name} as patterns, {len(self.patterns)}, got"
                    f" {count}."
                )

    @property
    def has_lengths(self) -> bool:
        """Returns whether any block's radius is a distance."""
        return any(phi.has_lengths for phi in self._functions)

    @property
    def _functions(self) -> list[functions.Phi]:
        return [registry.PHIS[name]() for name in self.phis]

    @property
    def _scales(self) -> jax.Array:
        """Factors `[L]` of the radii."""
        scales = (1.0,) * len(self.patterns) if self.scales is None else self.scales
        return jnp.stack([jnp.asarray(scale) for scale in scales])

    def check(self, params: core.Params) -> None:
        """Refuses a pattern without leaves and a leaf without pattern."""
        self._blocks(params)

    def _blocks(self, x: core.Tree) -> list[Any]:
        """Returns the tree once per block, None in place of other blocks' leaves."""
        return tree_paths.blocks(x, self.patterns)

    def _each(
        self, method: str, x: core.Tree, rho: core.Scalar | None = None
    ) -> list[Any]:
        """Calls a method of every block's function, with the block's radius if any."""
        # prox of c phi with radius rho is that of phi with radius c rho.
        radii = [()] * len(self.phis) if rho is None else (self._scales * rho)[:, None]
        parts = zip(self._functions, self._blocks(x), radii, strict=True)
        return [getattr(phi, method)(block, *radius) for phi, block, radius in parts]

    def value(self, x: core.Tree) -> jax.Array:
        """Returns `sum_l c_l phi_l`."""
        return (self._scales * jnp.stack(self._each("value", x))).sum()

    def prox(self, x: core.Tree, rho: core.Scalar) -> core.Tree:
        """Returns every block's proximal point, with radius `c_l rho_l`."""
        return tree_paths.join_blocks(self._each("prox", x, rho))

    def envelope(self, x: core.Tree, rho: core.Scalar) -> jax.Array:
        """Returns `sum_l c_l Phi_l` with radius `c_l rho_l`."""
        # Envelopes of c phi are c times those of phi, with radius c rho.
        return (self._scales * jnp.stack(self._each("envelope", x, rho))).sum()

    def penalty(self, x: core.Tree, rho: core.Scalar) -> jax.Array:
        """Returns `sum_l c_l rho_l Phi_l` with radius `c_l rho_l`."""
        return jnp.stack(self._each("penalty", x, rho)).sum()

    def lengths(self, x: core.Tree) -> jax.Array:
        """Returns every block's length, `[L]`."""
        return jnp.stack(self._each("lengths", x))

    def radii(self, rho: core.Scalar, quantiles: jax.Array) -> jax.Array:
        """Returns radii `[L]` that are the quantiles once they are scaled."""
        # `_each` multiplies by the scales again.
        return super().radii(rho, quantiles / self._scales)

    def clipped(self, x: core.Tree, rho: core.Scalar) -> jax.Array:
        """Returns the mean of the blocks with a distance as radius; 0 without any."""
        shares = self._each("clipped", x, rho)
        counted = [
            value
            for value, phi in zip(shares, self._functions, strict=True)
            if phi.has_lengths
        ]
        # Without a radius that is a distance nothing is clipped: that is 0.
        return jnp.stack(counted).mean() if counted else shares[0]

    def aggregator(
        self, rho: core.Scalar, rho_quantile: core.Scalar | None, weighting: Weighting
    ) -> core.Aggregator:
        """Returns every block's own rule."""
        radii = self._scales * rho
        return aggregators.Blockwise(
            patterns=self.patterns,
            parts=tuple(
                phi.aggregator(radii[number], rho_quantile, weighting)
                for number, phi in enumerate(self._functions)
            ),
        )

"""Convex functions phi that couple models to a center: prox, Moreau envelope, gradient.

With `x = w - c`, a model less the center, and a radius rho > 0:

    prox(x) = argmin_v phi(v) + |x - v|^2 / (2 rho)
    Phi(x)  = phi(prox(x)) + |x - prox(x)|^2 / (2 rho)        the envelope
    grad Phi(x) = (x - prox(x)) / rho                         Phi is 1/rho-smooth

| name | phi | prox | aggregate `argmin_c sum_k p_k Phi(w_k - c)` |
|---|---|---|---|
| sq | `|x|^2 / 2` | `x / (1 + rho)` | mean |
| diagonal | `sum_i q_i x_i^2 / 2` | `x_i / (1 + rho q_i)` | mean (of any, at q_i = 0) |
| l2 | `|x|` | `max(0, 1 - rho / |x|) x` | smoothed geometric median |
| l1 | `sum_i |x_i|` | `sign(x_i) max(|x_i| - rho, 0)` | smoothed coordinate median |
| indicator | 0 at x = 0, else infinite | 0 | mean |
| zero | 0 | x | every c (the mean is taken) |

Norms run over all leaves of a tree. At x = 0 all derivatives are finite.

Reference: Yu, Kundu, Wynter, Lim, "Fed+: A Unified Approach to Robust Personalized
Federated Learning", section 3. The printed prox of l1, `max(0, x - rho sign(x))`, is
wrong for negative x.
"""

import abc
from typing import Any

import jax
import jax.numpy as jnp

from fedjax_pfl import aggregators, core
from fedjax_pfl.aggregators.base import Weighting
from fedjax_pfl.core import checks, struct

__all__ = ["L1", "L2", "Diagonal", "Indicator", "Phi", "Squared", "Zero"]


def _total(tree: core.Tree) -> jax.Array:
    """Returns the sum `[]` of all values of a tree."""
    head, *tail = [jnp.sum(leaf) for leaf in jax.tree.leaves(tree)]
    return sum(tail, head)


def _square(x: core.Tree) -> jax.Array:
    """Returns the squared norm `[]` of a tree."""
    return _total(jax.tree.map(jnp.square, x))


def _norm(x: core.Tree) -> jax.Array:
    """Returns the norm `[]` of a tree, with a derivative of 0 at 0."""
    square = _square(x)
    # The slope of a square root at 0 is infinite: both branches stay finite.
    is_positive = square > 0
    return jnp.where(is_positive, jnp.sqrt(jnp.where(is_positive, square, 1)), 0)


def _huber(length: jax.Array, rho: core.Scalar) -> jax.Array:
    """Returns the envelope of the absolute value at `length >= 0`, elementwise."""
    return jnp.where(length <= rho, length**2 / (2 * rho), length - rho / 2)


class Phi(abc.ABC):
    """Base of all functions; each is of ONE model's difference to the center.

    The methods `value`, `prox`, `envelope` and `gradient` take a tree x `[*P]` and the
    radius rho `[]` > 0 (for `LayerWise` also `[L]`, one for each of its blocks); a
    traced bad radius gives a result without meaning.
    """

    has_lengths: bool = True
    """Whether the radius is a distance, so that it can be a quantile of some."""

    def check(self, params: core.Params) -> None:
        """Refuses parameters `[*P]` that the function does not fit."""
        return

    def radii(self, rho: core.Scalar, quantiles: jax.Array) -> jax.Array:
        """Returns the lengths' quantiles where these are numbers, or rho `[]`."""
        # Lengths of NaN mark functions with a radius that is no distance.
        return jnp.where(jnp.isnan(quantiles), rho, quantiles)

    @abc.abstractmethod
    def value(self, x: core.Tree) -> jax.Array:
        """Returns phi without smoothing, `[]`."""

    @abc.abstractmethod
    def prox(self, x: core.Tree, rho: core.Scalar) -> core.Tree:
        """Returns the proximal point, `[*P]`."""

    @abc.abstractmethod
    def envelope(self, x: core.Tree, rho: core.Scalar) -> jax.Array:
        """Returns the Moreau envelope, `[]`."""

    def gradient(self, x: core.Tree, rho: core.Scalar) -> core.Tree:
        """Returns the envelope's gradient, `[*P]`."""
        return jax.grad(self.envelope)(x, rho)

    def penalty(self, x: core.Tree, rho: core.Scalar) -> jax.Array:
        """Returns the scaled envelope `min_v rho phi(v) + |x - v|^2 / 2`, `[]`."""
        return rho * self.envelope(x, rho)

    @abc.abstractmethod
    def lengths(self, x: core.Tree) -> jax.Array:
        """Returns lengths `[]` or `[L]` to compare with the radius, or NaN."""

    @abc.abstractmethod
    def clipped(self, x: core.Tree, rho: core.Scalar) -> jax.Array:
        """Returns the fraction `[]` longer than the radius: 0 where prox is 0."""

    @abc.abstractmethod
    def aggregator(
        self, rho: core.Scalar, rho_quantile: core.Scalar | None, weighting: Weighting
    ) -> core.Aggregator:
        """Returns the rule that minimizes the summed envelopes.

        Args:
          rho: `[]` radius.
          rho_quantile: `[]` in (0, 1), or None: a radius that is this quantile of the
            messages' distances, if there are distances, in place of rho.
          weighting: `uniform` or `examples`.

        Returns:
          An aggregator.
        """


class _Averaged(Phi):
    """A function with the mean as aggregate, for any radius."""

    has_lengths = False  # the radius is a pure number

    def lengths(self, x: core.Tree) -> jax.Array:
        """Returns NaN: the radius is a pure number."""
        return jnp.asarray(jnp.nan, jnp.result_type(*jax.tree.leaves(x)))

    def clipped(self, x: core.Tree, rho: core.Scalar) -> jax.Array:
        """Returns zero."""
        return jnp.zeros((), jnp.result_type(*jax.tree.leaves(x)))

    def aggregator(
        self, rho: core.Scalar, rho_quantile: core.Scalar | None, weighting: Weighting
    ) -> core.Aggregator:
        """Returns the plain or the weighted mean."""
        uniform = weighting == "uniform"
        return aggregators.Mean() if uniform else aggregators.WeightedMean()


@struct.pytree_dataclass
class Diagonal(_Averaged):
    """Computes `sum_i q_i x_i^2 / 2`.

    Attributes:
      q: `[]`, or a tree like the parameters, at least 0; if it is 0 a coordinate
        stays with the client.

    Example:
      >>> float(Diagonal(q=2.0).prox(jnp.array(3.0), 1.0))
      1.0
    """

    q: core.Tree = 1.0

    def __post_init__(self):
        struct.check_arrays("q", self.q)
        for leaf in jax.tree.leaves(self.q):
            checks.numbers("q", leaf, at_least=0)

    def check(self, params: core.Params) -> None:
        """Refuses a tree q that is not like the parameters."""
        # A number q fits any parameters.
        shapes = [
            jax.tree.map(jnp.shape, tree) for tree in (self._weights(params), params)
        ]
        if not self._is_number and shapes[0] != shapes[1]:
            raise checks.InputError(
                f"Expected q to be a number or a tree like the parameters, of shapes"
                f" {shapes[1]}, got {shapes[0]}."
            )

    @property
    def _is_number(self) -> bool:
        return jax.tree.structure(self.q) == jax.tree.structure(0)

    def _weights(self, x: core.Tree) -> core.Tree:
        """Returns the factors as a tree like x."""
        return jax.tree.map(lambda _: self.q, x) if self._is_number else self.q

    def value(self, x: core.Tree) -> jax.Array:
        """Computes `sum_i q_i x_i^2 / 2`."""
        return _total(jax.tree.map(lambda a, q: q * a**2, x, self._weights(x))) / 2

    def prox(self, x: core.Tree, rho: core.Scalar) -> core.Tree:
        """Returns `x_i / (1 + rho q_i)`."""
        return jax.tree.map(lambda a, q: a / (1 + rho * q), x, self._weights(x))

    def envelope(self, x: core.Tree, rho: core.Scalar) -> jax.Array:
        """Returns `sum_i q_i x_i^2 / (2 (1 + rho q_i))`."""
        weights = self._weights(x)
        return _total(
            jax.tree.map(lambda a, q: q * a**2 / (2 * (1 + rho * q)), x, weights)
        )


@struct.pytree_dataclass
class Squared(_Averaged):
    """`|x|^2 / 2`: models are drawn to the mean in proportion to their distance.

    Example:
      >>> float(Squared().prox(jnp.array(3.0), 2.0))
      1.0
    """

    def value(self, x: core.Tree) -> jax.Array:
        """Returns `|x|^2 / 2`."""
        return _square(x) / 2

    def prox(self, x: core.Tree, rho: core.Scalar) -> core.Tree:
        """Returns `x / (1 + rho)`."""
        return jax.tree.map(lambda a: a / (1 + rho), x)

    def envelope(self, x: core.Tree, rho: core.Scalar) -> jax.Array:
        """Returns `|x|^2 / (2 (1 + rho))`."""
        return _square(x) / (2 * (1 + rho))


@struct.pytree_dataclass
class L2(Phi):
    """`|x|`, the Euclidean norm over the whole block: the smoothed geometric median.

    Example:
      >>> L2().prox(jnp.array([3.0, -4.0]), 2.5).tolist()
      [1.5, -2.0]
    """

    def value(self, x: core.Tree) -> jax.Array:
        """Returns `|x|`."""
        return _norm(x)

    def prox(self, x: core.Tree, rho: core.Scalar) -> core.Tree:
        """Returns `max(0, 1 - rho / |x|) x`."""
        norm = _norm(x)
        # Inside the ball the prox is 0; the quotient must not see a norm of 0.
        outside = norm > rho
        factor = jnp.where(outside, 1 - rho / jnp.where(outside, norm, 1), 0)
        return jax.tree.map(lambda a: factor * a, x)

    def envelope(self, x: core.Tree, rho: core.Scalar) -> jax.Array:
        """Returns `|x|^2 / (2 rho)` up to rho, `|x| - rho / 2` beyond."""
        return _huber(_norm(x), rho)

    def lengths(self, x: core.Tree) -> jax.Array:
        """Returns the norm `[]`."""
        return _norm(x)

    def clipped(self, x: core.Tree, rho: core.Scalar) -> jax.Array:
        """Returns 1 if the norm is above the radius, else 0."""
        norm = _norm(x)
        return (norm > rho).astype(norm.dtype)

    def aggregator(
        self, rho: Any, rho_quantile: Any, weighting: Weighting
    ) -> core.Aggregator:
        """Returns the smoothed geometric median, started at the server's center."""
        return aggregators.GeometricMedian(
            rho=rho if rho_quantile is None else None,
            rho_quantile=rho_quantile,
            weighting=weighting,
            start="reference",
        )


@struct.pytree_dataclass
class L1(Phi):
    """`sum_i |x_i|`: the smoothed coordinate median.

    Example:
      >>> L1().prox(jnp.array([-3.0, -1.0, 0.5, 2.0]), 1.0).tolist()
      [-2.0, -0.0, 0.0, 1.0]
    """

    def value(self, x: core.Tree) -> jax.Array:
        """Returns `sum_i |x_i|`."""
        return _total(jax.tree.map(jnp.abs, x))

    def prox(self, x: core.Tree, rho: core.Scalar) -> core.Tree:
        """Returns `sign(x_i) max(|x_i| - rho, 0)`."""
        return jax.tree.map(lambda a: jnp.sign(a) * jnp.maximum(jnp.abs(a) - rho, 0), x)

    def envelope(self, x: core.Tree, rho: core.Scalar) -> jax.Array:
        """Returns the envelope of `L2`, summed over the coordinates."""
        return _total(jax.tree.map(lambda a: _huber(jnp.abs(a), rho), x))

    def lengths(self, x: core.Tree) -> jax.Array:
        """Returns the root mean square of the coordinates, `[]`."""
        # One radius serves all coordinates: the length is that of a typical one.
        size = sum(leaf.size for leaf in jax.tree.leaves(x))
        return _norm(x) / size**0.5

    def clipped(self, x: core.Tree, rho: core.Scalar) -> jax.Array:
        """Returns the fraction of the coordinates above the radius."""
        leaves = jax.tree.leaves(x)
        size = sum(leaf.size for leaf in leaves)
        above = [(jnp.abs(leaf) > rho).astype(leaf.dtype) for leaf in leaves]
        return _total(above) / size

    def aggregator(
        self, rho: Any, rho_quantile: Any, weighting: Weighting
    ) -> core.Aggregator:
        """Returns the smoothed coordinate median."""
        return aggregators.CoordinateMedian(
            rho=rho if rho_quantile is None else None,
            rho_quantile=rho_quantile,
            weighting=weighting,
        )


@struct.pytree_dataclass
class Indicator(_Averaged):
    """0 at x = 0 and infinite elsewhere: every model's anchor is the center, FedProx.

    Example:
      >>> float(Indicator().envelope(jnp.array(3.0), 2.0))
      2.25
    """

    def value(self, x: core.Tree) -> jax.Array:
        """Returns 0 or infinity."""
        return jnp.where(_square(x) > 0, jnp.inf, 0)

    def prox(self, x: core.Tree, rho: core.Scalar) -> core.Tree:
        """Returns zeros."""
        return jax.tree.map(jnp.zeros_like, x)

    def envelope(self, x: core.Tree, rho: core.Scalar) -> jax.Array:
        """Returns `|x|^2 / (2 rho)`."""
        return _square(x) / (2 * rho)


@struct.pytree_dataclass
class Zero(_Averaged):
    """0: every model is its own anchor, nothing is shared.

    Example:
      >>> float(Zero().prox(jnp.array(3.0), 2.0))
      3.0
    """

    def value(self, x: core.Tree) -> jax.Array:
        """Returns 0."""
        return jnp.zeros((), jnp.result_type(*jax.tree.leaves(x)))

    def prox(self, x: core.Tree, rho: core.Scalar) -> core.Tree:
        """Returns x itself."""
        return x

    def envelope(self, x: core.Tree, rho: core.Scalar) -> jax.Array:
        """Returns 0."""
        return self.value(x)

"""The smoothed geometric median of the messages, found in the space of their weights.

Problem, with the Huber function `Phi(t) = t^2 / (2 rho)` for `t <= rho`, else
`t - rho / 2`, and Euclidean norms over the whole model:

    c* = argmin_c G(c),    G(c) = sum_k p_k Phi(|x_k - c|)

Updates, from the mean or the reference, with `eta_k = 1 / max(|x_k - c|, rho)` and the
negative gradient `g = sum_k p_k eta_k (x_k - c)`:

    weiszfeld:  c <- c + g / sum_k p_k eta_k     = sum_k p_k eta_k x_k / sum_k p_k eta_k
    prox:       c <- c + rho g                   (Fed+, equation (34))

They have the same fixed point. `weiszfeld` needs about ten steps whatever rho is;
`prox` about `distance / rho` times as many.

Every iterate is an affine combination of the rows, `c = sum_k pi_k x_k`, so that after
one Gram matrix a step costs O(K^2). That matrix is formed about a row of usual length
or the reference, and again when an iterate is far from that center (else float32 loses
the distances) compared with the median distance of the rows. The search then goes on
from a point near the medoid (the row closest to the others) if that is better, and
begins there if the mean is far away. So outliers however far, which drag the mean
along, cost neither accuracy nor many steps. Meant for K up to about 1000.

Two measures bound the rounding. Rows are divided by a power of two of their size and
the longest are shortened (`scaled_rows`), so that no square overflows and outliers that
cancel in a sum leave no error of their size. And the residual is at least the rounding
error of the Gram matrix, so that a search never ends by cancellation.

    symbol   here          shape
    x_k      matrix        [K, D]    rows, one per message
    p        p             [K]       probabilities; 0 for rows that take no part
    rho      rho           []        smoothing radius
    pi       pi            [K]       weights of the iterate
    g        direction     [K]       in weight space: g = direction @ matrix

Files: `weiszfeld` has frames and steps, `anderson` their acceleration,
`weiszfeld_gradient` the derivatives, `scaled_rows` rows of any size.

Limits: `rho -> 0` is the geometric median; for `rho >= max_k |x_k - mean|` the result
is the mean, without a step.

Reference: Yu, Kundu, Wynter, Lim, "Fed+: A Unified Approach to Robust Personalized
Federated Learning"; Pillutla, Kakade, Harchaoui, "Robust Aggregation for Federated
Learning". Deviation: the stop is on the dimensionless norm of g, not on the length of a
step, because a step of `prox` is never longer than rho.
"""

from typing import Any, ClassVar, Literal

import jax
import jax.numpy as jnp

from fedjax_pfl import core
from fedjax_pfl.aggregators import base
from fedjax_pfl.core import checks, struct
from fedjax_pfl.numerics import (
    scaled_rows,
    transposed,
    weiszfeld,
    weiszfeld_gradient,
)

__all__ = ["GeometricMedian", "GeometricMedianInfo"]


@struct.pytree_dataclass
class GeometricMedianInfo:
    """Report of the search at its end.

    Attributes:
      iterations: `int32[]` steps taken.
      residual: `[]` norm of g, between 0 and 1, or the bound on its rounding.
      fraction_outside: `[]` fraction of the rows in use further than rho from the
        result; at 0 the result is the mean.
      converged: `bool[]` whether the residual is at most the tolerance.
      radius: `[]` the rho used, in units of the messages.
      smallest_eigenvalue: `[]` of the Hessian of G at the result, in 1 over units of
        the messages, or None if not requested. The distance to the minimizer
        is about the residual divided by it; near 0 the objective is flat.
    """

    iterations: jax.Array
    residual: jax.Array
    fraction_outside: jax.Array
    converged: jax.Array
    radius: jax.Array
    smallest_eigenvalue: jax.Array | None


@struct.pytree_dataclass
class GeometricMedian(base.MatrixRule):
    """Smoothed geometric median with one norm over the whole model.

    Rows of weight 0 and rows with a non-finite value take no part; if none is left, the
    reference is returned. Finite rows may be of any size; one that is 1e6 times as long
    as the median row (1e10 in float64) counts as that long, which pulls the same. If
    every row is the same, that row is returned. On rows that lie on one line, half on
    either side of a gap, the objective is flat: the result is the minimizer nearest to
    the mean, for any start of the search, so that two rows of one weight have their
    mean. On rows nearly on such a line the residual passes far from the minimizer. A
    minimizer that is a row is found as such. `info.converged` says whether the residual
    met the tolerance within `max_iterations`.

    A traced `rho <= 0` acts like the smallest representable radius, a traced quantile
    outside (0, 1) like the nearer end; a traced negative tolerance is never met.

    Derivatives are the minimizer's, whatever the search: by the implicit function
    theorem, with respect to messages, rho and, under `examples`, positive weights. They
    are wrong as far as the search is from its end. A flat minimum moves as the mean
    does along its line. A radius that follows from the rows counts as a constant, the
    report too.

    Attributes:
      rho: `[]` smoothing radius, > 0, or None: 1e-6 times the median distance of the
        rows from the start of the last search: the mean, or a point by the medoid if
        that is far from it. `method="prox"` needs about `distance / rho` steps; give it
        a rho of the size of the distances.
      rho_quantile: `[]` in (0, 1), or None: the radius is this quantile of the same
        distances. At most one of the two is given.
      tolerance: `[]` bound on the residual, or None: 1e-6 in float32, 1e-10 in float64.
      method: static, `weiszfeld` or `prox`.
      weighting: static, `uniform` or `examples` (the weights of the uploads).
      start: static, `mean` or `reference`: start of the search. A reference too far
        away to help counts as one of the rows.
      acceleration: static number of steps that an extrapolation looks back on
        (`anderson`); 0 for none, which takes hundreds of steps if rows lie nearly on
        a line.
      curvature: static, whether to report the smallest eigenvalue of the Hessian.
      max_iterations: static bound on the number of steps.

    Example:
      >>> import jax
      >>> rows = jax.numpy.array([[0.0, 0.0], [0.0, 2.0], [2.0, 0.0], [2.0, 2.0]])
      >>> median, info = GeometricMedian()(
      ...     jax.random.key(0), rows, jax.numpy.ones(4), jax.numpy.zeros(2)
      ... )
      >>> median.tolist(), bool(info.converged)
      ([1.0, 1.0], True)
    """

    rho: float | None = struct.traced_field(default=None, above=0)
    rho_quantile: float | None = struct.traced_field(default=None, above=0, below=1)
    tolerance: float | None = struct.traced_field(default=None, above=0)
    method: Literal["weiszfeld", "prox"] = "weiszfeld"
    weighting: base.Weighting = "uniform"
    start: Literal["mean", "reference"] = "mean"
    acceleration: int = struct.static_field(default=5, at_least=0, at_most=100)
    curvature: bool = struct.static_field(default=False)
    max_iterations: int = struct.static_field(default=1000, at_least=1)
    of_pairs: ClassVar[bool] = True

    def __post_init__(self):
        checks.alternatives(rho=self.rho, rho_quantile=self.rho_quantile)

    @property
    def chooses(self) -> str | None:
        """Names what derivatives hold fixed."""
        return None if self.rho_quantile is None else base.FIXED_RADIUS

    def combine(
        self, matrix: jax.Array, valid: jax.Array, weights: jax.Array, center: jax.Array
    ) -> tuple[jax.Array, GeometricMedianInfo]:
        """Finds the median; reports how the search ended."""
        p = weights if self.weighting == "examples" else jnp.ones_like(weights)
        p = jnp.where(valid, p, 0).astype(matrix.dtype)
        p = p / jnp.where(valid.any(), p.sum(), 1)
        rho = None if self.rho is None else jnp.asarray(self.rho, matrix.dtype)
        start = center if self.start == "reference" else None
        return _minimizer(self, rho, matrix, p, start)


def _forward(
    rule: GeometricMedian,
    rho: jax.Array | None,
    matrix: jax.Array,
    p: jax.Array,
    start: jax.Array | None,
) -> tuple[tuple[jax.Array, GeometricMedianInfo], Any]:
    """Returns the median of rows `[K, D]`, and residuals for its derivatives."""
    # In units of the rows' size no square overflows, and float32 resolves rho.
    size = scaled_rows.measure(matrix, p > 0, p, 0 if rho is None else rho)
    tolerance = rule.tolerance
    if tolerance is None:
        tolerance = scaled_rows.precision(matrix.dtype)
    tolerance = jnp.asarray(tolerance, matrix.dtype)
    end = weiszfeld.Search(
        rho=rho,
        rho_quantile=rule.rho_quantile,
        tolerance=tolerance,
        method=rule.method,
        acceleration=rule.acceleration,
        curvature=rule.curvature,
        max_iterations=rule.max_iterations,
    )(size, p, start)
    # Rows that were shortened count as outside of any radius.
    outside = (end.outside | size.shortened).sum(dtype=matrix.dtype)
    num_rows = (p > 0).sum(dtype=matrix.dtype)
    eigenvalue = end.eigenvalue
    info = GeometricMedianInfo(
        iterations=end.iterations,
        residual=end.residual,
        fraction_outside=outside / jnp.maximum(num_rows, 1),
        converged=end.residual <= tolerance,
        radius=jnp.where(num_rows > 0, end.radius, 0) * size.scale,
        smallest_eigenvalue=None if eigenvalue is None else eigenvalue / size.scale,
    )
    # Derivatives are the minimizer's: they need its end, not the steps of the search.
    residuals = (size, p, end.center, end.radius), rho
    return (size.scale * end.center, info), residuals


def _backward(residuals: core.Tree, cotangent: jax.Array) -> tuple[Any, ...]:
    """Cotangents of all arguments; None for constants."""
    (size, p, center, radius), rho = residuals
    of_rows, of_p, of_rho = weiszfeld_gradient.cotangents(
        size, p, center, radius, cotangent
    )
    return None, None if rho is None else of_rho, of_rows, of_p, None


_minimizer = transposed.with_cotangents(_forward, _backward)

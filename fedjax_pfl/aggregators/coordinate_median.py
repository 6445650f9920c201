"""The median of every coordinate, exact or smoothed.

Problem, for every coordinate, with the Huber function `Phi(t) = t^2 / (2 rho)` for
`|t| <= rho`, else `|t| - rho / 2`:

    m* = argmin_m sum_k p_k Phi(x_k - m)

Without a radius it is the exact median: the midpoint of the two middle values, of the
lower and the upper weighted median under weights (`order_statistics`). With one, Newton
steps from there (`huber`). Derivatives are the minimizer's:

    dm/dx_k = p_k [|x_k - m| < rho] / n,    n = sum_k p_k [|x_k - m| < rho]
    dm/drho = (sum_k p_k sign(x_k - m) [|x_k - m| > rho]) / n
    dm/dp_k = clip(x_k - m, -rho, rho) / n

and if no row is within rho, and for the exact median, one half for each of the two
middle values, which rows of one value share, and 0 for rho and p.

Reference: Yu, Kundu, Wynter, Lim, "Fed+: A Unified Approach to Robust Personalized
Federated Learning". Deviation: Newton steps instead of its equation (34), which takes
steps of about rho / K near the median.
"""

import functools

import jax
import jax.numpy as jnp
from jax import lax

from fedjax_pfl import core
from fedjax_pfl.aggregators import base
from fedjax_pfl.core import checks, columns, struct
from fedjax_pfl.core.client_rows import dot
from fedjax_pfl.numerics import (
    huber,
    order_statistics,
    scaled_rows,
    transposed,
    weiszfeld,
)

__all__ = ["CoordinateMedian", "CoordinateMedianInfo"]

_Pair = tuple[jax.Array, jax.Array]


def _middle(matrix: jax.Array, p: jax.Array, weighted: bool) -> _Pair:
    """Returns the middle values `[D]`; 0 if no row takes part."""
    valid = p > 0
    if not weighted:
        return order_statistics.middle_rows(matrix, valid)
    clean = jnp.where(valid[:, None], matrix, 0)
    low, high = order_statistics.weighted_middle(clean, p)
    return jnp.where(valid.any(), low, 0), jnp.where(valid.any(), high, 0)


def _written_middle(matrix: jax.Array, p: jax.Array, weighted: bool) -> _Pair:
    """Returns the middle values `[D]`, written to memory."""
    # A branch: else selection would be compiled into everything that reads them.
    zeros = jnp.zeros_like(matrix[0])
    select = functools.partial(_middle, matrix, p, weighted)
    return lax.cond(p.sum() > 0, select, lambda: (zeros, zeros))


def _shared(
    matrix: jax.Array, valid: jax.Array, pair: _Pair, cotangent: jax.Array
) -> jax.Array:
    """Distributes a cotangent `[D]` over the rows with the middle values, `[K, D]`."""
    total = jnp.zeros_like(matrix)
    for value in pair:
        # Rows of one value share its derivative, so that their order does not matter.
        equal = valid[:, None] & (matrix == value[None])
        count = dot(jnp.ones_like(matrix[:, 0]), equal.astype(matrix.dtype))
        half = cotangent / 2 / jnp.maximum(count, 1)
        total = total + jnp.where(equal, half[None], 0)
    return total


def _exact_forward(
    weighted: bool, matrix: jax.Array, p: jax.Array
) -> tuple[tuple[jax.Array, None], core.Tree]:
    """Returns the exact median `[D]`, and residuals for its derivatives."""
    pair = _middle(matrix, p, weighted)
    return (order_statistics.midpoint(*pair), None), (weighted, matrix, p)


def _exact_backward(
    residuals: core.Tree, cotangent: jax.Array
) -> tuple[jax.Array, None]:
    """Cotangents of the rows; of p there are none."""
    weighted, matrix, p = residuals
    pair = _written_middle(matrix, p, weighted)
    return _shared(matrix, p > 0, pair, cotangent), None


_EXACT = {
    weighted: transposed.with_cotangents(
        functools.partial(_exact_forward, weighted), _exact_backward
    )
    for weighted in (False, True)
}


@struct.pytree_dataclass
class CoordinateMedianInfo:
    """Report of a smoothed median's radius.

    Attributes:
      fraction_clipped: `[]` fraction of the values of the rows in use that are further
        than rho from the result; at 0 the result is the mean.
      radius: `[]` the rho used.
    """

    fraction_clipped: jax.Array
    radius: jax.Array


@struct.pytree_dataclass
class CoordinateMedian(base.MatrixRule):
    """Median per coordinate over the rows of positive weight, exact or smoothed.

    With an even number of rows it is the midpoint of the two middle values. Rows of
    weight 0 and rows with a non-finite value take no part; if none is left, the
    reference is returned. Bounded by honest values as long as fewer than half of the
    rows are not honest; the smoothed median is within rho of the exact one.

    A traced `rho <= 0` acts like the smallest representable radius, a traced quantile
    outside (0, 1) like the nearer end. Derivatives are defined with
    respect to messages, rho and, where smoothed under `examples`, positive weights; a
    radius that follows from the rows counts as a constant, the report too.

    Attributes:
      rho: `[]` smoothing radius, > 0, or None. It is one for all coordinates.
      rho_quantile: `[]` in (0, 1), or None: the radius is this quantile of the rows'
        distances from the exact median, as root mean squares over the coordinates. A
        row that is 1e6 times as long as the median row (1e10 in float64) counts as
        that long. Without either radius the median is exact.
      weighting: static, `uniform` or `examples` (the weights of the uploads).

    Example:
      >>> import jax
      >>> rows, weights = jax.numpy.array([1.0, 9.0, 2.0]), jax.numpy.ones(3)
      >>> aggregate, _ = CoordinateMedian()(
      ...     jax.random.key(0), rows, weights, jax.numpy.array(0.0)
      ... )
      >>> float(aggregate)
      2.0
      >>> aggregate, info = CoordinateMedian(rho=2.0)(
      ...     jax.random.key(0), rows, weights, jax.numpy.array(0.0)
      ... )
      >>> float(aggregate), round(float(info.fraction_clipped), 3)
      (2.5, 0.333)
    """

    rho: float | None = struct.traced_field(default=None, above=0)
    rho_quantile: float | None = struct.traced_field(default=None, above=0, below=1)
    weighting: base.Weighting = "uniform"

    def __post_init__(self):
        checks.alternatives(rho=self.rho, rho_quantile=self.rho_quantile)

    @property
    def chooses(self) -> str | None:
        """Names what derivatives hold fixed."""
        if self.rho is not None:
            return None
        if self.rho_quantile is not None:
            return base.FIXED_RADIUS
        return "which values are in the middle"

    def combine(
        self, matrix: jax.Array, valid: jax.Array, weights: jax.Array, center: jax.Array
    ) -> tuple[jax.Array, CoordinateMedianInfo | None]:
        """Takes the median of every coordinate; None reports the exact one."""
        has_rows, weighted = valid.any(), self.weighting == "examples"
        p = weights if weighted else jnp.ones_like(weights)
        p = jnp.where(valid, p, 0).astype(matrix.dtype)
        p = p / jnp.where(has_rows, p.sum(), 1)
        if self.rho is None and self.rho_quantile is None:
            return _EXACT[weighted](matrix, p)
        rho = None if self.rho is None else jnp.asarray(self.rho, matrix.dtype)
        return _smoothed(self, rho, matrix, p)

    def _radius(
        self, rho: jax.Array | None, matrix: jax.Array, p: jax.Array, median: jax.Array
    ) -> jax.Array:
        """Returns the radius; positive and far from overflow."""
        radius = rho
        if radius is None:
            size = scaled_rows.measure(matrix, p > 0, p)
            distance = size.norms(median / size.scale)
            chosen = scaled_rows.quantile(distance, p, self.rho_quantile)
            # Root mean squares: norms over the square root of D.
            radius = size.scale * (chosen / columns.count(matrix) ** 0.5)
        # Differences over the radius must neither divide by zero nor overflow.
        radius = jnp.maximum(radius, weiszfeld.smallest_radius(matrix.dtype))
        return jnp.minimum(radius, jnp.finfo(matrix.dtype).max / 4)


def _smoothed_forward(
    rule: CoordinateMedian, rho: jax.Array | None, matrix: jax.Array, p: jax.Array
) -> tuple[tuple[jax.Array, CoordinateMedianInfo], core.Tree]:
    """Returns the median of rows `[K, D]`, and residuals for its derivatives."""
    weighted = rule.weighting == "examples"
    # A branch, as in `_written_middle`; its one result takes half of the time.
    median = lax.cond(
        p.sum() > 0,
        lambda: order_statistics.midpoint(*_middle(matrix, p, weighted)),
        lambda: jnp.zeros_like(matrix[0]),
    )
    radius = rule._radius(rho, matrix, p, median)
    centers = huber.centers(matrix, p, median, radius)
    num_rows = (p > 0).sum(dtype=matrix.dtype)
    outside = columns.total(centers.outside.sum(dtype=matrix.dtype))
    info = CoordinateMedianInfo(
        fraction_clipped=outside / columns.count(matrix) / jnp.maximum(num_rows, 1),
        radius=jnp.where(num_rows > 0, radius, 0),
    )
    residuals = rule, rho, matrix, p, median, centers, radius
    return (median + centers.shift, info), residuals


def _smoothed_backward(
    residuals: core.Tree, cotangent: jax.Array
) -> tuple[jax.Array | None, ...]:
    """Cotangents of all arguments; None for constants."""
    rule, rho, matrix, p, median, centers, radius = residuals
    valid, some = p > 0, centers.inside > 0
    difference = jnp.where(valid[:, None], matrix, 0) - median[None]
    difference = difference - centers.shift[None]
    size = jnp.abs(difference)
    # dm/dx_k = p_k [|x_k - m| < rho] / n; if no row is inside, as for the exact median.
    share = jnp.where(some, cotangent / jnp.where(some, centers.inside, 1), 0)
    of_rows = jnp.where(size < radius, p[:, None] * share[None], 0)
    remainder = jnp.where(some, 0, cotangent)
    pair = _written_middle(matrix, p, rule.weighting == "examples")
    of_rows = of_rows + _shared(matrix, valid, pair, remainder)
    # dm/dp_k = clip(x_k - m, -rho, rho) / n.
    of_p = jnp.where(valid, dot(jnp.clip(difference, -radius, radius), share), 0)
    if rho is None:
        return None, None, of_rows, of_p
    # dm/drho = sum_k p_k sign(x_k - m) [|x_k - m| > rho] / n.
    outside = jnp.where(size > radius, jnp.sign(difference), 0)
    return None, dot(p, dot(outside, share)), of_rows, of_p


_smoothed = transposed.with_cotangents(_smoothed_forward, _smoothed_backward)

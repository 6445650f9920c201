"""Quadratic programs on Gram matrices: common descent and protected directions.

With A = Q Q^T the Gram matrix `[J, J]` of rows q_j, three problems for weights x:

    minimum_norm        min 1/2 x^T A x           sum(x) = 1, x >= 0
    box_minimum_norm    min 1/2 x^T A x           sum(x) = 1, lower <= x <= upper
    cone                min 1/2 x^T A x + c^T x   x >= 0

The first is the shortest point Q^T x of the hull of the rows, and d = -Q^T x descends
along all of them: `q_j . d <= -||d||^2`, with equality where x_j > 0. With c = Q g the
last is the projection of -g onto `{p: q_j . p <= 0}`, p = -(g + Q^T x). The number of
parameters enters through A only. Masked rows may hold anything and take no part.

Method: a primal-dual interior point (`interior_point`) with one J x J Cholesky factor
per iteration, on problems divided by the mean s of A's diagonal; rows of the cone are
brought to length 1 first, which changes x and not Q^T x. Iterations go on until the
certificate is down to rounding, at most a hundred, mostly about ten; under `vmap` all
problems take as many as the slowest.

Certificates (`Solution.gap`, in the units of A). On the simplex and in the box

    gap = x^T A x - min_y y^T A x  over allowed y, at least x^T A x / 2 - the optimum,

so that on the simplex `q_j . d <= -||d||^2 + gap` for every row: common descent is
certified where gap < value. For the cone

    gap = max(sum_j x_j |q_j . p|, ||p|| max_j (q_j . p)_+ / ||q_j||),

plus what rounding hides of either, so that the cosine of p with every row is at most
gap / value. The first is the duality gap where no row ascends: half the squared
distance of p to the solution is then at most gap.

Limits. Weights are not unique where rows are dependent; Q^T x and the value are. The
value of a float32 Gram matrix is known to about 1e-6 s: a shorter Q^T x is noise, and
callers decide below which norm a point is stationary, 1e-3 sqrt(s) for example. Rows of
very different norms give all weight to the shortest: scale them before. A missing row
is to be masked; as zeros it would be the shortest point of the hull. A is to be
computed at highest precision, as products are here.

Why not another method: projected gradients and Frank-Wolfe need less per iteration, but
thousands of iterations where rows are clustered or one opposes the others; active sets
are exact in float64, but their sizes depend on the data, and they fail in float32 on
badly scaled rows. For thousands of rows, where a factor costs too much, they win.

References: Mehrotra, "On the Implementation of a Primal-Dual Interior Point Method"
(1992); Fliege, Svaiter, "Steepest Descent Methods for Multicriteria Optimization"
(2000), for the direction.
"""

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from fedjax_pfl.core import checks, struct
from fedjax_pfl.core.client_rows import dot
from fedjax_pfl.numerics import interior_point

__all__ = ["Solution", "box_minimum_norm", "cone", "minimum_norm"]


@struct.pytree_dataclass
class Solution:
    """Weights of rows, and how good they are.

    Attributes:
      x: `[J]` weights, 0 where masked.
      value: `[]` `||Q^T x||^2`, for `cone` `||g + Q^T x||^2`; at least 0.
      gap: `[]` certificate in the units of A, at least 0 (see the module).
    """

    x: jax.Array
    value: jax.Array
    gap: jax.Array


def minimum_norm(
    gram: ArrayLike, mask: ArrayLike | None = None, *, max_iterations: int | None = None
) -> Solution:
    """Weights of the shortest point of the hull of rows.

    Args:
      gram: `[J, J]` inner products of the rows; float64 stays, all else is float32.
      mask: `bool[J]` rows that exist, None for all.
      max_iterations: static, None for 100.

    Returns:
      `Solution` with x >= 0 and sum(x) = 1. If everything is masked x, value and gap
      are 0. A number that is not finite, in a row that exists, makes everything NaN.

    Raises:
      InputError: for shapes that do not fit.

    Example:
      >>> solution = minimum_norm(jnp.array([[1.0, 0.0], [0.0, 3.0]]))
      >>> [round(float(x), 4) for x in solution.x], round(float(solution.value), 4)
      ([0.75, 0.25], 0.75)
    """
    gram, mask, scale = _prepared(gram, mask)
    problem = interior_point.problem_of(gram, jnp.zeros_like(gram[0]), None, mask)
    x, gap = interior_point.solve(problem, max_iterations)
    return _solution(x, _square(gram, x), gap, scale)


def box_minimum_norm(
    gram: ArrayLike,
    lower: ArrayLike,
    upper: ArrayLike,
    mask: ArrayLike | None = None,
    *,
    max_iterations: int | None = None,
) -> Solution:
    """Weights of the shortest point of a part of the hull: every weight has bounds.

    Solved for y in `x = lower + S y` with `S = 1 - sum(lower)`, on the simplex again.
    Where S is below 1e-6 (2e-15 in float64) x is `lower`, and where `sum(upper) - 1`
    is, `upper`.

    Args:
      gram: `[J, J]` inner products of the rows; float64 stays, all else is float32.
      lower: `[J]` least weights, at least 0.
      upper: `[J]` largest weights, at least `lower`; inf for none.
      mask: `bool[J]` rows that exist, None for all. Bounds of others do not matter.
      max_iterations: static, None for 100.

    Returns:
      `Solution` that keeps the bounds, with sum(x) = 1 to rounding. Bounds that leave
      no such x give a gap of inf. If everything is masked x, value and gap are 0. A
      number that is not finite, in a row that exists, makes everything NaN.

    Raises:
      InputError: for shapes that do not fit.

    Example:
      >>> gram, lower = jnp.array([[1.0, 0.0], [0.0, 3.0]]), jnp.array([0.0, 0.5])
      >>> solution = box_minimum_norm(gram, lower, jnp.ones(2))
      >>> [round(float(x), 4) for x in solution.x], float(solution.value)
      ([0.5, 0.5], 1.0)
    """
    gram, mask, scale = _prepared(gram, mask)
    lower = jnp.where(mask, _vector("lower", lower, gram), 0)
    upper = jnp.where(mask, _vector("upper", upper, gram), 0)
    eps = jnp.finfo(gram.dtype).eps
    tiny = 8 * eps
    slack, spare = 1 - lower.sum(), upper.sum() - 1
    unit = jnp.where(slack <= tiny, 1, slack)
    width = jnp.minimum((upper - lower) / unit, 1)  # no row can take more
    # The objective over S, so that its slope is that of x.
    problem = interior_point.problem_of(
        unit * gram, dot(gram, lower), width, mask & (width > eps)
    )
    y, gap = interior_point.solve(problem, max_iterations)
    x = jnp.where(spare <= tiny, upper, jnp.clip(lower + unit * y, lower, upper))
    x = jnp.where(slack <= tiny, lower, x)
    gap = jnp.where(jnp.minimum(slack, spare) <= tiny, 0, unit * gap)
    possible = (jnp.minimum(slack, spare) >= -tiny) & (lower <= upper).all()
    gap = jnp.where(possible | ~mask.any(), gap, jnp.inf)
    return _solution(x, _square(gram, x), gap, scale)


def cone(
    gram: ArrayLike,
    linear: ArrayLike,
    square: ArrayLike,
    mask: ArrayLike | None = None,
    *,
    max_iterations: int | None = None,
) -> Solution:
    """Weights x >= 0 with which rows, added to a vector g, make it shortest.

    -(g + Q^T x) is then the point nearest to -g along which no row ascends. If rows
    nearly oppose each other x is large, and rounding keeps the gap of float32 at up to
    some 1e-6 sum(x)^2 in units of g and of rows of length 1. The gap includes what
    rounding of A and of A x hides of it, about 3 eps (1 + ||x||) max(sum(x), ||p||),
    and the value is exact to about eps (1 + sum(x))^2. Slopes of twice the precision
    would rarely help: of float32 Gram matrices of such rows, solutions of 64 bits are
    mostly off by as much, since A itself is rounded.

    Args:
      gram: `[J, J]` inner products of the rows; float64 stays, all else is float32.
      linear: `[J]` inner products c of the rows with g. Where there is no such g there
        may be no solution.
      square: `[]` squared norm of g.
      mask: `bool[J]` rows that exist, None for all.
      max_iterations: static, None for 100.

    Returns:
      `Solution` with value `square + 2 c^T x + x^T A x`. If everything is masked x and
      gap are 0 and the value is `square`. A number that is not finite, in a row that
      exists or in `square`, makes everything NaN.

    Raises:
      InputError: for shapes that do not fit.

    Example:
      >>> q, g = jnp.array([[1.0, 0.0], [0.0, 1.0]]), jnp.array([-2.0, 3.0])
      >>> solution = cone(q @ q.T, q @ g, g @ g)
      >>> [round(float(x), 4) for x in solution.x], round(float(solution.value), 4)
      ([2.0, 0.0], 9.0)
    """
    gram, mask, scale = _prepared(gram, mask)
    linear = jnp.where(mask, _vector("linear", linear, gram), 0) / scale
    square = jnp.asarray(square, gram.dtype)
    if square.shape:
        raise checks.InputError(
            f"Expected square to be one number, got shape {square.shape}."
        )
    square = square / scale
    length = interior_point.or_one(jnp.sqrt(jnp.diagonal(gram)))
    toward = linear / length
    unit = interior_point.or_one(jnp.abs(toward).max())  # x is proportional to c
    # Only its size matters where all rows are nearly orthogonal to g.
    most = jnp.sqrt(jnp.finfo(gram.dtype).max)
    problem = interior_point.problem_of(
        gram / length[:, None] / length[None],
        toward / unit,
        None,
        mask,
        square=jnp.minimum(square / unit / unit, most),
    )
    x, gap = interior_point.solve(problem, max_iterations)
    gap = gap + problem.hidden(x)
    x, gap = unit * x / length, unit * unit * gap
    value = square + 2 * dot(linear, x) + _square(gram, x)
    return _solution(x, value, gap, scale)


def _prepared(
    gram: ArrayLike, mask: ArrayLike | None
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Returns a over the mean of its diagonal, 0 where masked; the mask; the mean."""
    gram = jnp.asarray(gram)
    gram = gram.astype(jnp.promote_types(gram.dtype, jnp.float32))
    if gram.ndim != 2 or not gram.shape[0] == gram.shape[1] > 0:
        raise checks.InputError(
            "Expected gram to be a square matrix of at least one row, got shape"
            f" {gram.shape}."
        )
    mask = jnp.ones(len(gram), bool) if mask is None else jnp.asarray(mask, bool)
    _check_rows("mask", mask, gram)
    gram = jnp.where(mask[:, None] & mask[None], gram, 0)
    count = interior_point.or_one(mask.sum(dtype=gram.dtype))
    scale = interior_point.or_one((jnp.diagonal(gram) / count).sum())
    return gram / scale, mask, scale


def _check_rows(name: str, vector: jax.Array, gram: jax.Array) -> None:
    """Refuses a vector that has not one entry per row."""
    if vector.shape != gram.shape[:1]:
        raise checks.InputError(
            f"Expected {name} of shape {gram.shape[:1]}, one entry per row of gram, got"
            f" shape {vector.shape}."
        )


def _vector(name: str, values: ArrayLike, gram: jax.Array) -> jax.Array:
    """Returns one number per row, in the matrix's dtype."""
    vector = jnp.asarray(values, gram.dtype)
    _check_rows(name, vector, gram)
    return vector


def _square(gram: jax.Array, x: jax.Array) -> jax.Array:
    """Returns the squared norm of Q^T x."""
    return dot(x, dot(gram, x))


def _solution(
    x: jax.Array, value: jax.Array, gap: jax.Array, scale: jax.Array
) -> Solution:
    """Scales back to the units of A; NaN if the value is not finite."""
    broken = ~jnp.isfinite(value)
    return Solution(
        x=jnp.where(broken, jnp.nan, x),
        value=jnp.where(broken, jnp.nan, scale * jnp.maximum(value, 0)),
        gap=jnp.where(broken, jnp.nan, scale * gap),
    )

"""The smoothed geometric median of the messages, found in the space of their weights.

Problem, with the Huber function `Phi(t) = t^2 / (2 rho)` for `t <= rho`, else
`t - rho / 2`, and Euclidean norms over the whole model:

    c* = argmin_c G(c),    G(c) = sum_k p_k Phi(|x_k - c|)

Updates, from the mean, with `eta_k = 1 / max(|x_k - c|, rho)` and the negative gradient
`g = sum_k p_k eta_k (x_k - c)`:

    weiszfeld:  c <- c + g / sum_k p_k eta_k     = sum_k p_k eta_k x_k / sum_k p_k eta_k
    prox:       c <- c + rho g                   (Fed+, equation (34))

They have the same fixed point. `weiszfeld` needs about ten steps whatever rho is;
`prox` about `distance / rho` times as many.

Every iterate is an affine combination of the rows, `c = sum_k pi_k x_k`, so that after
one Gram matrix a step costs O(K^2). That matrix is formed about a center near c (else
float32 loses the distances), and anew when an iterate is far from that center compared
with the median distance of the rows. The search then goes on from a point near the
medoid (the row closest to the others) if that is better. So outliers however far, which
drag the mean along, cost neither accuracy nor many steps. Meant for K up to about 1000.

Two things keep rounding out of it. Rows are divided by a power of two of their size and
the longest are shortened (`lengths`), so that no square overflows and outliers that
cancel in a sum leave nothing of their size behind. And the residual is at least what
rounding of the Gram matrix may hide of it, so that a search never ends by cancellation.

    symbol   here          shape
    x_k      matrix        [K, D]    rows, one per message
    p        p             [K]       probabilities; 0 for rows that take no part
    rho      rho           []        smoothing radius
    pi       pi            [K]       weights of the iterate, of sum 1
    g        direction     [K]       in weight space: g = direction @ matrix

Limits: `rho -> 0` is the geometric median; for `rho >= max_k |x_k - mean|` the result
is the mean, without a step.

Reference: Yu, Kundu, Wynter, Lim, "Fed+: A Unified Approach to Robust Personalized
Federated Learning"; Pillutla, Kakade, Harchaoui, "Robust Aggregation for Federated
Learning". Deviation: the stop is on the dimensionless norm of g, not on the length of a
step, because a step of `prox` is never longer than rho.
"""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from fedjax_pfl import checks, clients, struct, types
from fedjax_pfl.aggregators import lengths

__all__ = ["GeometricMedian", "GeometricMedianInfo"]

# An iterate this many median distances off the center asks for a new frame: the error
# of squared distances there, eps 4^2, is in float32 the default bound on the residual.
_FAR = 4.0
_MAX_FRAMES = 16
_dot = functools.partial(jnp.matmul, precision=lax.Precision.HIGHEST)


@struct.pytree_dataclass
class GeometricMedianInfo:
    """How the search ended.

    Attributes:
      iterations: `int32[]` steps taken.
      residual: `[]` norm of g, between 0 and 1, or what rounding may hide of it.
      fraction_outside: `[]` fraction of the rows in use further than rho from the
        result; 0 says that the result is the mean.
      converged: `bool[]` whether the residual is at most the tolerance.
    """

    iterations: jax.Array
    residual: jax.Array
    fraction_outside: jax.Array
    converged: jax.Array


@struct.pytree_dataclass
class _Iterate:
    """An iterate in weight space and what the Gram matrix says about it.

    Attributes:
      pi: `[K]` weights, of sum 1.
      direction: `[K]` a, of sum 0.
      distance: `[K]` of the rows from the iterate.
      total: `[]` sum of `p_k eta_k`.
      residual: `[]` norm of g, at least its rounding error.
      far: `bool[]` whether the Gram matrix is formed about a point too far away.
      iterations: `int32[]` steps taken.
    """

    pi: jax.Array
    direction: jax.Array
    distance: jax.Array
    total: jax.Array
    residual: jax.Array
    far: jax.Array
    iterations: jax.Array


@struct.pytree_dataclass
class _Frame:
    """A finished frame: the iterate `center [D]`, `pi [K]`, and what is known of it.

    `outside bool[K]` are the rows further than rho; the rest are scalars.
    """

    center: jax.Array
    pi: jax.Array
    outside: jax.Array
    residual: jax.Array
    far: jax.Array
    iterations: jax.Array
    number: jax.Array


def _radius(rho: Any, distance: jax.Array, p: jax.Array) -> jax.Array:
    """The radius for rows at `distance [K]` from the center; positive."""
    if rho is None:
        rho = 1e-6 * lengths.median(distance, p)
    smallest = 1e3 * jnp.sqrt(jnp.finfo(distance.dtype).tiny)  # its square is exact
    return jnp.maximum(jnp.asarray(rho, distance.dtype), smallest)


def _evaluate(
    gram: jax.Array, p: jax.Array, rho: jax.Array, pi: jax.Array, iterations: jax.Array
) -> _Iterate:
    """Computes distances, direction and residual at the weights `pi`."""
    mixed = _dot(gram, pi)
    shift = _dot(pi, mixed)
    distance = jnp.sqrt(jnp.maximum(jnp.diag(gram) - 2 * mixed + shift, 0))
    pull = p / jnp.maximum(distance, rho)
    total = pull.sum()
    direction = pull - pi * total
    square = _dot(direction, _dot(gram, direction))
    length = jnp.sqrt(jnp.diag(gram))
    hidden = jnp.finfo(gram.dtype).eps * jnp.square(_dot(jnp.abs(direction), length))
    return _Iterate(
        pi=pi,
        direction=direction,
        distance=distance,
        total=total,
        residual=jnp.sqrt(jnp.maximum(square, hidden)),
        far=jnp.sqrt(jnp.maximum(shift, 0)) > _FAR * lengths.median(distance, p),
        iterations=iterations,
    )


def _near_medoid(gram: jax.Array, p: jax.Array) -> jax.Array:
    """Weights `[K]` of one step from the medoid, smoothed by its median distance."""
    square = jnp.diag(gram)
    pairs = jnp.sqrt(jnp.maximum(square[:, None] + square[None] - 2 * gram, 0))
    distance = pairs[jnp.argmin(jnp.where(p > 0, _dot(pairs, p), jnp.inf))]
    smallest = jnp.sqrt(jnp.finfo(gram.dtype).tiny)
    pull = p / jnp.maximum(distance, jnp.maximum(lengths.median(distance, p), smallest))
    total = pull.sum()
    return pull / jnp.where(total > 0, total, 1)


@struct.pytree_dataclass
class GeometricMedian:
    """Smoothed geometric median with one norm over the whole model.

    Rows of weight 0 and rows with a non-finite value take no part; if none is left, the
    reference is returned. Finite rows may be of any size; one that is 1e6 times as long
    as the median row (1e10 in float64) counts as that long, which pulls the same. If
    every row is the same, that row is returned. On rows that lie nearly on one line,
    half on either side of a gap, the objective is flat: the residual then passes far
    from the minimizer. Where the minimizer is a row, the steps shrink slowly; a larger
    rho or more iterations make the residual pass.

    A traced `rho <= 0` acts like the smallest representable radius; a traced negative
    tolerance is never met. Reverse-mode derivatives are not defined.

    Attributes:
      rho: `[]` smoothing radius, > 0, or None: 1e-6 times the median distance of the
        rows from the center of the last Gram matrix. `method="prox"` needs about
        `distance / rho` steps; give it a rho of the size of the distances.
      tolerance: `[]` bound on the residual, or None: 1e-6 in float32, 1e-10 in float64.
      method: static, `weiszfeld` or `prox`.
      weighting: static, `uniform` or `examples` (the weights of the uploads).
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

    rho: float | None = None
    tolerance: float | None = None
    method: str = struct.static_field(default="weiszfeld")
    weighting: str = struct.static_field(default="uniform")
    max_iterations: int = struct.static_field(default=100)

    def __post_init__(self):
        checks.number("rho", self.rho, above=0)
        checks.number("tolerance", self.tolerance, above=0)
        checks.known(self.method, ("weiszfeld", "prox"), "method")
        checks.known(self.weighting, ("uniform", "examples"), "weighting")
        checks.positive_int("max_iterations", self.max_iterations)

    @property
    def incremental(self) -> None:
        """None: the median of all clients needs all messages."""
        return None

    def __call__(
        self, key: types.Key, messages: Any, weights: jax.Array, reference: Any
    ) -> tuple[Any, GeometricMedianInfo]:
        """Finds the median.

        Args:
          key: `[]` unused.
          messages: pytree of `[K, *P]` with one dtype.
          weights: `[K]`, at least 0; 0 means dropped.
          reference: pytree of `[*P]`, returned if no row takes part.

        Returns:
          Pytree of `[*P]`, and how the search ended.
        """
        del key
        matrix, unravel = clients.ravel_rows(messages)
        largest = lengths.magnitudes(matrix)
        valid = (weights > 0) & jnp.isfinite(largest)
        some = valid.any()
        p = weights if self.weighting == "examples" else jnp.ones_like(weights)
        p = jnp.where(valid, p, 0).astype(matrix.dtype)
        p = p / jnp.where(some, p.sum(), 1)
        size = lengths.measure(matrix, p > 0, p, 0 if self.rho is None else self.rho)
        end = self._search(matrix, size, p)
        outside = (end.outside | size.shortened).sum(dtype=matrix.dtype)
        info = GeometricMedianInfo(
            iterations=end.iterations,
            residual=end.residual,
            fraction_outside=outside / jnp.maximum(valid.sum(dtype=matrix.dtype), 1),
            converged=end.residual <= self._tolerance(matrix.dtype),
        )
        median = unravel(size.scale * end.center)
        return jax.tree.map(lambda m, r: jnp.where(some, m, r), median, reference), info

    def _tolerance(self, dtype: Any) -> jax.Array:
        """The bound on the residual, by dtype where it is not given."""
        given = self.tolerance
        return jnp.asarray(lengths.precision(dtype) if given is None else given, dtype)

    def _search(self, matrix: jax.Array, size: lengths.Lengths, p: jax.Array) -> _Frame:
        """Searches in one frame after the other until one is about the result."""
        count = jnp.zeros((), jnp.int32)
        mean = _Frame(
            center=size.combine(p, matrix, jnp.zeros_like(matrix[0])),
            pi=p,
            outside=jnp.zeros(p.shape, bool),
            residual=jnp.zeros((), matrix.dtype),
            far=jnp.ones((), bool),
            iterations=count,
            number=count,
        )

        def again(frame: _Frame) -> jax.Array:
            room = frame.iterations < self.max_iterations
            return frame.far & room & (frame.number < _MAX_FRAMES)

        search = functools.partial(self._in_frame, matrix, size, p)
        return lax.while_loop(again, search, mean)

    def _in_frame(
        self, matrix: jax.Array, size: lengths.Lengths, p: jax.Array, frame: _Frame
    ) -> _Frame:
        """Searches with the Gram matrix about the last iterate."""
        gram = size.gram(matrix, frame.center)
        rho = None if self.rho is None else self.rho / size.scale
        rho = _radius(rho, jnp.sqrt(jnp.diag(gram)), p)
        tolerance = self._tolerance(matrix.dtype)

        def unfinished(now: _Iterate) -> jax.Array:
            room = now.iterations < self.max_iterations
            return (now.residual > tolerance) & room & ~now.far

        def step(now: _Iterate) -> _Iterate:
            length = rho if self.method == "prox" else 1 / now.total
            pi = now.pi + length * now.direction
            return _evaluate(gram, p, rho, pi, now.iterations + 1)

        # The frame is about this iterate: not far, so that there is a step.
        start = _evaluate(gram, p, rho, frame.pi, frame.iterations)
        start = dataclasses.replace(start, far=jnp.zeros((), bool))
        jump = _evaluate(gram, p, rho, _near_medoid(gram, p), frame.iterations)
        nearer = _dot(p, jump.distance) < _dot(p, start.distance)
        swap = nearer & (frame.number > 0)  # the search starts at the mean
        start = jax.tree.map(lambda a, b: jnp.where(swap, b, a), start, jump)
        end = lax.while_loop(unfinished, step, start)
        return _Frame(
            center=frame.center + size.combine(end.pi, matrix, frame.center),
            pi=end.pi,
            outside=(p > 0) & (end.distance > rho),
            residual=end.residual,
            far=end.far,
            iterations=end.iterations,
            number=frame.number + 1,
        )

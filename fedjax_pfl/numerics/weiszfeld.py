"""The search for a smoothed geometric median in the space of the rows' weights.

A point is `c = o + sum_k pi_k (x_k - o)` with the center o of the Gram matrix. The
weights `pi [K]` need not sum to 1: they do from the mean on and after every Weiszfeld
step, and `pi = 0` is the center itself. `geometric_median` explains the problem, both
updates and rounding.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.typing import ArrayLike, DTypeLike

from fedjax_pfl.core import columns, factorizations, struct
from fedjax_pfl.core.client_rows import dot
from fedjax_pfl.numerics import anderson, scaled_rows

__all__ = ["Frame", "Search", "smallest_radius"]

# An iterate this many median distances off the center asks for a new frame: the error
# of squared distances there, eps 4^2, is in float32 the default bound on the residual.
_FAR = 4.0
_MAX_FRAMES = 16
_SEEN = 1e-2  # of the median distance: rounding that hides the place of a point
_POINT = 1e-2  # of the median distance: a radius below makes a ball about a row a point


@struct.pytree_dataclass
class _Iterate:
    """An iterate in weight space, and its properties by the Gram matrix."""

    pi: jax.Array  # [K] weights
    direction: jax.Array  # [K] a, with g = sum_k a_k (x_k - o)
    distance: jax.Array  # [K] of the rows from the iterate
    total: jax.Array  # [] sum of p_k eta_k
    residual: jax.Array  # [] norm of g, at least its rounding error
    objective: jax.Array  # [] G
    far: jax.Array  # bool[] whether the center of the Gram matrix is too far away
    iterations: jax.Array  # int32[] steps taken


@struct.pytree_dataclass
class Frame:
    """A finished frame: its last iterate, in units of the rows."""

    center: jax.Array  # [D] the iterate
    pi: jax.Array  # [K] its weights
    outside: jax.Array  # bool[K] rows further than rho
    residual: jax.Array  # [] norm of g
    radius: jax.Array  # [] rho
    eigenvalue: jax.Array | None  # [] the smallest of the Hessian at the iterate
    far: jax.Array  # bool[] whether a frame about the iterate should follow
    iterations: jax.Array  # int32[] steps taken
    number: jax.Array  # int32[] frames so far
    # int32[] the row of the center if it is the minimizer, or the lower end of a flat
    # minimum; or -1.
    row: jax.Array


def smallest_radius(dtype: DTypeLike) -> jax.Array:
    """Returns the least radius; its square is exact."""
    return 1e3 * jnp.sqrt(jnp.finfo(dtype).tiny)


def _evaluate(
    gram: jax.Array, p: jax.Array, rho: jax.Array, pi: jax.Array, iterations: jax.Array
) -> _Iterate:
    """Computes distances, direction and residual at the weights `pi`."""
    distance, shift = _distances(gram, pi)
    pull = p / jnp.maximum(distance, rho)
    total = pull.sum()
    direction = pull - pi * total
    square = dot(direction, dot(gram, direction))
    hidden = _rounding(gram, direction)
    huber = jnp.where(
        distance <= rho, distance * (distance / (2 * rho)), distance - rho / 2
    )
    return _Iterate(
        pi=pi,
        direction=direction,
        distance=distance,
        total=total,
        residual=jnp.sqrt(jnp.maximum(square, hidden)),
        objective=dot(p, huber),
        far=jnp.sqrt(jnp.maximum(shift, 0)) > _FAR * scaled_rows.median(distance, p),
        iterations=iterations,
    )


def _rounding(gram: jax.Array, weights: jax.Array) -> jax.Array:
    """Returns what rounding may add to the square of a sum of rows by weights."""
    length = jnp.sqrt(jnp.diag(gram))
    return jnp.finfo(gram.dtype).eps * jnp.square(dot(jnp.abs(weights), length))


def _distances(gram: jax.Array, pi: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Returns distances `[K]` of the rows from a point, and its own, squared."""
    mixed = dot(gram, pi)
    shift = dot(pi, mixed)
    return jnp.sqrt(jnp.maximum(jnp.diag(gram) - 2 * mixed + shift, 0)), shift


def _withstands(
    gram: jax.Array,
    p: jax.Array,
    row: jax.Array,
    distance: jax.Array,
    radius: jax.Array,
    tolerance: jax.Array,
) -> jax.Array:
    """Returns whether a row's mass withstands the pull of the rows beyond a radius."""
    is_near = distance <= radius
    pull = jnp.where(is_near, 0, p / jnp.where(is_near, 1, distance))
    direction = pull.at[row].add(-pull.sum())
    square = dot(direction, dot(gram, direction))
    mass = jnp.where(is_near, p, 0).sum()
    # It is then a minimizer but for the radius. Equality holds at both ends of a flat
    # minimum, so that rounding must not decide.
    return square <= jnp.square(mass + tolerance) + _rounding(gram, direction)


def _medoids(gram: jax.Array, p: jax.Array, tolerance: jax.Array) -> jax.Array:
    """Returns the row nearest to the others, twice, or the ends of a flat minimum."""
    square = jnp.diag(gram)
    size = square[:, None] + square[None]
    apart = jnp.maximum(size - 2 * gram, 0)
    pairs, hidden = jnp.sqrt(apart), jnp.finfo(gram.dtype).eps * size
    tiny = jnp.finfo(gram.dtype).tiny
    error = hidden / jnp.sqrt(jnp.maximum(jnp.maximum(apart, hidden), tiny))
    total, error = dot(pairs, p), dot(error, p)
    total = jnp.where(p > 0, total, jnp.inf)
    medoid = jnp.argmin(total)
    # Sums of distances are the same at both ends. Between them there is no row, and
    # half of the mass lies on either side, all of it on one line.
    alike = total - error <= (1 + tolerance) * total[medoid] + error[medoid]
    away = jnp.where(alike, pairs[medoid], 0)  # rows about the medoid are alike, too
    partner = jnp.argmin(jnp.where(alike & (away >= away.max() / 2), total, jnp.inf))
    ends = jnp.stack([medoid, partner]).astype(jnp.int32)
    flat = jax.vmap(
        lambda row: _withstands(
            gram, p, row, pairs[row], jnp.sqrt(hidden[row]), tolerance
        )
    )(ends)
    return jnp.where(flat.all(), ends, ends[0])


def _nearest_to_mean(
    gram: jax.Array, p: jax.Array, ends: jax.Array, margin: ArrayLike = 0
) -> jax.Array:
    """Weights `[K]` of the point nearest to the mean between two rows `int32[2]`."""
    start, end = jax.nn.one_hot(ends, len(p), dtype=p.dtype)
    along = end - start
    image = dot(gram, along)
    square = dot(along, image)
    some = square > 0
    share = dot(p - start, image) / jnp.where(some, square, 1)
    # At least a margin away from both, or in the middle.
    least = margin / jnp.sqrt(jnp.where(some, square, 1))
    least = jnp.minimum(least, 0.5)
    return start + jnp.clip(share, least, 1 - least) * along


def _near_medoid(distance: jax.Array, p: jax.Array) -> jax.Array:
    """Weights `[K]` of one step from the medoid, smoothed by its median distance."""
    smallest = jnp.sqrt(jnp.finfo(p.dtype).tiny)
    pull = p / jnp.maximum(
        distance, jnp.maximum(scaled_rows.median(distance, p), smallest)
    )
    total = pull.sum()
    return pull / jnp.where(total > 0, total, 1)


def _smallest_eigenvalue(
    gram: jax.Array, p: jax.Array, rho: jax.Array, at: _Iterate
) -> jax.Array:
    """Returns the Hessian's least eigenvalue, `a - max eig(S U U^T S)`, S = sqrt(D)."""
    mixed = dot(gram, at.pi)
    products = gram - mixed[:, None] - mixed[None] + dot(at.pi, mixed)
    outside = at.distance > rho
    length = jnp.maximum(at.distance, rho)
    root = jnp.where(outside, jnp.sqrt(p / length), 0) / length
    scaled = root[:, None] * products * root[None]
    return at.total - factorizations.eigvalsh(scaled)[-1]


@struct.pytree_dataclass
class Search:
    """Search settings and starting point."""

    rho: Any  # [] radius in units of the messages, or None
    rho_quantile: Any  # [] its quantile of the distances, or None
    tolerance: Any  # [] bound on the residual
    method: str = struct.static_field()  # `weiszfeld` or `prox`
    acceleration: int = struct.static_field()  # steps behind an extrapolation
    curvature: bool = struct.static_field()  # whether to find the least eigenvalue
    max_iterations: int = struct.static_field()

    def __call__(
        self, size: scaled_rows.ScaledRows, p: jax.Array, reference: jax.Array | None
    ) -> Frame:
        """Searches in one frame after another until one is about the result."""
        count, zero = jnp.zeros((), jnp.int32), jnp.zeros((), p.dtype)
        start, pi = self._start(size, p, reference)
        begin = Frame(
            center=start,
            pi=pi,
            outside=jnp.zeros(p.shape, bool),
            residual=zero,
            radius=zero,
            eigenvalue=zero if self.curvature else None,
            far=jnp.ones((), bool),
            iterations=count,
            number=count,
            row=count - 1,
        )

        def again(frame: Frame) -> jax.Array:
            room = frame.iterations < self.max_iterations
            return frame.far & room & (frame.number < _MAX_FRAMES)

        def about(frame: Frame) -> Frame:
            # Weights without a sum of 1 mean another point about another center.
            at_center = reference is not None
            pi = jnp.zeros_like(frame.pi) if at_center else frame.pi
            frame = dataclasses.replace(frame, pi=pi)
            return self._in_frame(size, p, frame, is_told=at_center)

        return lax.while_loop(again, about, begin)

    @property
    def _slack(self) -> jax.Array:
        """Returns the tolerance, or 0 for a negative one, which no residual meets."""
        return jnp.maximum(self.tolerance, 0)

    def _start(
        self, size: scaled_rows.ScaledRows, p: jax.Array, reference: jax.Array | None
    ) -> tuple[jax.Array, jax.Array]:
        """Returns the first center `[D]` and weights `[K]`, without a reference p."""
        # A row of usual length is near the result if outliers have moved the mean away.
        # It replaces a reference that is not finite, or so far away that the rows would
        # be one point in its frame.
        row = size.row(size.typical(p))
        if reference is None:
            return row, p
        start = reference / size.scale
        far = scaled_rows.median(size.norm, p) / scaled_rows.precision(p.dtype)
        near = jnp.isfinite(start).all() & (jnp.abs(start).max() <= far)
        usable = columns.every(near)
        return jnp.where(usable, start, row), jnp.zeros_like(p)

    def _radius(self, distance: jax.Array, p: jax.Array, scale: jax.Array) -> jax.Array:
        """Returns the radius for rows at `distance [K]` from the start; positive."""
        if self.rho is not None:
            rho = jnp.asarray(self.rho, distance.dtype) / scale
        elif self.rho_quantile is not None:
            rho = scaled_rows.quantile(distance, p, self.rho_quantile)
        else:
            rho = 1e-6 * scaled_rows.median(distance, p)
        return jnp.maximum(rho, smallest_radius(distance.dtype))

    def _is_minimizer(self, gram: jax.Array, at: _Iterate) -> jax.Array:
        """Returns whether an iterate has a small residual but for its rounding."""
        least = jnp.square(self._slack) + _rounding(gram, at.direction)
        return jnp.square(at.residual) <= least

    def _in_frame(
        self, size: scaled_rows.ScaledRows, p: jax.Array, frame: Frame, *, is_told: bool
    ) -> Frame:
        """Searches with the Gram matrix about the frame's center."""
        # The first search starts at the given point, or at the mean unless that is far
        # from the medoid; later ones at the end of the last one. A point near the
        # medoid replaces a start that is further away from the rows. The radius is of
        # distances from the start.
        gram = size.gram(frame.center)
        ends = _medoids(gram, p, self._slack)
        middle = _nearest_to_mean(gram, p, ends)
        near, is_later = _near_medoid(_distances(gram, middle)[0], p), frame.number > 0
        distance, _ = _distances(gram, frame.pi)
        near_distance, _ = _distances(gram, near)
        is_moved = is_later & (
            dot(p, near_distance) < (1 - self._slack) * dot(p, distance)
        )
        usual, gap = scaled_rows.median(near_distance, p), frame.pi - near
        is_lost = _rounding(gram, frame.pi) > jnp.square(_SEEN * usual)
        if not is_told:
            square = dot(gap, dot(gram, gap))
            is_moved |= is_lost | (square > jnp.square(_FAR * usual))
        rho = self._radius(distance, p, size.scale)
        last = _evaluate(gram, p, rho, frame.pi, frame.iterations)
        is_moved &= is_lost | ~self._is_minimizer(gram, last)
        rho = self._radius(jnp.where(is_moved, near_distance, distance), p, size.scale)
        at = functools.partial(_evaluate, gram, p, rho)
        # The frame is about this iterate: not far, so that there is a step.
        start = at(jnp.where(is_moved, near, frame.pi), frame.iterations)
        start = dataclasses.replace(start, far=jnp.zeros((), bool))
        # Steps would take forever to a row, and lose it in rounding unless the frame is
        # about it; and of a flat minimum they would reach any point.
        row, is_flat = ends.min(), ends[0] != ends[1]
        medoid = at(_nearest_to_mean(gram, p, ends, rho), frame.iterations)
        is_point = rho < _POINT * scaled_rows.median(medoid.distance, p)
        held = is_point & _withstands(gram, p, row, medoid.distance, rho, self._slack)
        held = jnp.where(is_flat, is_point | self._is_minimizer(gram, medoid), held)
        medoid = dataclasses.replace(medoid, far=held & (frame.row != row))
        start = jax.tree.map(lambda a, b: jnp.where(held, b, a), start, medoid)
        end = self._steps(gram, rho, at, start)
        return Frame(
            center=frame.center + size.combine(end.pi, frame.center),
            pi=end.pi,
            outside=(p > 0) & (end.distance > rho),
            residual=end.residual,
            radius=rho,
            eigenvalue=_smallest_eigenvalue(gram, p, rho, end)
            if self.curvature
            else None,
            far=end.far,
            iterations=end.iterations,
            number=frame.number + 1,
            row=jnp.where(held, row, -1),
        )

    def _steps(
        self,
        gram: jax.Array,
        rho: jax.Array,
        at: Callable[..., _Iterate],
        start: _Iterate,
    ) -> _Iterate:
        """Steps from `start` until the residual is small or the frame too far off."""

        def unfinished(state: tuple[_Iterate, Any]) -> jax.Array:
            now, _ = state
            room = now.iterations < self.max_iterations
            return (now.residual > self.tolerance) & room & ~now.far

        def change(now: _Iterate) -> jax.Array:
            length = rho if self.method == "prox" else 1 / now.total
            return length * now.direction

        def step(state: tuple[_Iterate, Any]) -> tuple[_Iterate, Any]:
            now, memory = state
            move = change(now)
            if memory is None:
                return at(now.pi + move, now.iterations + 1), None
            memory = memory.after(now.pi, move)
            guess = at(memory.extrapolated(gram, now.pi, move), now.iterations + 1)

            def plain() -> _Iterate:
                return at(now.pi + move, now.iterations + 1)

            # An extrapolated point may be worse than where it started from.
            better = anderson.accepted(
                guess.objective, now.objective, guess.residual < now.residual
            )
            return lax.cond(better, lambda: guess, plain), memory

        memory = None
        if self.acceleration:
            memory = anderson.Memory.empty(start.pi, self.acceleration)
        return lax.while_loop(unfinished, step, (start, memory))[0]

"""A primal-dual interior point that stops by its certificate.

Mehrotra's predictor and corrector without a line search, for

    min 1/2 x^T A x + c^T x   over 0 <= x <= u, with sum(x) = 1 or without it.

With multipliers z of x >= 0, w of x <= u and nu of the sum, a step takes Newton's
direction for

    A x + c - z + w - nu 1 = 0,   sum(x) = 1,   x z = t,   (u - x) w = t,

with the one matrix A + diag(z / x + w / (u - x)), and a ridge against the rounding of
A: first with t = 0, then, by the same factor, with a t that this guess shows to be in
reach. The start has sum(x) = 1, which steps keep, so that every iterate can be
returned; the one of the best certificate is.

The certificate (`Problem.rated`) has a goal of the size of rounding. Once it is met,
iterations go on until two in a row do not halve it, since near the end each squares
the error. Short of it they go on, to a hundred at most: on the way to large weights the
certificate may rise for long. Under `vmap` all go on until the last is done.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import optax
from jax import lax

from fedjax_pfl.core import checks, factorizations, struct
from fedjax_pfl.core.client_rows import dot

__all__ = ["Problem", "or_one", "problem_of", "solve"]

_START = 0.1  # of multipliers
_FRACTION = 0.995  # of the way to the bounds
_MAX_ITERATIONS = 100
_PATIENCE = 2  # iterations in a row that may fail to halve a certificate at its goal
_ROUNDING = 4.0  # eps of a term that rounding may hide of a certificate


def or_one(number: jax.Array) -> jax.Array:
    """Returns a positive number, or 1."""
    return jnp.where(number > 0, number, 1)


@struct.pytree_dataclass
class Problem:
    """Minimize 1/2 x^T A x + c^T x over 0 <= x <= u, for `simplex` with sum(x) = 1."""

    gram: jax.Array  # [J, J] A, of values about 1; 0 where masked, as all others
    linear: jax.Array  # [J] c
    upper: jax.Array  # [J] u > 0
    mask: jax.Array  # bool[J] rows that exist
    capped: jax.Array  # bool[J] rows with upper bounds that count
    # [] without a sum, the b at which 1/2 x^T A x + c^T x + b / 2 is at least 0; its
    # optimum is half the squared length of the residual vector.
    square: jax.Array
    simplex: bool = struct.static_field()

    @property
    def pairs(self) -> jax.Array:
        """Number of complementary pairs, or 1."""
        dtype = self.gram.dtype
        return or_one(self.mask.sum(dtype=dtype) + self.capped.sum(dtype=dtype))

    def slope(self, x: jax.Array) -> jax.Array:
        """Returns the gradient `[J]`."""
        return dot(self.gram, x) + self.linear

    def room(self, x: jax.Array) -> jax.Array:
        """Returns distances `[J]` to the upper bounds, 1 without a bound."""
        least = jnp.finfo(x.dtype).eps * self.upper
        return jnp.where(self.capped, jnp.maximum(self.upper - x, least), 1)

    def least(self, slope: jax.Array) -> jax.Array:
        """Returns the least `slope @ y` over the y that are allowed on the simplex."""
        slope = jnp.where(self.mask, slope, jnp.inf)
        order = jnp.argsort(slope)
        upper = jnp.where(self.capped, self.upper, 1)[order]
        y = jnp.clip(1 - (jnp.cumsum(upper) - upper), 0, upper)
        return jnp.where(y > 0, y * slope[order], 0).sum()

    def left(self, x: jax.Array) -> jax.Array:
        """Returns the squared length `[]` of the residual vector at x."""
        return jnp.maximum(self.square + dot(x, self.slope(x) + self.linear), 0)

    def hidden(self, x: jax.Array) -> jax.Array:
        """Returns how much `[]` rounding of A and of A x hides of a certificate."""
        # Without a sum: errors are independent, so that a slope has one of about eps
        # times the norm of its terms. It counts for every weight, and as a slope below
        # 0 along the residual vector.
        error = 3 * jnp.finfo(x.dtype).eps * (1 + jnp.sqrt(dot(x, x)))
        reach = jnp.maximum(x.sum(), jnp.sqrt(self.left(x)))
        return jnp.where(self.mask.any(), error * reach, 0)

    def rated(self, x: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Returns weights of an iterate, a certificate and its goal."""
        rounding = _ROUNDING * jnp.finfo(x.dtype).eps
        # On the simplex the duality gap. Without a sum the larger of x^T |A x + c|, the
        # duality gap if no slope is negative, and the most negative slope times the
        # length of the residual vector.
        if self.simplex:
            x = x / or_one(x.sum())
            slope = self.slope(x)
            gap = jnp.maximum(dot(x, slope) - self.least(slope), 0)
            return x, gap, jnp.full_like(gap, rounding)
        slope, total, length = self.slope(x), x.sum(), jnp.sqrt(self.left(x))
        gap = jnp.maximum(dot(x, jnp.abs(slope)), length * jnp.maximum(-slope.min(), 0))
        terms = 4 * (1 + total)  # of a slope; on the simplex their errors cancel more
        return x, gap, rounding * terms * jnp.maximum(total, length)


def problem_of(
    gram: jax.Array,
    linear: jax.Array,
    upper: jax.Array | None,
    mask: jax.Array,
    *,
    square: jax.Array | None = None,
) -> Problem:
    """Returns a problem with 0 where masked; one with a square has no sum."""
    # With a square, rows of `gram` have length 1, and `linear` is at most 1.
    return Problem(
        gram=jnp.where(mask[:, None] & mask[None], gram, 0),
        linear=jnp.where(mask, linear, 0),
        upper=jnp.where(mask, jnp.ones_like(linear) if upper is None else upper, 0),
        mask=mask,
        capped=jnp.zeros_like(mask) if upper is None else mask,
        square=jnp.zeros_like(linear[0]) if square is None else square,
        simplex=square is None,
    )


@struct.pytree_dataclass
class _Iterate:
    """Weights x `[J]`, multipliers z of x >= 0, w of x <= u and nu `[]` of the sum."""

    x: jax.Array
    z: jax.Array
    w: jax.Array
    nu: jax.Array


@struct.pytree_dataclass
class _Search:
    """The last iterate, the best weights `[J]` so far, and how good these are."""

    iterate: _Iterate
    best: jax.Array
    gap: jax.Array
    goal: jax.Array
    idle: jax.Array  # iterations since the gap was last halved
    count: jax.Array


def solve(
    problem: Problem, max_iterations: int | None = None
) -> tuple[jax.Array, jax.Array]:
    """Returns the weights `[J]` of the best certificate, and that `[]`."""
    if max_iterations is None:
        max_iterations = _MAX_ITERATIONS
    checks.positive_int("max_iterations", max_iterations)

    def unfinished(now: _Search) -> jax.Array:
        # Near the end each iteration squares the error: those that still halve it go
        # on.
        done = (now.gap <= now.goal) & (now.idle >= _PATIENCE)
        return (now.count < max_iterations) & ~done

    def body(now: _Search) -> _Search:
        iterate = _advanced(problem, now.iterate)
        x, gap, goal = problem.rated(iterate.x)
        better = gap < now.gap
        return _Search(
            iterate=iterate,
            best=jnp.where(better, x, now.best),
            gap=jnp.where(better, gap, now.gap),
            goal=jnp.where(better, goal, now.goal),
            idle=jnp.where(gap < now.gap / 2, 0, now.idle + 1),
            count=now.count + 1,
        )

    start = _start(problem)
    best, gap, goal = problem.rated(start.x)
    zero = jnp.zeros((), jnp.int32)
    search = _Search(
        iterate=start, best=best, gap=gap, goal=goal, idle=zero, count=zero
    )
    end = lax.while_loop(unfinished, body, search)
    return end.best, end.gap


def _start(problem: Problem) -> _Iterate:
    """Weights of sum 1, a part of their bounds, and multipliers away from 0."""
    mask, capped = problem.mask, problem.capped
    x = problem.upper / or_one(problem.upper.sum())
    slope = problem.slope(x)
    if problem.simplex:
        slope = slope - jnp.where(mask, slope, jnp.inf).min()
    z = jnp.where(mask, jnp.maximum(slope, 0) + _START, 0)
    w = jnp.where(capped, jnp.full_like(x, _START), 0)
    return _Iterate(x=x, z=z, w=w, nu=jnp.zeros_like(x[0]))


def _advanced(problem: Problem, last: _Iterate) -> _Iterate:
    """Predicts and corrects; keeps the last iterate if a number is not finite."""
    room = problem.room(last.x)
    at_zero, at_upper = last.x * last.z, room * last.w
    mean = (at_zero.sum() + at_upper.sum()) / problem.pairs
    newton = _newton(problem, last, room)
    # Predictor: Newton direction for t = 0.
    guess = newton(at_zero, at_upper)
    primal, dual = _lengths(problem, last, room, guess)
    ahead = dot(last.x + primal * guess.x, last.z + dual * guess.z)
    ahead += dot(room - primal * guess.x, last.w + dual * guess.w)
    # Corrector, by the same factor: the t that the guess shows to be in reach.
    center = mean * (ahead / problem.pairs / mean) ** 3
    change = newton(
        at_zero + guess.x * guess.z - center,
        jnp.where(problem.capped, at_upper - guess.x * guess.w - center, 0),
    )
    lengths = _lengths(problem, last, room, change)
    length = jnp.minimum(1, _FRACTION * jnp.minimum(*lengths))
    iterate = jax.tree.map(lambda a, b: a + length * b, last, change)
    least = 1e-150 if iterate.x.dtype == jnp.float64 else 1e-25
    iterate = _Iterate(
        x=jnp.where(problem.mask, jnp.maximum(iterate.x, least), 0),
        z=jnp.where(problem.mask, jnp.maximum(iterate.z, least), 0),
        w=jnp.where(problem.capped, jnp.maximum(iterate.w, least), 0),
        nu=iterate.nu,
    )
    finite = jnp.isfinite(iterate.x + iterate.z + iterate.w + iterate.nu).all()
    return optax.tree.where(finite, iterate, last)


def _newton(
    problem: Problem, last: _Iterate, room: jax.Array
) -> Callable[[jax.Array, jax.Array], _Iterate]:
    """Returns a function from decreases of x z and (u - x) w to a change of iterate."""
    mask, gram = problem.mask, problem.gram
    x = jnp.where(mask, last.x, 1)
    ridge = jnp.finfo(x.dtype).eps * jnp.diagonal(gram).max()
    diagonal = jnp.where(mask, last.z / x + last.w / room, 1) + ridge
    factor = factorizations.cholesky(gram + jnp.diag(diagonal))
    dual = problem.slope(last.x) - last.z + last.w - last.nu

    def solved(right: jax.Array) -> jax.Array:
        return factorizations.cholesky_solve(factor, jnp.where(mask, right, 0))

    along = solved(jnp.ones_like(x)) if problem.simplex else None

    def change(at_zero: jax.Array, at_upper: jax.Array) -> _Iterate:
        dx, dnu = solved(at_upper / room - at_zero / x - dual), jnp.zeros_like(last.nu)
        if along is not None:
            dnu = (1 - last.x.sum() - dx.sum()) / along.sum()
            dx = dx + dnu * along
        return _Iterate(
            x=dx,
            z=jnp.where(mask, (-at_zero - last.z * dx) / x, 0),
            w=jnp.where(problem.capped, (-at_upper + last.w * dx) / room, 0),
            nu=dnu,
        )

    return change


def _lengths(
    problem: Problem, last: _Iterate, room: jax.Array, change: _Iterate
) -> tuple[jax.Array, jax.Array]:
    """Returns the longest steps of weights and multipliers within the bounds."""

    def longest(values: jax.Array, change: jax.Array, mask: jax.Array) -> jax.Array:
        falls = mask & (change < 0)
        return jnp.where(falls, -values / jnp.where(falls, change, 1), 1).min()

    mask, capped = problem.mask, problem.capped
    primal = longest(last.x, change.x, mask), longest(room, -change.x, capped)
    dual = longest(last.z, change.z, mask), longest(last.w, change.w, capped)
    return jnp.minimum(1, jnp.minimum(*primal)), jnp.minimum(1, jnp.minimum(*dual))

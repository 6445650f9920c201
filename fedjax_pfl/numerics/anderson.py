"""Anderson acceleration of a fixed-point iteration in the space of weights.

Of the map `pi -> pi + f(pi)` the last m points and moves f are kept. The extrapolation

    pi + f - sum_j gamma_j (dpi_j + df_j),    gamma = argmin |f - sum_j gamma_j df_j|

goes to the point at which moves that are affine in it would vanish; dpi_j and df_j are
differences of successive points and moves, and the norm is that of the models the
weights stand for, `|f|^2 = f^T G f` with their Gram matrix G. The normal equations of
the m columns, scaled to unit length, get a small multiple of the identity.

    symbol       here            shape
    pi, f        point, move     [K]
    dpi, df      points, moves   [m, K]   zeros after fewer steps

Limit: without memory the extrapolation is the plain step.

Reference: Walker, Ni, "Anderson acceleration for fixed-point iterations".
"""

import jax
import jax.numpy as jnp
from jax import lax

from fedjax_pfl.core import factorizations, struct
from fedjax_pfl.core.client_rows import dot

__all__ = ["Memory", "accepted"]


def accepted(guess: jax.Array, now: jax.Array, smaller: jax.Array) -> jax.Array:
    """Returns whether to take an extrapolated point; False for a non-finite guess."""
    rounding = 4 * jnp.finfo(now.dtype).eps * now
    # The residual decides if rounding hides which objective is smaller.
    return (guess <= now - rounding) | ((guess <= now + rounding) & smaller)


@struct.pytree_dataclass
class Memory:
    """Differences of the last m points and moves, the newest first."""

    point: jax.Array  # [K] the last point
    move: jax.Array  # [K] the move there
    points: jax.Array  # [m, K] differences of points
    moves: jax.Array  # [m, K] differences of moves
    filled: jax.Array  # bool[] whether there is a last point

    @classmethod
    def empty(cls, like: jax.Array, size: int) -> "Memory":
        """Returns a memory of `size` differences of points like `[K]`."""
        none = jnp.zeros((size, *like.shape), like.dtype)
        return cls(
            point=like,
            move=jnp.zeros_like(like),
            points=none,
            moves=none,
            filled=jnp.zeros((), bool),
        )

    def after(self, point: jax.Array, move: jax.Array) -> "Memory":
        """Returns the memory with one more point `[K]` and the move `[K]` there."""

        def push(rows: jax.Array, row: jax.Array) -> jax.Array:
            row = jnp.where(self.filled, row, 0)[None]
            return jnp.concatenate([row, rows[:-1]])

        return Memory(
            point=point,
            move=move,
            points=push(self.points, point - self.point),
            moves=push(self.moves, move - self.move),
            filled=jnp.ones((), bool),
        )

    def extrapolated(
        self, gram: jax.Array, point: jax.Array, move: jax.Array
    ) -> jax.Array:
        """Extrapolates to a point `[K]` from the newest point and move `[K]`."""
        images = dot(self.moves, gram)
        normal = dot(images, self.moves.T)
        square = jnp.diag(normal)
        unit = jnp.where(square > 0, lax.rsqrt(jnp.where(square > 0, square, 1)), 0)
        normal = unit[:, None] * normal * unit[None]
        # Normal equations, scaled to unit length; empty columns get a one.
        ridge = jnp.where(square > 0, 16 * jnp.finfo(gram.dtype).eps, 1)
        right = unit * dot(images, move)
        gamma = unit * factorizations.solve(normal + jnp.diag(ridge), right)
        return point + move - dot(gamma, self.points + self.moves)

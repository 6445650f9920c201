"""The direction of common descent (Fliege and Svaiter 2000), rescaled and guarded."""

import jax
import jax.numpy as jnp
import optax

from fedjax_pfl import core
from fedjax_pfl.algorithms.common_descent.rows import Rows
from fedjax_pfl.core import struct
from fedjax_pfl.numerics import quadratic_programs

__all__ = ["Direction", "common_descent", "threshold"]


@struct.pytree_dataclass
class Direction:
    """A direction of common descent, with its certificates.

    Attributes:
      vector: `[*P]` the rescaled direction ds, along which a positive step descends;
        zeros at a stationary point.
      norm: `[]` norm of the direction d before it was rescaled.
      sigma: `[]` factor of the rescaling, at least 1; 1 at a stationary point.
      mean_norm: `[]` norm of the plain average direction.
      weights: `[L, J]` solution of the quadratic program, per layer.
      products: `[J]` inner products `q_j . ds` of the scaled rows.
      gap: `[]` certificate of the program: `q_j . d <= -norm^2 + gap` for every row.
      worst: `[]` largest cosine between a row and ds: negative if all descend.
      guarded: `bool[]` whether the fairness row was left out by the guard.
      stationary: `bool[]` whether no direction of common descent was found.
    """

    vector: core.Params
    norm: jax.Array
    sigma: jax.Array
    mean_norm: jax.Array
    weights: jax.Array
    products: jax.Array
    gap: jax.Array
    worst: jax.Array
    guarded: jax.Array
    stationary: jax.Array


def threshold(dtype: jnp.dtype) -> float:
    """Returns the norm of d, in units of mu, below which the Gram matrix is noise."""
    return 1e-7 if dtype == jnp.float64 else 1e-3


def common_descent(rows: Rows, *, guard: core.Scalar = 0.01) -> Direction:
    """Finds the shortest convex combination of the rows, and rescales its negative.

    `d = -sum_j lam_j q_j` with lam minimizing the norm over the simplex, so that
    `q_j . d <= -||d||^2` for every row (Lemma 1), in every layer if there are
    several. It is then brought to the norm of the plain average of the members' rows:
    `ds = sigma d`, `sigma >= 1` since that average is in the hull.

    Args:
      rows: the rows; without any the result is stationary.
      guard: `[]` in [0, 1): where d is shorter than this share of the direction without
        the fairness row, that one is taken. With the row the method can stop where
        every client could still improve, which 0 allows.

    Returns:
      The direction. It is stationary where `||d||` is below 1e-3 mu (float32) or 1e-7
      mu (float64), which is as much as the Gram matrix tells.
    """
    # With the fairness row, and without it for the guard, in one batch of programs.
    over_layers = jax.vmap(quadratic_programs.minimum_norm, in_axes=(0, None))
    solutions = jax.vmap(over_layers, in_axes=(None, 0))(
        rows.gram, jnp.stack([rows.mask, rows.gradients])
    )
    squared = jnp.maximum(solutions.value, 0).sum(axis=1)
    # With the fairness row d can vanish where every client could still improve.
    guarded = jnp.sqrt(squared[0]) < guard * jnp.sqrt(squared[1])
    weights = jnp.where(guarded, solutions.x[1], solutions.x[0])
    gap = jnp.where(guarded, solutions.gap[1], solutions.gap[0]).sum()

    # d and the average of the member rows, in one pass over the vectors.
    members = rows.members
    share = members / jnp.maximum(members.sum(), 1).astype(rows.mu.dtype)
    average = jnp.broadcast_to(share, weights.shape)
    pair = rows.combine(-jnp.stack([weights, average]))
    d, mean = (jax.tree.map(lambda leaf, row=row: leaf[row], pair) for row in (0, 1))
    norm, mean_norm = optax.tree.norm(d), optax.tree.norm(mean)
    # Negated, so that a norm of NaN counts as stationary.
    stationary = ~(norm > threshold(rows.mu.dtype) * rows.mu)
    # The average lies in the hull, so that sigma >= 1 but for rounding.
    sigma = jnp.where(stationary, 1, jnp.maximum(mean_norm / norm, 1))
    vector = jax.tree.map(lambda x: jnp.where(stationary, 0, sigma * x), d)
    products = rows.products(vector)
    lengths = jnp.sqrt(jnp.diagonal(rows.whole)) * sigma * norm
    cosines = products / jnp.where(lengths > 0, lengths, 1)
    return Direction(
        vector=vector,
        norm=norm,
        sigma=sigma,
        mean_norm=mean_norm,
        weights=weights,
        products=products,
        gap=gap,
        worst=jnp.where(rows.mask, cosines, -jnp.inf).max(),
        guarded=guarded,
        stationary=stationary,
    )

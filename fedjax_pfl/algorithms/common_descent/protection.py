"""Personal steps that do not raise the losses of others, to first order."""

from typing import Any, Literal, get_args

import jax
import jax.numpy as jnp

from fedjax_pfl import core
from fedjax_pfl.algorithms.common_descent import direction
from fedjax_pfl.algorithms.common_descent.rows import Rows
from fedjax_pfl.core import checks, client_rows, factorizations
from fedjax_pfl.numerics import quadratic_programs

__all__ = ["Length", "Protection", "protected_coefficients", "protected_moves"]

Protection = Literal["cone", "orthogonal"]
Length = Literal["own", "mean", "raw"]

_LONGEST = 10.0  # times the scaled row
_NULL = 1e-6  # eigenvalues below this share of the largest are noise


def _in_cone(gram: jax.Array, member: jax.Array, mask: jax.Array) -> jax.Array:
    """Finds `nu >= 0` with `-(gt_i + sum nu_j q_j)` nearest to `-gt_i` in the cone."""
    return quadratic_programs.cone(gram, gram[member], gram[member, member], mask).x


def _orthogonal(gram: jax.Array, member: jax.Array, mask: jax.Array) -> jax.Array:
    """Projects on the complement of the span of the others' rows; any sign."""
    block = jnp.where(mask[:, None] & mask[None, :], gram, 0)
    values, vectors = factorizations.eigh(block)
    in_span = values > _NULL * values[-1]
    target = jnp.where(mask, gram[member], 0)
    along = client_rows.dot(target, vectors)
    inverse = jnp.where(in_span, along / jnp.where(in_span, values, 1), 0)
    return -client_rows.dot(vectors, inverse)


def protected_coefficients(
    rows: Rows, *, protection: Protection = "cone"
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Finds `p_i = -sum_j a_ij q_j`: `a [K, J]`, norms and refusals `[K]`."""
    checks.known(protection, get_args(Protection), "protection")
    # `cone`: nearest to -gt_i with q_j . p <= 0 for all rows j but i itself and
    # fairness; `orthogonal`: with q_j . p = 0.
    gram, size = rows.whole, rows.mask.shape[0]
    gradient_rows = rows.gradients
    find = _in_cone if protection == "cone" else _orthogonal

    def protect(member: jax.Array) -> jax.Array:
        row = find(gram, member, gradient_rows & (jnp.arange(size) != member))
        # Solvers keep masked entries at 0; a client without a row has none to protect.
        return jnp.where(rows.mask[member], row.at[member].set(1), 0)

    coefficients = jax.vmap(protect)(jnp.arange(rows.num_members))
    norms = combined_norms(gram, coefficients)
    # Shorter ones are noise of the Gram matrix. Longer ones that raise a loss of
    # others, as that matrix has it, are refused: their client gets no direction.
    long = norms > direction.threshold(norms.dtype) * rows.mu
    tolerance = 1e-6 if norms.dtype == jnp.float64 else 1e-3
    refused = long & ~(_conflicts(rows, coefficients) <= tolerance)
    mask = long & ~refused
    return jnp.where(mask[:, None], coefficients, 0), jnp.where(mask, norms, 0), refused


def combined_norms(gram: jax.Array, coefficients: jax.Array) -> jax.Array:
    """Returns the norms `[K]` of combinations `[K, J]` of rows."""
    along = client_rows.dot(coefficients, gram)
    return jnp.sqrt(jnp.maximum((along * coefficients).sum(axis=1), 0))


def _conflicts(rows: Rows, coefficients: jax.Array) -> jax.Array:
    """Returns the largest cosine `[K]` of `-sum_j a_ij q_j` with a row j != i."""
    gram, (count, size) = rows.whole, coefficients.shape
    products = -client_rows.dot(coefficients, gram)
    pairs = rows.gradients[None, :] & ~jnp.eye(count, size, dtype=bool)
    lengths = jnp.sqrt(jnp.maximum(jnp.diagonal(gram), 0))
    # A sum of 0 has cosine 0; without another row the result is -inf.
    sizes = combined_norms(gram, coefficients)
    scale = lengths[None, :] * jnp.where(sizes > 0, sizes, 1)[:, None]
    cosines = products / jnp.where(pairs, scale, 1)
    return jnp.where(pairs, cosines, -jnp.inf).max(axis=1)


def protected_moves(
    rows: Rows,
    *,
    gamma: core.Scalar = 0.0,
    protection: Protection = "cone",
    length: Length = "own",
    mean_norm: Any = None,
) -> tuple[Any, dict[str, jax.Array]]:
    """Mixes the protected with the plain descent of every member.

    `u_i = (1 - gamma) p_i - gamma gt_i`, brought to a length. The worst conflict with
    another row is linear in gamma: `q_j . u_i <= gamma max(0, -q_j . gt_i)`.

    Args:
      rows: the rows.
      gamma: `[]` in [0, 1], how much of the protection is given up; at 1 with `own` the
        move is exactly the client's own negative gradient.
      protection: see `protected_coefficients`.
      length: `own` (the norm of the client's gradient), `mean` (that of the average
        direction) or `raw` (what u_i has, in units of the gradient). `own` and `mean`
        stretch u_i at most tenfold beyond the scaled row.
      mean_norm: `[]` norm of the average direction, for `mean`.

    Returns:
      Pytree of `[K, *P]` moves, zeros where there is no direction, and by name `[K]`:
      `protected_norm`, `||p_i|| / mu`; `conflict`, the largest cosine between another
      row and u_i (negative if all others would descend); `unprotected`, for whom p_i
      was refused, see `protected_coefficients`.
    """
    checks.known(length, get_args(Length), "personal_length")
    count, gram = rows.num_members, rows.whole
    coefficients, norms, refused = protected_coefficients(rows, protection=protection)
    # u_i = (1 - gamma) p_i - gamma gt_i as coefficients; the moves are one product.
    unit = jnp.eye(count, rows.mask.shape[0], dtype=gram.dtype) * rows.mask[None, :]
    coefficients = (1 - gamma) * coefficients + gamma * unit
    sizes = combined_norms(gram, coefficients)
    # Rows have the norm mu: `per_row` leads back to units of the gradient.
    scaled = rows.scales[:count] * rows.norms[:count]
    per_row = rows.norms[:count] / jnp.where(scaled > 0, scaled, 1)
    safe = jnp.where(sizes > 0, sizes, 1)
    # The bound keeps short u_i, whose direction is least certain, from being blown up.
    if length == "own":
        stretch = per_row * jnp.minimum(scaled / safe, _LONGEST)
    elif length == "mean":
        stretch = jnp.minimum(mean_norm / safe, _LONGEST)
    else:
        stretch = per_row
    stretch = jnp.where(sizes > 0, stretch, 0)
    weights = -coefficients * stretch[:, None]
    moves = rows.combine(jnp.repeat(weights[:, None], len(rows.gram), axis=1))

    info = {
        "protected_norm": norms / rows.mu,
        "conflict": _conflicts(rows, coefficients),
        "unprotected": refused,
    }
    return moves, info

"""Derivatives of the smoothed geometric median by the implicit function theorem.

At the solution c of `sum_k p_k eta_k r_k = 0`, with `r_k = x_k - c`, `n_k = |r_k|`,
`eta_k = 1 / max(n_k, rho)`, `u_k = r_k / n_k`, `out_k = [n_k > rho]`,
`a = sum_k p_k eta_k` and `D_k = p_k eta_k out_k`:

    Hess     = a I - sum_k D_k u_k u_k^T
    dc/dx_k  = Hess^-1 p_k eta_k (I - out_k u_k u_k^T)       their sum is the identity
    dc/drho  = - Hess^-1 sum_k p_k (1 - out_k) r_k / rho^2
    dc/dp_k  = Hess^-1 eta_k r_k

A cotangent b of c becomes `v = Hess^-1 b` by Woodbury's identity, with S = sqrt(D) and
the rows u_k as U `[K, D]`:

    v = (b + U^T S z) / a,    (a I - S U U^T S) z = S U b

so that the work is one Gram matrix about c, one system of K equations and two products
with the rows, however many steps the search took.

    symbol   here          shape
    r_k      rows          [K, D]
    r_k . v  along         [K]
    S / n    root          [K]    so that S u_k = root_k r_k

Limits: where all rows are within rho, `dc/dx_k = p_k`, the mean's. Where they lie on a
line and none is within rho, Hess is singular; a multiple of rounding added to it keeps
the result finite.
"""

import jax
import jax.numpy as jnp

from fedjax_pfl.core import factorizations
from fedjax_pfl.core.client_rows import dot
from fedjax_pfl.numerics import scaled_rows

__all__ = ["cotangents"]


def cotangents(
    size: scaled_rows.ScaledRows,
    p: jax.Array,
    center: jax.Array,
    rho: jax.Array,
    cotangent: jax.Array,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Pulls a cotangent of the median back to rows, probabilities and radius.

    Args:
      size: rows `[K, D]` of about unit size; its other numbers count as constants.
      p: `[K]` probabilities; rows with 0 may hold anything.
      center: `[D]` the median, in units of the rows.
      rho: `[]` the radius, in units of the rows.
      cotangent: `[D]` of the median.

    Returns:
      `[K, D]`, `[K]` and `[]`; zeros for rows that take no part, and for all of them if
      none does.
    """
    gram = size.gram(center)
    distance = jnp.sqrt(jnp.diag(gram))
    outside = distance > rho
    length = jnp.maximum(distance, rho)
    pull = p / length
    total = pull.sum()
    total = jnp.where(total > 0, total, 1)
    root = jnp.where(outside, jnp.sqrt(pull), 0) / length
    ridge = 4 * jnp.finfo(p.dtype).eps * total
    system = (total + ridge) * jnp.eye(p.shape[0], dtype=p.dtype)
    system = system - root[:, None] * gram * root[None]
    toward = size.project(center, cotangent)
    mix = root * factorizations.solve(system, root * toward)
    v = (cotangent + size.combine(mix, center)) / total
    along = (toward + dot(gram, mix)) / total
    back = jnp.where(outside, pull * along / jnp.square(length), 0)
    shrunk = size.factor * (size.scale / size.divisor)
    rows = size.rows(center)
    of_rows = shrunk[:, None] * (pull[:, None] * v[None] - back[:, None] * rows)
    of_p = size.scale * along / length
    of_rho = -jnp.where(outside, 0, p * along).sum() / jnp.square(rho)
    return of_rows, of_p, of_rho

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

Limits: if all rows are within rho, `dc/dx_k = p_k`, the mean's. If they lie on a line
with direction n and none is within rho, Hess n = 0: the minimum is flat, and the
median its point nearest to the mean. Along n the median then moves as the mean does, or
with the row at whose radius it is:

    dc/dx_k  = Hess^+ p_k eta_k (I - out_k u_k u_k^T) + p_k n n^T
    dc/dp_k  = Hess^+ eta_k r_k + n n^T r_k
"""

import jax
import jax.numpy as jnp

from fedjax_pfl.core import factorizations
from fedjax_pfl.core.client_rows import dot
from fedjax_pfl.numerics import scaled_rows

__all__ = ["cotangents"]

_FLAT = 64  # eps of a squared sine that rounding may leave of 0
_EDGE = 1e-3  # of rho, and 8 eps of a row: how exactly a distance of rho is known


def cotangents(
    size: scaled_rows.ScaledRows,
    p: jax.Array,
    center: jax.Array,
    rho: jax.Array,
    cotangent: jax.Array,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Pulls a cotangent `[D]` of the median back to rows, probabilities and radius."""
    # Numbers of `size` are constants; rows that take no part get zeros.
    gram = size.gram(center)
    distance = jnp.sqrt(jnp.diag(gram))
    length = jnp.maximum(distance, rho)
    pull = p / length
    total = pull.sum()
    total = jnp.where(total > 0, total, 1)
    eps = jnp.finfo(p.dtype).eps
    # A direction without curvature is that of all rows, best of the furthest.
    far = jnp.argmax(jnp.where(p > 0, distance, -1))
    apart = jnp.where(distance[far] > 0, distance[far], 1)
    cosine = gram[far] / (length * apart)

    near = distance <= (1 + _EDGE) * rho + 8 * eps * size.norm
    far_pull = jnp.where(near, 0, pull)
    on_line = dot(far_pull, 1 - jnp.square(cosine)) <= _FLAT * eps * far_pull.sum()
    outside = jnp.where(on_line, ~near, distance > rho)
    is_flat = on_line & (outside | (p == 0)).all()
    flat = jnp.where(is_flat, 1 / apart, 0)  # times the furthest row it is n, or 0
    root = jnp.where(outside, jnp.sqrt(pull), 0) / length
    system = (1 + 4 * eps) * total * jnp.eye(p.shape[0], dtype=p.dtype)
    system = system - root[:, None] * gram * root[None]
    toward = size.project(center, cotangent)
    line = jax.nn.one_hot(far, p.shape[0], dtype=p.dtype) * flat
    slope = flat * toward[far]  # n . b
    across = toward - slope * flat * gram[far]
    mix = root * factorizations.solve(system, root * across) - slope * line
    mix = mix - flat * (toward + dot(gram, mix))[far] * line  # rounding of no curvature
    v = (cotangent + size.combine(mix, center)) / total
    along = (toward + dot(gram, mix)) / total
    back = jnp.where(outside, pull * along / jnp.square(length), 0)
    shrunk = size.factor * (size.scale / size.divisor)
    rows = size.rows(center)
    line_part = (slope * flat * rows[far])[None]  # n n^T b
    of_rows = pull[:, None] * v[None] - back[:, None] * rows + p[:, None] * line_part
    of_p = size.scale * (along / length + slope * flat * gram[far])
    of_rho = -jnp.where(outside, 0, p * along).sum() / jnp.square(rho)
    return shrunk[:, None] * of_rows, of_p, of_rho

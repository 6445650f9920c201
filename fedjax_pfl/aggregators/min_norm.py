"""Common descent: a step along the shortest combination of the members' updates.

With the server's model w, messages w_i and shares p_i of the examples,

    g_i = (w - w_i) / ||w - w_i||
    lam = argmin ||sum_i lam_i g_i||^2   over sum(lam) = 1 and
          max(0, p_i - eps) <= lam_i <= min(1, p_i + eps)
    w  <- w - e sum_i lam_i g_i

At eps = 1 the combination d descends for all clients, `g_i . d >= ||d||^2`, unless it
is 0: then w is Pareto stationary. At eps = 0 the weights are p. Between them some
clients may ascend. The quadratic program is solved on the Gram matrix
(`quadratic_programs`).

Reference: Hu, Shaloudegi, Zhang, Yu, "Federated Learning Meets Multi-Objective
Optimization" (FedMGDA+).
"""

from typing import ClassVar

import jax
import jax.numpy as jnp

from fedjax_pfl.aggregators import base
from fedjax_pfl.core import client_rows, columns, struct
from fedjax_pfl.numerics import quadratic_programs, scaled_rows

__all__ = ["CommonDescent", "CommonDescentInfo"]

_STATIONARY = 1e-6  # the length of an update that says that its client is at rest


@struct.pytree_dataclass
class CommonDescentInfo:
    """The combination.

    Attributes:
      lam: `[K]` weights, 0 for rows that took no part.
      norm: `[]` length of the combination d.
      slope: `[]` least `g_i . d`: positive if all members descend, 0 without any.
      gap: `[]` certificate of the weights, relative to the mean of the `||g_i||^2`.
    """

    lam: jax.Array
    norm: jax.Array
    slope: jax.Array
    gap: jax.Array


@struct.pytree_dataclass
class CommonDescent(base.MatrixRule):
    """The server's model less a step along the shortest combination of updates.

    Rows of weight 0, rows with a non-finite value and rows within 1e-6 of the reference
    take no part and have no share; if none is left, the reference is returned. An
    attacker cannot make a step of unit updates long, but it can bend the step, and at
    eps = 1 stop it by opposing the others.

    Attributes:
      eps: `[]` in [0, 1], how far weights may be from the shares of the examples.
      learning_rate: `[]` > 0, the step e.
      normalize: static, whether updates are brought to length 1; if not, g_i = w - w_i,
        and each counts as at most 1e6 times as long as the median one (1e10 in
        float64), and the shortest have most of the weight.

    Example:
      >>> rows, weights = jnp.array([[-3.0, 0.0], [0.0, -4.0]]), jnp.ones(2)
      >>> key, w = jax.random.key(0), jnp.zeros(2)
      >>> aggregate, info = CommonDescent(eps=1.0)(key, rows, weights, w)
      >>> [round(float(x), 4) for x in aggregate], round(float(info.slope), 4)
      ([-0.5, -0.5], 0.5)
    """

    eps: float = struct.traced_field(default=0.1, at_least=0, at_most=1)
    learning_rate: float = struct.traced_field(default=1.0, above=0)
    normalize: bool = struct.static_field(default=True)
    of_pairs: ClassVar[bool] = True

    def combine(
        self, matrix: jax.Array, valid: jax.Array, weights: jax.Array, center: jax.Array
    ) -> tuple[jax.Array, CommonDescentInfo]:
        """Takes one step from the reference."""
        rows, size, valid = _directions(matrix, center, valid)
        if self.normalize:
            size, unit = valid.astype(matrix.dtype), jnp.ones((), matrix.dtype)
        else:
            size, unit = _relative(size, valid)
        # Inner products of unit updates; their lengths come afterwards.
        gram = columns.total(client_rows.dot(rows, rows.T))
        gram = gram * size[:, None] * size[None]
        share = jnp.where(valid, weights, 0).astype(matrix.dtype)
        share = share / jnp.maximum(share.sum(), jnp.finfo(matrix.dtype).tiny)
        eps = jnp.asarray(self.eps, matrix.dtype)
        # argmin ||sum_i lam_i g_i||^2 with lam_i within eps of the share of examples.
        solution = quadratic_programs.box_minimum_norm(
            gram, jnp.maximum(share - eps, 0), jnp.minimum(share + eps, 1), valid
        )
        step = unit * client_rows.dot(solution.x * size, rows)
        # g_i . d of every member: positive if its loss falls along the step.
        slopes = client_rows.dot(gram, solution.x)
        mean = jnp.square(size).sum() / jnp.maximum(valid.sum(dtype=size.dtype), 1)
        least = jnp.where(valid, slopes, jnp.inf).min()
        info = CommonDescentInfo(
            lam=solution.x,
            norm=unit * jnp.sqrt(solution.value),
            slope=unit**2 * jnp.where(valid.any(), least, 0),
            gap=solution.gap / jnp.where(mean > 0, mean, 1),
        )
        rate = jnp.asarray(self.learning_rate, matrix.dtype)
        return center - rate * step, info


def _directions(
    matrix: jax.Array, center: jax.Array, valid: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Returns unit updates `[K, D]`, 0 where none is; lengths; which there are."""
    unit, distance = scaled_rows.distances(matrix, valid, center)
    size = jnp.minimum(unit * distance, jnp.finfo(matrix.dtype).max)
    # A client at rest has no direction.
    valid = valid & (size >= _STATIONARY)
    divisor = jnp.where(valid, distance, 1)[:, None]
    rows = (center[None] / unit[:, None] - matrix / unit[:, None]) / divisor
    return jnp.where(valid[:, None], rows, 0), jnp.where(valid, size, 0), valid


def _relative(size: jax.Array, valid: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Lengths over the median one, none far above it, and the median."""
    share = valid / jnp.maximum(valid.sum(dtype=size.dtype), 1)
    unit = scaled_rows.median(jnp.where(valid, size, jnp.inf), share)
    unit = jnp.where(valid.any(), unit, 1)
    # Else the squares of one huge update would drown all others in rounding.
    return jnp.minimum(size / unit, 1 / scaled_rows.precision(size.dtype)), unit

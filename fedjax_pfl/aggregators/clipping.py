"""Means of messages with distances from a point that are clipped.

Centered clipping moves a point v, which starts at the server's model,

    v <- v + (1/n) sum_k (x_k - v) min(1, tau / ||x_k - v||),

norm clipping averages rows at a distance from the server's model of at most c,

    ref + (1/n) sum_k (x_k - ref) min(1, c / ||x_k - ref||).

Norms are over the whole model; every row is measured in a power of two of its own
(`scaled_rows.distances`). Adaptively, c is such that of n rows the floor(2 f (n - f) /
n) longest are clipped, to the length of the next one.

References: Karimireddy, He, Jaggi, "Learning from History for Byzantine Robust
Optimization"; Sun, Kairouz, Suresh, McMahan, "Can You Really Backdoor Federated
Learning?"; Allouah, Guerraoui, Gupta, Jellouli, Rizk, Stephan, "Adaptive Gradient
Clipping for Robust Federated Learning".
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax

from fedjax_pfl.aggregators import base
from fedjax_pfl.core import checks, struct
from fedjax_pfl.numerics import scaled_rows

__all__ = ["CenteredClipping", "ClippingInfo", "NormClipping"]


@struct.pytree_dataclass
class ClippingInfo:
    """Report of a round's clipping.

    Attributes:
      fraction_clipped: `[]` fraction of the rows in use that were shortened; by
        centered clipping in its last iteration.
      max_norm: `[]` the norm to which rows were clipped, 0 if none took part.
    """

    fraction_clipped: jax.Array
    max_norm: jax.Array


def _clipped_mean(
    matrix: jax.Array,
    valid: jax.Array,
    center: jax.Array,
    max_norm: Callable[[jax.Array], jax.Array],
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Returns the center after a step `[D]`, clipped rows `bool[K]`, and the limit."""
    # v + (1/n) sum_k (x_k - v) min(1, tau / ||x_k - v||), rows in units of their own.
    unit, distance = scaled_rows.distances(matrix, valid, center)
    norm = jnp.minimum(unit * distance, jnp.finfo(matrix.dtype).max)
    limit = max_norm(norm)
    clipped = valid & (norm > limit)
    share = 1 / jnp.maximum(valid.sum(dtype=matrix.dtype), 1)
    # In units of a row; its clipped length is the limit, and products may be small.
    factor = jnp.where(clipped, limit / jnp.where(clipped, distance, 1), unit) * share
    difference = matrix / unit[:, None] - center[None] / unit[:, None]
    step = jnp.where(valid[:, None], difference * factor[:, None], 0).sum(axis=0)
    return center + step, clipped, limit


def _fraction(clipped: jax.Array, valid: jax.Array, dtype: jnp.dtype) -> jax.Array:
    """Returns the share `[]` of the rows in use."""
    return clipped.sum(dtype=dtype) / jnp.maximum(valid.sum(dtype=dtype), 1)


@struct.pytree_dataclass
class CenteredClipping(base.MatrixRule):
    """Mean of differences from a moving center, each clipped to length tau.

    The center starts at the reference, the server's model, and moves by at most tau in
    an iteration, whatever the attackers send. With a large tau one iteration is the
    mean. Rows of weight 0 and rows with a non-finite value take no part; if none is
    left, the reference is returned. Other weights do not matter. A traced `tau <= 0`
    returns the reference.

    Attributes:
      tau: `[]` > 0, the largest length of a difference, of the size of honest updates.
      num_iterations: static.

    Example:
      >>> rows, weights = jnp.array([1.0, 90.0, 2.0]), jnp.ones(3)
      >>> rule = CenteredClipping(tau=3.0)
      >>> aggregate, info = rule(jax.random.key(0), rows, weights, jnp.array(0.0))
      >>> round(float(aggregate), 3), round(float(info.fraction_clipped), 3)
      (2.0, 0.333)
    """

    tau: float = struct.traced_field(default=10.0, above=0)
    num_iterations: int = struct.static_field(default=1, at_least=1)

    def combine(
        self, matrix: jax.Array, valid: jax.Array, weights: jax.Array, center: jax.Array
    ) -> tuple[jax.Array, ClippingInfo]:
        """Moves from the reference."""
        tau = jnp.maximum(jnp.asarray(self.tau, matrix.dtype), 0)

        def move(_: jax.Array, last: tuple[jax.Array, jax.Array]):
            center, clipped, _ = _clipped_mean(matrix, valid, last[0], lambda _: tau)
            return center, clipped

        # Every iteration clips about the center that the last one found.
        end = lax.fori_loop(0, self.num_iterations, move, (center, valid))
        info = ClippingInfo(
            fraction_clipped=_fraction(end[1], valid, matrix.dtype),
            max_norm=jnp.where(valid.any(), tau, 0),
        )
        return end[0], info


@struct.pytree_dataclass
class NormClipping(base.Counting):
    """Mean of messages, clipped in their distance from the server's model.

    Rows of weight 0 and rows with a non-finite value take no part and do not count
    among the n rows; if none is left, the reference is returned. Other weights do not
    matter. With a fixed limit an attacker moves the result by at most c / n; an
    adaptive one bounds attackers by the length of an honest update. A norm that
    overflows counts as the largest number; a traced `max_norm <= 0` returns the
    reference.

    Before anything is traced, a number f with 2 f + 1 > K is refused; a traced one, or
    one that is too large because messages are lost later, counts as the largest with
    2 f < n.

    Attributes:
      max_norm: `[]` c > 0, or None: adaptive.
      num_malicious: `[]` f of an adaptive limit, a whole number, or None.
      malicious_fraction: static, f as a share of the n rows, rounded; or None. Without
        either f is the largest with 2 f < n, and about half of the rows are clipped.

    Example:
      >>> rows, weights = jnp.array([1.0, 90.0, -2.0]), jnp.ones(3)
      >>> aggregate, info = NormClipping()(
      ...     jax.random.key(0), rows, weights, jnp.array(0.0)
      ... )
      >>> round(float(aggregate), 3), float(info.max_norm)
      (0.333, 2.0)
    """

    max_norm: float | None = struct.traced_field(default=None, above=0)

    def __post_init__(self):
        base.Counting.__post_init__(self)
        fields = self.num_malicious, self.malicious_fraction
        if self.max_norm is not None and fields != (None, None):
            raise checks.InputError(
                "Expected no number of malicious rows with a max_norm, got"
                f" max_norm={self.max_norm!r}, num_malicious={fields[0]!r} and"
                f" malicious_fraction={fields[1]!r}."
            )

    @property
    def chooses(self) -> str | None:
        """Names what derivatives hold fixed."""
        return "whose norm is the limit" if self.max_norm is None else None

    def combine(
        self, matrix: jax.Array, valid: jax.Array, weights: jax.Array, center: jax.Array
    ) -> tuple[jax.Array, ClippingInfo]:
        """Averages steps from the reference, no longer than the limit."""

        def limit(norm: jax.Array) -> jax.Array:
            if self.max_norm is not None:
                return jnp.maximum(jnp.asarray(self.max_norm, norm.dtype), 0)
            n = valid.sum(dtype=jnp.int32)
            f = self.minority(n, len(valid))
            # Adaptive: of n rows the floor(2 f (n - f) / n) longest are clipped.
            number = (2 * f * (n - f)) // jnp.maximum(n, 1)
            longest = -jnp.sort(-jnp.where(valid, norm, 0))
            return longest[number]

        mean, clipped, used = _clipped_mean(matrix, valid, center, limit)
        info = ClippingInfo(
            fraction_clipped=_fraction(clipped, valid, matrix.dtype),
            max_norm=jnp.where(valid.any(), used, 0),
        )
        return mean, info

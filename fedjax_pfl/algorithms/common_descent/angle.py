"""The fairness objective: the negative cosine between the clients' losses and 1."""

import jax
import jax.numpy as jnp

from fedjax_pfl.core import struct

__all__ = ["Fairness", "fairness"]


@struct.pytree_dataclass
class Fairness:
    """The fairness objective at one vector of losses.

    Attributes:
      value: `[]` F in [-1, 0) for positive losses; -1 if all are equal.
      slopes: `[K]` derivatives `h = dF/dL`; zeros for clients left out.
      sine: `[]` sine of the angle between L and 1, which is `||h|| ||L||`.
      usable: `bool[]` whether h tells a direction: all losses are positive and finite,
        and not so equal that rounding decides.
    """

    value: jax.Array
    slopes: jax.Array
    sine: jax.Array
    usable: jax.Array


def fairness(losses: jax.Array, present: jax.Array | None = None) -> Fairness:
    """Returns the value and derivatives of `F(L) = -(L . 1) / (||L|| ||1||)`.

    With the mean m of the losses and their deviations `v = L - m`, which do not cancel,
    `h = (K m v - ||v||^2) / (sqrt(K) ||L||^3)`, good to the last digits in float32. The
    supplement of FedPG has the same vector as a difference of two that are nearly
    equal; where losses differ by a thousandth that costs four digits.

    Args:
      losses: `[K]`, > 0. A loss of 0 or below, or one that is not finite, makes the
        result unusable, as nothing is an angle then.
      present: `bool[K]` that count; None for all. Without clients, or with one client,
        nothing is usable.

    Returns:
      A `Fairness`. `h . L = 0` and `sum(h) <= 0`: who is above
      `||L||^2 / sum(L)` is pulled down, the others are pushed up.

    Example:
      >>> found = fairness(jnp.array([1.0, 2.0, 3.0]))
      >>> round(float(found.value), 4), [round(float(h), 4) for h in found.slopes]
      (-0.9258, [-0.0882, -0.022, 0.0441])
    """
    mask = jnp.ones(losses.shape, bool) if present is None else present
    good = jnp.where(mask, (losses > 0) & jnp.isfinite(losses), True).all()
    # Of unusable losses everything below is finite: those that count become 1.
    values = jnp.where(mask & good, losses, mask.astype(losses.dtype))
    # Squares of small losses would underflow; a power of two costs no digit.
    peak = jnp.maximum(values.max(), jnp.finfo(losses.dtype).tiny)
    peak = jnp.ldexp(jnp.ones_like(peak), jnp.frexp(peak)[1])
    values = values / peak
    count = jnp.maximum(mask.sum(), 1).astype(losses.dtype)
    mean = values.sum() / count
    spread = jnp.where(mask, values - mean, 0)  # exact where losses are close
    spread = jnp.where(mask, spread - spread.sum() / count, 0)
    size = jnp.sqrt(jnp.maximum((values**2).sum(), jnp.finfo(losses.dtype).tiny))
    variation = (spread**2).sum()
    # h from deviations, which do not cancel as the two terms of the supplement do.
    slopes = (count * mean * spread - variation) / (jnp.sqrt(count) * size**3)
    sine = jnp.sqrt(variation) / size
    # Below this sine, rounding decides which losses are above the mean.
    smallest = 1e-4 if losses.dtype != jnp.float64 else 1e-10
    return Fairness(
        value=-jnp.sqrt(count) * mean / size,
        slopes=jnp.where(mask, slopes, 0) / peak,
        sine=sine,
        usable=good & (sine >= smallest),
    )

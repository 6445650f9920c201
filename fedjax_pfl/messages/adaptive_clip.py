"""Messages of bounded norm; the bound follows a quantile of their norms."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from fedjax_pfl import core
from fedjax_pfl.core import client_rows, struct
from fedjax_pfl.messages.clip_norm import ClipNorm

__all__ = ["AdaptiveClip"]


@struct.pytree_dataclass
class AdaptiveClip(core.Transform):
    """Bounds the norm of messages by a quantile of their norms.

    The server clips messages to c, and counts those with a norm of at most c. gamma is
    the target of their share, and b the share among K clients, with noise in the count,

        b = (sum_i [|x_i| <= c] + N(0, s^2)) / K,   c <- c exp(-eta (b - gamma)).

    The count is released like the sum: noise of z clips in the sum and of s clients in
    the count are together noise of `(z^-2 + (2 s)^-2)^(-1/2)` clips, from which epsilon
    is computed.

    Attributes:
      norm: `[]` c of the first round, > 0.
      quantile: `[]` gamma in (0, 1).
      learning_rate: `[]` eta, > 0.
      count_noise: `[]` s, deviation of the noise in the count of clients, at least 0;
        the paper has a 20th of the cohort. Without it epsilon is infinite.

    Reference: Andrew, Thakkar, McMahan, Ramaswamy, "Differentially Private Learning
    with Adaptive Clipping".
    """

    norm: Any = struct.traced_field(default=1.0, above=0)
    quantile: Any = struct.traced_field(default=0.5, above=0, below=1)
    learning_rate: Any = struct.traced_field(default=0.2, above=0)
    count_noise: Any = struct.traced_field(default=5.0, at_least=0)

    def receive(self, key: core.Key | None, message: core.Message) -> core.Message:
        """Clips a received message."""
        return ClipNorm(norm=self.norm).receive(key, message)

    def at(self, norm: jax.Array) -> "AdaptiveClip":
        """Returns the transform of a round with the clip `norm`."""
        return dataclasses.replace(self, norm=norm)

    def within(self, message: core.Message) -> jax.Array:
        """Returns 1/2 for a received message within the clip, else -1/2."""
        # Halves of both signs, as in the paper: a client moves the count by 1/2.
        norm, unit = client_rows.norm(message)
        return jnp.where(norm <= self.norm / unit, 0.5, -0.5).astype(norm.dtype)

    def next_norm(
        self, key: core.Key, within: jax.Array, count: core.Scalar
    ) -> jax.Array:
        """Returns the clip of the next round.

        Args:
          key: `[]` key of the noise in the count.
          within: `[K]` values of `within`; 0 for absent members.
          count: K, or the expected number of participants.

        Returns:
          `[]`.
        """
        noise = self.count_noise * jax.random.normal(key, (), within.dtype)
        # b, and c <- c exp(-eta (b - gamma)).
        share = 0.5 + (within.sum() + noise) / count
        step = jnp.exp(-self.learning_rate * (share - self.quantile))
        return (self.norm * step).astype(jnp.result_type(self.norm))

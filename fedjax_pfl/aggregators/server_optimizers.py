"""Optimizers of the server, which step along a pseudo-gradient (Reddi et al. 2021).

Some methods have one model w at the server: clients start from it, and the average of
their messages makes a new model. The difference `g = w - (new model)` is
taken for a gradient, and an optimizer's step along it replaces the new model:

    FedAvgM    m <- momentum m + g,         w <- w - learning_rate m
    FedAdam    m <- b1 m + (1 - b1) g
               v <- b2 v + (1 - b2) g^2     w <- w - learning_rate m / (sqrt(v) + eps)

| symbol | field | shape |
|---|---|---|
| m | `trace` of optax, `mean` | `[*P]` |
| v | `square` | `[*P]` |

A round in which no message arrives has g = 0, and the memory goes on moving w. Limits:
FedAvgM with momentum 0 and learning rate 1 takes the new model, to rounding; FedAdam
with b1 = b2 = 0 moves a coordinate by `learning_rate g / (|g| + eps)`.

Reference: Reddi, Charles, Zaheer, Garrett, Rush, Konecny, Kumar, McMahan, "Adaptive
Federated Optimization", ICLR 2021, Algorithm 2; momentum: Hsu, Qi, Brown, "Measuring
the Effects of Non-Identical Data Distribution for Federated Visual Classification".
As in the paper v starts at `eps^2` and there is no bias correction, both unlike
`optax.adam`.
"""

from typing import Any

import jax
import jax.numpy as jnp
import optax

from fedjax_pfl import core
from fedjax_pfl.core import struct

__all__ = ["ServerAdam", "ServerMomentum"]

_FIXED = "fixed in the paper"


def _as(value: core.Scalar, params: core.Params) -> jax.Array:
    """Returns a number in the dtype of the parameters."""
    return jnp.asarray(value, jnp.result_type(*jax.tree.leaves(params)))


@struct.pytree_dataclass
class ServerMomentum(core.ServerOptimizer):
    """Momentum on pseudo-gradients: FedAvgM.

    Attributes:
      learning_rate: `[]` > 0; 1 goes to the new model if there is no momentum.
      momentum: `[]` share of the memory that stays, in [0, 1), or None for a learning
        rate of the server alone, without a memory.

    Example:
      >>> optimizer, w = ServerMomentum(momentum=0.5), {"w": jnp.array(4.0)}
      >>> new, memory = optimizer(optimizer.init(w), w, {"w": jnp.array(2.0)})
      >>> new, _ = optimizer(memory, new, {"w": jnp.array(2.0)})
      >>> float(new["w"])
      1.0
    """

    learning_rate: float = struct.traced_field(default=1.0, above=0, search=(0.1, 10.0))
    momentum: float | None = struct.traced_field(
        default=0.9, at_least=0, below=1, search=(0.0, 0.95, False)
    )

    def _rule(self, params: core.Params) -> optax.GradientTransformation:
        """Returns what adds the memory to a pseudo-gradient."""
        if self.momentum is None:
            return optax.identity()
        return optax.trace(_as(self.momentum, params))

    def init(self, params: core.Params) -> optax.OptState:
        """Zeros, or None without momentum."""
        return self._rule(params).init(params)

    def __call__(
        self, memory: optax.OptState, params: core.Params, target: core.Params
    ) -> tuple[Any, optax.OptState]:
        """Takes one step from `params` towards the new model `target`, both `[*P]`."""
        # g = w - (new model); m <- momentum m + g, w <- w - learning_rate m.
        gradient = optax.tree.sub(params, target)
        step, memory = self._rule(params).update(gradient, memory)
        rate = _as(self.learning_rate, params)
        return optax.tree.add_scale(params, -rate, step), memory


@struct.pytree_dataclass
class AdamMemory:
    """Moving averages of pseudo-gradients and of their squares, `[*P]`."""

    mean: core.Params
    square: core.Params


@struct.pytree_dataclass
class ServerAdam(core.ServerOptimizer):
    """Adam on pseudo-gradients: FedAdam.

    Attributes:
      learning_rate: `[]` > 0; about the size of a coordinate's step.
      b1: `[]` share of the mean that stays, in [0, 1).
      b2: `[]` share of the mean square that stays, in [0, 1).
      eps: `[]` > 0, tau in the paper: coordinates with smaller pseudo-gradients take
        smaller steps.

    Example:
      >>> optimizer, w = ServerAdam(b1=0.0, b2=0.0), {"w": jnp.array(4.0)}
      >>> new, _ = optimizer(optimizer.init(w), w, {"w": jnp.array(2.0)})
      >>> round(float(new["w"]), 4)
      3.99
    """

    learning_rate: float = struct.traced_field(
        default=0.01, above=0, search=(0.0003, 0.3)
    )
    b1: float = struct.traced_field(default=0.9, at_least=0, below=1, unsearched=_FIXED)
    b2: float = struct.traced_field(
        default=0.99, at_least=0, below=1, unsearched=_FIXED
    )
    eps: float = struct.traced_field(default=1e-3, above=0, search=(1e-5, 0.1))

    def init(self, params: core.Params) -> AdamMemory:
        """Zeros, and `eps^2`."""
        # v starts at eps^2, as in the paper.
        square = jnp.square(_as(self.eps, params))
        return AdamMemory(
            mean=optax.tree.zeros_like(params),
            square=jax.tree.map(lambda w: jnp.full_like(w, square), params),
        )

    def __call__(
        self, memory: AdamMemory, params: core.Params, target: core.Params
    ) -> tuple[Any, AdamMemory]:
        """Takes one step from `params` along `params - target`, both `[*P]`."""
        gradient = optax.tree.sub(params, target)
        b1, b2 = _as(self.b1, params), _as(self.b2, params)
        # m <- b1 m + (1 - b1) g and v <- b2 v + (1 - b2) g^2, without bias correction.
        memory = AdamMemory(
            mean=optax.tree.update_moment(gradient, memory.mean, b1, 1),
            square=optax.tree.update_moment(gradient, memory.square, b2, 2),
        )
        rate, eps = _as(self.learning_rate, params), _as(self.eps, params)
        new = jax.tree.map(
            lambda w, m, v: w - rate * m / (jnp.sqrt(v) + eps),
            params,
            memory.mean,
            memory.square,
        )
        return new, memory

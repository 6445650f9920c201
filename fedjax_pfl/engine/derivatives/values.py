"""Values of fields that an optimizer moves."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from fedjax_pfl.engine.derivatives import fields

__all__ = ["Values", "default_optimizer"]

_RATE = 0.3


def default_optimizer() -> optax.GradientTransformation:
    """Returns Adam with steps of at most a third of an e-fold in a field."""
    # A training that is about to diverge would fill Adam's memory, and stop all steps.
    return optax.chain(optax.clip(1.0), optax.adam(_RATE, b1=0.5, b2=0.9))


class Values:
    """Arrays by field, moved in `free` numbers that stand for them on their scales."""

    def __init__(
        self,
        scales: Mapping[str, fields.Scale],
        start: Mapping[str, np.ndarray],
        optimizer: optax.GradientTransformation,
        dtype: Any = np.float64,
    ):
        """Begins at values in double precision."""
        self.scales, self._start, self._optimizer = scales, start, optimizer
        self._start_numbers = {
            name: np.asarray(scales[name].free(value), dtype)
            for name, value in start.items()
        }
        self.free = dict(self._start_numbers)
        self.memory = optimizer.init(self._params())

    def _params(self) -> dict[str, jax.Array]:
        """Returns the numbers as optax takes them."""
        return {name: jnp.asarray(free) for name, free in self.free.items()}

    def now(self) -> dict[str, np.ndarray]:
        """Returns the values; values that never moved are exactly the start."""
        # Scales round: the inverse of `free` need not return the start exactly.
        return {
            name: np.where(
                free == self._start_numbers[name],
                self._start[name],
                self.scales[name].value(free.astype(np.float64)),
            )
            for name, free in self.free.items()
        }

    def step(self, gradient: Mapping[str, np.ndarray]) -> None:
        """Takes a step of the optimizer along a gradient in the numbers."""
        along = {name: jnp.asarray(slope) for name, slope in gradient.items()}
        steps: Any
        steps, self.memory = self._optimizer.update(along, self.memory, self._params())
        self.free = {
            name: free + np.asarray(steps[name], free.dtype)
            for name, free in self.free.items()
        }

    def state(self) -> tuple[Any, Any]:
        """Returns all that steps change, for checkpoints."""
        return self.free, self.memory

    def restore(self, state: tuple[Any, Any]) -> None:
        """Restores a `state` of host arrays."""
        self.free, memory = state
        self.memory = jax.tree.map(jnp.asarray, memory)

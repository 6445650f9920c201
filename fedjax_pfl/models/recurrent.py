"""A recurrent network on series of numbers, or token ids with frozen embeddings."""

import dataclasses
from types import ModuleType
from typing import Any, Self

import jax
import jax.numpy as jnp

from fedjax_pfl import core
from fedjax_pfl.core import checks, struct
from fedjax_pfl.models import base, inputs, objectives

__all__ = ["LSTM"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class LSTM(base.Network):
    """Fed+'s network for tweets: 1,103,421 parameters with embeddings of length 300.

    Inputs are series of numbers `[T]` or `[T, E]`, or token ids `int32 [T]`, embedded
    by `constants["embeddings"] [V, E]`, which is never trained; an id outside `[-V, V)`
    gives NaN. Layers `lstm_<i>` with leaves `input_kernel`, `state_kernel`, `bias`,
    then `bottleneck` and `head`. For two classes the head has one output `z` and the
    logits are `(0, z)`.

    Attributes:
      width: units of every LSTM layer.
      num_layers: number of LSTM layers.
      bottleneck: units of the linear layer before the head, or None for no such layer.
      embedding_size: E, 1 for series `[T]`, or None until `for_federation`.
    """

    width: int = struct.static_field(default=256, at_least=1)
    num_layers: int = struct.static_field(default=2, at_least=1)
    bottleneck: int | None = struct.static_field(default=30, at_least=1)
    embedding_size: int | None = struct.static_field(default=None, at_least=1)

    def for_federation(self, federation: core.Federation) -> Self:
        """Returns the model with the federation's shapes, classes and embeddings."""
        shape = federation.input_shape
        if inputs.are_tokens(federation):
            size = inputs.embedding_size(self, federation)
        elif len(shape) in (1, 2):
            size = (*shape, 1)[1]
        else:
            raise checks.InputError(
                "LSTM needs series, [time] or [time, features], or token ids, but the"
                f" inputs of {federation.name!r} have shape {shape}."
            )
        return dataclasses.replace(
            self,
            input_shape=shape,
            num_classes=inputs.targets_of(self, federation),
            embedding_size=size,
        )

    def _module(self, modules: ModuleType, classes: int) -> Any:
        return modules.Recurrent(
            self.width, self.num_layers, self.bottleneck, classes, self.initialization
        )

    def _draw(self, key: core.Key) -> core.Params:
        module = self._known_module()
        steps = jnp.zeros((1, 1, self.embedding_size or 0))
        return module.init(key, steps)["params"]

    def _call(self, call: objectives.Call) -> tuple[jax.Array, Any]:
        steps = self._steps(call.x, call.constants.given)
        return super()._call(call._replace(x=steps))

    def _steps(self, x: jax.Array, constants: core.Tree) -> jax.Array:
        """Returns inputs `[T, B, E]` of series, or of token ids `int32[B, T]`."""
        if not jnp.issubdtype(x.dtype, jnp.integer):
            # `layers.lstm` expects time first.
            return jnp.swapaxes(x.reshape(*x.shape[:2], -1), 0, 1)
        if not isinstance(constants, dict) or "embeddings" not in constants:
            raise checks.InputError(
                f"LSTM needs constants['embeddings'], got constants={constants!r}."
            )
        table = constants["embeddings"]
        return table.at[x.T].get(mode="fill", fill_value=jnp.nan)

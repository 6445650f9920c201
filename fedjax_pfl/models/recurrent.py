"""A recurrent network on token ids with frozen embeddings."""

import dataclasses
from typing import Any, Self

import flax.linen as nn
import jax
import jax.numpy as jnp

from fedjax_pfl import checks, types
from fedjax_pfl.models import base, inputs, modules

__all__ = ["LSTM"]


class _Recurrent(nn.Module):
    """Stacked LSTM layers, the last step's state, a linear bottleneck, the head."""

    width: int
    num_layers: int
    bottleneck: int | None
    classes: int
    initialization: str

    @nn.compact
    def __call__(self, x):
        scheme = self.initialization
        for number in range(self.num_layers):
            x = modules.LSTM(self.width, scheme, name=f"lstm_{number}")(x)
        x = x[-1]
        if self.bottleneck is not None:
            x = modules.Dense(self.bottleneck, scheme, name="bottleneck")(x)
        if self.classes != 2:
            return modules.Dense(self.classes, scheme, name="head")(x)
        # Softmax of (0, z) is the sigmoid of z: one output is enough for two classes.
        z = modules.Dense(1, scheme, name="head")(x)
        return jnp.concatenate([jnp.zeros_like(z), z], axis=1)


@dataclasses.dataclass(frozen=True, kw_only=True)
class LSTM(base.Network):
    """Fed+'s network for tweets: 1,103,421 parameters with embeddings of length 300.

    Inputs are token ids `int32 [T]`, embedded by `constants["embeddings"] [V, E]`,
    which is never trained; an id outside `[-V, V)` gives NaN. Layers `lstm_<i>` with
    leaves `input_kernel`, `state_kernel`, `bias`, then `bottleneck` and `head`. For two
    classes the head has one output `z` and the logits are `(0, z)`.

    Attributes:
      width: units of every LSTM layer.
      num_layers: number of LSTM layers.
      bottleneck: units of the linear layer before the head, or None for no such layer.
      embedding_size: E, or None until `for_federation`.
    """

    width: int = 256
    num_layers: int = 2
    bottleneck: int | None = 30
    embedding_size: int | None = None

    def __post_init__(self):
        super().__post_init__()
        checks.positive_int("width", self.width)
        checks.positive_int("num_layers", self.num_layers)
        if self.bottleneck is not None:
            checks.positive_int("bottleneck", self.bottleneck)

    def for_federation(self, federation: types.Federation) -> Self:
        """Returns the model with the federation's shapes, classes and embeddings."""
        return dataclasses.replace(
            self,
            input_shape=federation.input_shape,
            num_classes=inputs.classes_of(self, federation),
            embedding_size=inputs.embedding_size(self, federation),
        )

    def _module(self, classes: int) -> _Recurrent:
        return _Recurrent(
            self.width, self.num_layers, self.bottleneck, classes, self.initialization
        )

    def init(self, key: types.Key) -> types.Params:
        """Draws the parameters."""
        module = self._known_module()
        steps = jnp.zeros((1, 1, self.embedding_size or 0))
        return module.init(key, steps)["params"]

    def apply(
        self,
        params: types.Params,
        x: jax.Array,
        *,
        key: types.Key | None = None,
        constants: Any = None,
    ) -> jax.Array:
        """Logits `[B, C]` of token ids `int32[B, T]`."""
        if not isinstance(constants, dict) or "embeddings" not in constants:
            raise checks.InputError(
                f"LSTM needs constants['embeddings'], got constants={constants!r}."
            )
        table = constants["embeddings"]
        words = table.at[x.T].get(mode="fill", fill_value=jnp.nan)
        return super().apply(params, words, key=key)

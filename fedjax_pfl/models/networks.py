"""Neural networks: linen modules, built from our own layers, behind `Model`."""

import dataclasses
import math

import flax.linen as nn
import jax
import jax.numpy as jnp

from fedjax_pfl import checks, types
from fedjax_pfl.models import layers, linear, objectives

__all__ = ["MLP"]


class _Dense(nn.Module):
    """Dense layer with kernel `[out, in]`."""

    outputs: int

    @nn.compact
    def __call__(self, x):
        inputs = x.shape[-1]
        init = layers.fan_in_uniform
        kernel = self.param("kernel", init, (self.outputs, inputs), inputs)
        bias = self.param("bias", init, (self.outputs,), inputs)
        return layers.dense(kernel, bias, x)


class _Perceptron(nn.Module):
    """Dense layers with ReLU between them."""

    widths: tuple[int, ...]
    outputs: int

    @nn.compact
    def __call__(self, x):
        x = layers.flatten_inputs(x)
        for number, width in enumerate(self.widths):
            x = nn.relu(_Dense(width, name=f"hidden_{number}")(x))
        return _Dense(self.outputs, name="head")(x)


@dataclasses.dataclass(frozen=True)
class MLP(objectives.Classification):
    """Multilayer perceptron with ReLU; 784-128-64-10 has 109,386 parameters.

    Leaves are named `hidden_<i>/kernel`, `hidden_<i>/bias` (the body) and `head/...`.
    Weights and biases start uniform in +-1/sqrt(fan_in).

    Attributes:
      widths: hidden widths, each at least 1.
      input_shape: shape of one input, or None until `for_federation`.
      num_classes: C, or None until `for_federation`.
    """

    widths: tuple[int, ...] = (128, 64)
    input_shape: tuple[int, ...] | None = None
    num_classes: int | None = None

    def __post_init__(self):
        if not isinstance(self.widths, tuple):
            raise checks.InputError(
                f"Expected widths to be a tuple of whole numbers, got {self.widths!r}."
            )
        for width in self.widths:
            checks.positive_int("widths", width)

    def for_federation(self, federation: types.Federation) -> "MLP":
        """Returns the model with the federation's input shape and classes."""
        return dataclasses.replace(
            self,
            input_shape=federation.input_shape,
            num_classes=linear.classes_of(self, federation),
        )

    def _module(self) -> _Perceptron:
        if self.num_classes is None or self.input_shape is None:
            raise checks.InputError(
                "Expected input_shape and num_classes; call for_federation."
            )
        return _Perceptron(widths=self.widths, outputs=self.num_classes)

    def init(self, key: types.Key) -> types.Params:
        """Draws the parameters."""
        module = self._module()
        inputs = jnp.zeros((1, math.prod(self.input_shape or ())))
        return module.init(key, inputs)["params"]

    def apply(self, params, x, *, key=None, constants=None) -> jax.Array:
        """Logits `[B, C]`."""
        del key, constants
        return self._module().apply({"params": params}, x)  # pyright: ignore

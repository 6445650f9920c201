"""Linear models and the quadratic with a known minimizer."""

import abc
import dataclasses
import math
from typing import ClassVar, Self

import jax
import jax.numpy as jnp

from fedjax_pfl import core
from fedjax_pfl.core import checks, struct
from fedjax_pfl.models import inputs, layers, objectives, starts

__all__ = ["LinearRegression", "LogisticRegression", "Quadratic"]


@dataclasses.dataclass(frozen=True)
class _Flat(starts.Startable):
    """A model of flattened inputs, without randomness; abstract."""

    inputs: int | None = struct.static_field(default=None, at_least=1)

    def for_federation(self, federation: core.Federation) -> Self:
        """Returns the model with the federation's number of inputs."""
        return dataclasses.replace(self, inputs=math.prod(federation.input_shape))

    def _draw(self, key: core.Key) -> core.Params:
        """Zeros, `theta [inputs]`."""
        del key
        if self.inputs is None:
            raise checks.InputError("Expected inputs; call for_federation.")
        return {"theta": jnp.zeros((self.inputs,))}

    def apply(
        self,
        params: core.Params,
        x: jax.Array,
        *,
        key: core.Key | None = None,
        constants: core.Tree = None,
    ) -> jax.Array:
        """Outputs `[B, ...]` of inputs `[B, ...]`."""
        del key, constants
        return self._outputs(params, layers.flatten_inputs(x))

    @abc.abstractmethod
    def _outputs(self, params: core.Params, x: jax.Array) -> jax.Array:
        """Computes outputs `[B, ...]` of inputs `[B, inputs]`."""


@dataclasses.dataclass(frozen=True)
class LogisticRegression(objectives.Classification, _Flat):
    """Multinomial logistic regression: `inputs * C + C` parameters (7,850 on MNIST).

    Parameters start at zero; the problem is convex.

    Attributes:
      inputs: number of input features, or None until `for_federation`.
      num_classes: C, or None until `for_federation`.
      bfloat16_products: see `Network`.
      class_weights: see `Network`.
    """

    outputs_first: ClassVar = True
    num_classes: int | None = struct.static_field(default=None, at_least=1)
    bfloat16_products: bool = False
    class_weights: tuple[float, ...] | None = struct.static_field(default=None, above=0)

    def for_federation(self, federation: core.Federation) -> Self:
        """Returns the model with the federation's number of inputs and classes."""
        inputs.require_numbers(self, federation)
        model = super().for_federation(federation)
        classes = inputs.classes_of(self, federation)
        return dataclasses.replace(model, num_classes=classes)

    def _draw(self, key: core.Key) -> core.Params:
        """Zeros, `head/kernel [C, inputs]` and `head/bias [C]`."""
        del key
        if self.inputs is None or self.num_classes is None:
            raise checks.InputError(
                "Expected inputs and num_classes; call for_federation."
            )
        kernel = jnp.zeros((self.num_classes, self.inputs))
        return {"head": {"kernel": kernel, "bias": jnp.zeros((self.num_classes,))}}

    def _outputs(self, params: core.Params, x: jax.Array) -> jax.Array:
        """Logits `[B, C]`, in the parameters' dtype."""
        kernel, bias = params["head"]["kernel"], params["head"]["bias"]
        with layers.forms(bfloat16_products=self.bfloat16_products):
            return layers.dense(kernel, bias, x.astype(kernel.dtype))


@dataclasses.dataclass(frozen=True)
class LinearRegression(objectives.Regression, _Flat):
    """Least squares from zero, `f = mean (x theta + b - y)^2 / 2`.

    Attributes:
      intercept: whether there is a `b`, also from zero.
      inputs: number of features, or None until `for_federation`.
    """

    intercept: bool = False

    def for_federation(self, federation: core.Federation) -> Self:
        """Returns the model with the federation's number of inputs."""
        inputs.require_targets(self, federation)
        return super().for_federation(federation)

    def _draw(self, key: core.Key) -> core.Params:
        """Zeros, `theta [inputs]` and, with an intercept, `bias []`."""
        params = super()._draw(key)
        return params | {"bias": jnp.zeros(())} if self.intercept else params

    def _outputs(self, params: core.Params, x: jax.Array) -> jax.Array:
        """Predictions `[B]`."""
        return x @ params["theta"] + params.get("bias", 0)


@dataclasses.dataclass(frozen=True)
class Quadratic(_Flat):
    """`f(theta) = mean_j (b/2) ||theta - x_j||^2`: every minimizer is known.

    Attributes:
      curvature: b > 0.
      inputs: dimension d, or None until `for_federation`.
    """

    curvature: float = struct.static_field(default=1.0, above=0)

    def _outputs(self, params: core.Params, x: jax.Array) -> jax.Array:
        """Differences `theta - x_j`, `[B, d]`."""
        return params["theta"][None, :] - x

    def _values(self, outputs: jax.Array) -> jax.Array:
        return 0.5 * self.curvature * (outputs**2).sum(axis=1)

    def loss(self, outputs: jax.Array, batch: core.Batch) -> jax.Array:
        """Returns the weighted mean of the quadratic `[]`."""
        return objectives.weighted_mean(self._values(outputs), batch.weight)

    def metrics(self, outputs: jax.Array, batch: core.Batch) -> dict[str, jax.Array]:
        """Returns the per-example loss `[B]`."""
        del batch
        return {"loss": self._values(outputs)}

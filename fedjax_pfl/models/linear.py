"""Linear models and the quadratic with a known minimizer."""

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp

from fedjax_pfl import checks, types
from fedjax_pfl.models import layers, objectives

__all__ = ["LinearRegression", "LogisticRegression", "Quadratic", "classes_of"]


def classes_of(model: Any, federation: types.Federation) -> int:
    """Number of classes of a federation.

    Args:
      model: the model that wants them, for the message.
      federation: data.

    Returns:
      C.

    Raises:
      InputError: if the federation's targets are not classes.
    """
    if federation.num_classes is None:
        raise checks.InputError(
            f"{type(model).__name__} needs classes, but the targets of "
            f"{federation.name!r} are numbers; use the "
            "model 'linear_regression' or 'quadratic'."
        )
    return federation.num_classes


@dataclasses.dataclass(frozen=True)
class LogisticRegression(objectives.Classification):
    """Multinomial logistic regression: `inputs * C + C` parameters (7,850 on MNIST).

    Parameters start at zero; the problem is convex.

    Attributes:
      inputs: number of input features, or None until `for_federation`.
      num_classes: C, or None until `for_federation`.
    """

    inputs: int | None = None
    num_classes: int | None = None

    def for_federation(self, federation: types.Federation) -> "LogisticRegression":
        """Returns the model with the federation's number of inputs and classes."""
        return dataclasses.replace(
            self,
            inputs=math.prod(federation.input_shape),
            num_classes=classes_of(self, federation),
        )

    def init(self, key: types.Key) -> types.Params:
        """Zeros, `kernel [C, inputs]` and `bias [C]`."""
        del key
        if self.inputs is None or self.num_classes is None:
            raise checks.InputError(
                "Expected inputs and num_classes; call for_federation."
            )
        return {
            "kernel": jnp.zeros((self.num_classes, self.inputs)),
            "bias": jnp.zeros((self.num_classes,)),
        }

    def apply(self, params, x, *, key=None, constants=None):
        """Logits `[B, C]`."""
        del key, constants
        return layers.dense(params["kernel"], params["bias"], layers.flatten_inputs(x))


@dataclasses.dataclass(frozen=True)
class LinearRegression(objectives.Regression):
    """Least squares without intercept from zero, `f = mean (x theta - y)^2 / 2`.

    Attributes:
      inputs: number of features, or None until `for_federation`.
    """

    inputs: int | None = None

    def for_federation(self, federation: types.Federation) -> "LinearRegression":
        """Returns the model with the federation's number of inputs."""
        return dataclasses.replace(self, inputs=math.prod(federation.input_shape))

    def init(self, key: types.Key) -> types.Params:
        """Zeros, `theta [inputs]`."""
        del key
        if self.inputs is None:
            raise checks.InputError("Expected inputs; call for_federation.")
        return {"theta": jnp.zeros((self.inputs,))}

    def apply(self, params, x, *, key=None, constants=None):
        """Predictions `[B]`."""
        del key, constants
        return layers.flatten_inputs(x) @ params["theta"]


@dataclasses.dataclass(frozen=True)
class Quadratic:
    """`f(theta) = mean_j (b/2) ||theta - x_j||^2`: every minimizer is known.

    Attributes:
      curvature: b > 0.
      inputs: dimension d, or None until `for_federation`.
    """

    curvature: float = 1.0
    inputs: int | None = None

    def __post_init__(self):
        checks.number("curvature", self.curvature, above=0)

    def for_federation(self, federation: types.Federation) -> "Quadratic":
        """Returns the model with the federation's dimension."""
        return dataclasses.replace(self, inputs=math.prod(federation.input_shape))

    def init(self, key: types.Key) -> types.Params:
        """Zeros, `theta [d]`."""
        del key
        if self.inputs is None:
            raise checks.InputError("Expected inputs; call for_federation.")
        return {"theta": jnp.zeros((self.inputs,))}

    def apply(self, params, x, *, key=None, constants=None):
        """Differences `theta - x_j`, `[B, d]`."""
        del key, constants
        return params["theta"][None, :] - layers.flatten_inputs(x)

    def _values(self, outputs: jax.Array) -> jax.Array:
        return 0.5 * self.curvature * (outputs**2).sum(axis=1)

    def loss(self, outputs: jax.Array, batch: types.Batch) -> jax.Array:
        """Weighted mean of the quadratic `[]`."""
        return objectives.weighted_mean(self._values(outputs), batch.weight)

    def metrics(self, outputs: jax.Array, batch: types.Batch) -> dict[str, jax.Array]:
        """Per-example loss `[B]`."""
        del batch
        return {"loss": self._values(outputs)}

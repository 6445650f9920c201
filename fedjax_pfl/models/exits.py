"""A network with a second classifier on the features of one of its layers."""

import dataclasses
import math

import jax
import jax.numpy as jnp

from fedjax_pfl import core
from fedjax_pfl.core import checks, struct
from fedjax_pfl.models import base, initializers, layers

__all__ = ["EarlyExit"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class EarlyExit:
    """A network, cut after some layers, with a linear classifier at the cut.

    Parameters are the network's and `exit/kernel`, `exit/bias`, on flattened features.

    Attributes:
      network: one with named `layers`: `MLP`, the convolutional ones and
        `NFResNet18`; given its shapes.
      exit_after: number of layers before the cut, at least 1.
    """

    network: base.Network
    exit_after: int = struct.static_field(default=1, at_least=1)

    def __post_init__(self):
        name = type(self.network).__name__
        is_network = isinstance(self.network, base.Network)
        cuts = self.network.layers if is_network else ()
        if not cuts:
            raise checks.InputError(
                "Expected a network of layers before a head, such as MLP, CNN or"
                f" NFResNet18, got"
                f" {checks.shown(self.network)}."
            )
        if getattr(self.network, "normalization", None) == "batch":
            raise checks.InputError(
                "Expected a network without running statistics for a classifier in its"
                f" middle, got {name}(normalization='batch')."
            )
        struct.check_fields(self)
        if self.exit_after > len(cuts):
            raise checks.InputError(
                f"Expected exit_after to be at most {len(cuts)}, which are the layers"
                f" of {name} before its head, got {self.exit_after}."
            )

    @property
    def front(self) -> str:
        """Regular expression for the names of parameters up to the cut."""
        layers = "|".join(self.network.layers[: self.exit_after])
        return f"^(({layers})(_norm)?|exit)/"

    def init(self, key: core.Key) -> core.Params:
        """Draws the parameters; the network's are those it draws alone."""
        params = self.network.init(key)
        shape = (1, *(self.network.input_shape or ()))
        features, logits = jax.eval_shape(self._run, params, jnp.zeros(shape))
        inputs, outputs = math.prod(features.shape), logits.shape[1]
        # By another key, so that the network has the parameters that it draws alone.
        key, scheme = jax.random.fold_in(key, 1), self.network.initialization
        shape = (outputs, inputs)
        layer = initializers.layer(key, shape, inputs, outputs, scheme)
        return params | {"exit": layer}

    def _run(self, params: core.Params, x: jax.Array, key: core.Key | None = None):
        layer = self.network.layers[self.exit_after - 1]
        return self.network.features(params, x, layer, key=key)

    def apply(
        self, params: core.Params, x: jax.Array, *, key: core.Key | None = None
    ) -> tuple[jax.Array, jax.Array]:
        """Logits `[B, C]` of the exit and of the whole network."""
        network = {name: layer for name, layer in params.items() if name != "exit"}
        features, logits = self._run(network, x, key)
        kernel, bias = params["exit"]["kernel"], params["exit"]["bias"]
        return layers.dense(kernel, bias, layers.flatten_inputs(features)), logits

"""Base of all networks: fields, initial parameters, and the call of the module."""

import abc
import dataclasses
import math
from types import ModuleType
from typing import Any, ClassVar, Self

import jax
import jax.numpy as jnp

from fedjax_pfl import core
from fedjax_pfl.core import checks, statistics, struct
from fedjax_pfl.models import initializers, inputs, layers, objectives

__all__ = ["ImageNetwork", "Network"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Network(objectives.Supervised):
    """A network with its parameters in a linen module; abstract.

    It predicts logits of classes or, if the federation's targets are numbers, a
    number, with half the squared error as the loss.

    Leaves are named by layer, `<layer>/kernel` and `<layer>/bias`; the last layer is
    `head`. Dropout acts where `apply` gets a key.

    Attributes:
      initialization: `"pytorch"` (weights and biases uniform in +-1/sqrt(fan_in)),
        `"glorot"` or `"he"` (zero biases).
      bfloat16_products: whether operands of matrix products are rounded to bfloat16, in
        gradients, too; parameters and sums keep their dtype. On a CPU it is slower.
      class_weights: C weights of the classes' examples in the loss, > 0, or None; the
        reported loss has none.
      input_shape: shape of one input, or None until `for_federation`.
      num_classes: C; None until `for_federation`, and for targets that are numbers.
    """

    outputs_first: ClassVar = True
    initialization: initializers.Scheme = "pytorch"
    bfloat16_products: bool = False
    class_weights: tuple[float, ...] | None = struct.static_field(default=None, above=0)
    input_shape: tuple[int, ...] | None = struct.static_field(default=None, at_least=1)
    num_classes: int | None = struct.static_field(default=None, at_least=1)

    @abc.abstractmethod
    def _module(self, modules: ModuleType, classes: int) -> Any:
        """Returns the linen module with that many classes, one of `models.modules`."""

    def _known_module(self) -> Any:
        if self.input_shape is None:
            raise checks.InputError("Expected input_shape; call for_federation.")
        from fedjax_pfl.models import modules  # imports flax

        return self._module(modules, self.num_classes or 1)

    def for_federation(self, federation: core.Federation) -> Self:
        """Returns the model with the federation's input shape and classes, if any."""
        inputs.require_numbers(self, federation)
        return dataclasses.replace(
            self,
            input_shape=federation.input_shape,
            num_classes=inputs.targets_of(self, federation),
        )

    def _draw(self, key: core.Key) -> core.Params:
        module = self._known_module()
        variables = module.init(key, jnp.zeros((1, *(self.input_shape or ()))))
        return statistics.joined(variables["params"], variables.get(statistics.NAME))

    def _call(self, call: objectives.Call) -> tuple[jax.Array, Any]:
        running, weight = call.constants.running, call.constants.weight
        logits, updates = self._run(
            call.params, call.x, call.key, running, weight=weight
        )
        # Only training updates them.
        return logits, updates.get(statistics.NAME, running)

    @property
    def layers(self) -> tuple[str, ...]:
        """Names of the layers before the head, in order; () if it cannot be cut."""
        return getattr(self._known_module(), "layers", ())

    def features(
        self,
        params: core.Params,
        x: jax.Array,
        layer: str,
        *,
        key: core.Key | None = None,
    ) -> tuple[jax.Array, jax.Array]:
        """Returns outputs `[B, ...]` of one of `layers`, and the outputs of `apply`."""
        self._require_statistics(None)
        logits, variables = self._run(params, x, key, mutable=("intermediates",))
        # Values after the layer's activation and pool.
        return variables["intermediates"]["layers"][self.layers.index(layer)], logits

    def _run(
        self,
        params: core.Params,
        x: jax.Array,
        key: core.Key | None,
        running: core.Tree = None,
        **options: Any,
    ) -> tuple[jax.Array, dict[str, Any]]:
        """Applies the module to inputs in the parameters' dtype."""
        from fedjax_pfl.models import normalization  # imports flax

        module, dtype = self._known_module(), jnp.result_type(*jax.tree.leaves(params))
        variables = statistics.joined({"params": params}, running)
        x = x.astype(dtype)
        with layers.forms(bfloat16_products=self.bfloat16_products):
            result, state = normalization.run(module, variables, x, key=key, **options)
        return result if self.num_classes else result[:, 0], state


@dataclasses.dataclass(frozen=True, kw_only=True)
class ImageNetwork(Network):
    """A network on images `[height, width]` or `[height, width, channels]`."""

    smallest: ClassVar[int] = 1  # rows and columns that it needs at least

    @property
    def rows_per_example(self) -> int:
        """Number of rows of one image in the products with kernels, at most."""
        return math.prod((self.input_shape or ())[:2])

    def for_federation(self, federation: core.Federation) -> Self:
        """Returns the model with the federation's input shape and classes."""
        inputs.require_images(self, federation, self.smallest)
        return super().for_federation(federation)

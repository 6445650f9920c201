"""Objectives of local problems."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax

from fedjax_pfl import core

__all__ = ["DataLoss", "Objective"]

Objective = Callable[[core.Key | None, Any, core.Batch, Any], jax.Array]


@dataclasses.dataclass(frozen=True)
class DataLoss:
    """A model's loss on a batch, and perhaps a term that looks at no examples.

    An `Objective`; also the only one that tells the model's outputs, which models of
    series must be told of in local training.

    Attributes:
      model: the model.
      term: `(params, context) -> []`, or None.
    """

    model: core.Model
    term: Callable[[Any, Any], Any] | None = None

    def __call__(
        self, key: core.Key | None, params: Any, batch: core.Batch, context: Any
    ) -> jax.Array:
        """The value `[]`."""
        return self.with_outputs(key, params, batch, context)[0]

    def with_outputs(
        self, key: core.Key | None, params: Any, batch: core.Batch, context: Any
    ) -> tuple[jax.Array, Any]:
        """The value `[]` and the model's outputs.

        Args:
          key: `[]` key of the model's randomness, or None for none.
          params: parameters.
          batch: examples.
          context: what the term reads besides.

        Returns:
          Value and outputs.
        """
        model, constants = self.model, batch.constants
        outputs = model.apply(params, batch.x, key=key, constants=constants)
        value = model.loss(outputs, batch)
        if self.term is not None:
            value = value + self.term(params, context)
        return value, outputs

    def plus(self, term: Callable[[Any, Any], Any]) -> "DataLoss":
        """The same with a term `(params, context) -> []` in place of its own."""
        return dataclasses.replace(self, term=term)

"""Objectives of local problems, and how they meet models of sequences."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax

from fedjax_pfl import core
from fedjax_pfl.core import checks

__all__ = ["DataLoss", "Objective", "joint", "sampler", "stepwise"]

Objective = Callable[[core.Key | None, Any, core.Batch, Any], jax.Array]


@dataclasses.dataclass(frozen=True)
class DataLoss:
    """A model's loss on a batch, and perhaps a term that looks at no examples.

    An `Objective`; also the only one that tells the model's outputs, which a
    `SequenceModel` carries from step to step.

    Attributes:
      model: the model.
      term: `(params, context) -> []`, or None.
    """

    model: core.Model
    term: Callable[[Any, Any], Any] | None = None

    def __call__(
        self, key: core.Key | None, params: Any, batch: core.Batch, context: Any
    ) -> jax.Array:
        """Returns the value `[]`."""
        return self.with_outputs(key, params, batch, context)[0]

    def with_outputs(
        self, key: core.Key | None, params: Any, batch: core.Batch, context: Any
    ) -> tuple[jax.Array, Any]:
        """Returns the value `[]` and the model's outputs.

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
        """Returns the objective with another term `(params, context) -> []`."""
        return dataclasses.replace(self, term=term)


def joint(objective: Objective) -> Objective:
    """Returns an objective of the shared and the client's own parameters together.

    Args:
      objective: of shared parameters.

    Returns:
      `(key, (params, personal), batch, context) -> []`.
    """

    def both(key: core.Key | None, params: Any, batch: core.Batch, context: Any):
        shared, personal = params
        return objective(key, shared, batch.with_personal(personal), context)

    return both


def stepwise(objective: Objective, carry: Any) -> Callable[..., tuple[jax.Array, Any]]:
    """Returns an objective that also moves the carry of a `SequenceModel`.

    Args:
      objective: of the local problem.
      carry: what the solver carries from step to step; None for models without.

    Returns:
      `(key, params, batch, context, carry) -> ([], carry)`.

    Raises:
      InputError: if there is a carry and the objective does not tell its outputs.
    """
    if carry is None:
        return lambda key, params, batch, context, carry: (
            objective(key, params, batch, context),
            carry,
        )
    model = _sequence_model(objective)

    def moved(
        key: core.Key | None, params: Any, batch: core.Batch, context: Any, carry: Any
    ):
        recalled = dataclasses.replace(batch, x=model.recall(carry, batch))
        value, outputs = objective.with_outputs(  # pyright: ignore
            key, params, recalled, context
        )
        return value, model.remember(carry, batch, outputs)

    return moved


def sampler(
    objective: Objective, view: core.ClientView
) -> Callable[..., tuple[jax.Array, jax.Array]] | None:
    """Returns the sampler of `local_scan` that a `SequenceModel` wants, else None."""
    if view.carry is None:
        return None
    model = _sequence_model(objective)

    def piece(key: core.Key, data: core.ClientData, batch_size: int):
        return model.positions(key, view.round, data, batch_size)

    return piece


def _sequence_model(objective: Objective) -> core.SequenceModel:
    """Returns the model of an objective that tells its outputs."""
    model = getattr(objective, "model", None)
    if isinstance(objective, DataLoss) and isinstance(model, core.SequenceModel):
        return model
    raise checks.InputError(
        "Expected a method whose local objective is a model's loss and terms of the"
        " parameters with a model of series such as a portfolio policy, got a method"
        " with an objective of its own."
    )

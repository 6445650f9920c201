"""Objectives of local problems, and how they meet models of sequences."""

import abc
import dataclasses
from collections.abc import Callable
from typing import Any

import jax

from fedjax_pfl import core
from fedjax_pfl.core import checks, statistics, struct

__all__ = ["DataLoss", "Joint", "Objective", "StatefulLoss", "sampler", "stepwise"]

Objective = Callable[[core.Key | None, Any, core.Batch, Any], jax.Array]


class StatefulLoss(abc.ABC):
    """An `Objective` that also tells what a model keeps from batch to batch.

    A subclass defines `step`. Any other function `(key, params, batch, context) -> []`
    is an objective, too, of models that keep nothing.
    """

    @abc.abstractmethod
    def step(
        self,
        key: core.Key | None,
        params: Any,
        batch: core.Batch,
        context: Any,
        carry: Any,
    ) -> tuple[jax.Array, tuple[Any, Any]]:
        """Returns the value of a batch, and what is kept after it.

        Args:
          key: `[]` key of the model's randomness, or None for none.
          params: parameters.
          batch: examples; those of a `StatisticsModel` with the statistics of before.
          context: what the objective reads besides.
          carry: that of a `SequenceModel`; None for other models.

        Returns:
          The value `[]`, and a pair: the carry, and running statistics or None.
        """

    def __call__(
        self, key: core.Key | None, params: Any, batch: core.Batch, context: Any
    ) -> jax.Array:
        """Returns the value `[]` of a batch."""
        return self.step(key, params, batch, context, None)[0]

    def with_statistics(
        self, key: core.Key | None, params: Any, batch: core.Batch, context: Any
    ) -> tuple[jax.Array, Any]:
        """Returns the value `[]` of a batch, and running statistics after it."""
        value, (_, running) = self.step(key, params, batch, context, None)
        return value, running


@dataclasses.dataclass(frozen=True)
class DataLoss(StatefulLoss):
    """A model's loss on a batch, and perhaps a term that looks at no examples.

    Attributes:
      model: the model.
      term: `(params, context) -> []`, or None.
      network: `(params, context) -> [*P]` of the model, where what is trained is not
        all of it; or None.
    """

    model: core.Model
    term: Callable[[Any, Any], Any] | None = None
    network: Callable[[Any, Any], Any] | None = None

    __post_init__ = struct.check_fields

    def step(
        self,
        key: core.Key | None,
        params: Any,
        batch: core.Batch,
        context: Any,
        carry: Any,
    ) -> tuple[jax.Array, tuple[Any, Any]]:
        """Returns the value of a batch, and what is kept; see `StatefulLoss.step`."""
        model, seen = self.model, batch
        if carry is not None and isinstance(model, core.SequenceModel):
            seen = dataclasses.replace(batch, x=model.recall(carry, batch))
        whole = params if self.network is None else self.network(params, context)
        outputs, running = statistics.forward(model, whole, seen, key)
        value = model.loss(outputs, seen)
        if self.term is not None:
            value = value + self.term(params, context)
        if carry is not None and isinstance(model, core.SequenceModel):
            carry = model.remember(carry, batch, outputs)
        return value, (carry, running)

    def plus(self, term: Callable[[Any, Any], Any]) -> "DataLoss":
        """Returns the objective with another term `(params, context) -> []`."""
        return dataclasses.replace(self, term=term)


@dataclasses.dataclass(frozen=True)
class Joint(StatefulLoss):
    """An objective of the shared and the client's own parameters, a pair, together.

    Attributes:
      objective: of shared parameters.
    """

    objective: Objective

    def step(
        self,
        key: core.Key | None,
        params: Any,
        batch: core.Batch,
        context: Any,
        carry: Any,
    ) -> tuple[jax.Array, tuple[Any, Any]]:
        """Returns the value of a batch, and what is kept; see `StatefulLoss.step`."""
        shared, personal = params
        step = stepwise(self.objective, carry)
        return step(key, shared, batch.with_personal(personal), context, carry)


def stepwise(objective: Objective, carry: Any) -> Callable[..., Any]:
    """Returns `StatefulLoss.step` of an objective.

    Args:
      objective: of the local problem.
      carry: that of a `SequenceModel`; None for models without.
    """
    if carry is not None:
        _sequence_model(objective)
    if isinstance(objective, StatefulLoss):
        return objective.step

    def step(
        key: core.Key | None, params: Any, batch: core.Batch, context: Any, carry: None
    ):
        if core.Constants.of(batch.constants).running is not None:
            raise checks.InputError(
                "Expected a method whose local objective tells the running statistics"
                " of a model with batch normalization, as DataLoss does, got one with"
                " an objective of its own."
            )
        return objective(key, params, batch, context), (None, None)

    return step


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
    # Parts of a network train in turns, between which nothing would be remembered.
    if isinstance(objective, DataLoss) and objective.network is None:
        model = objective.model
        if isinstance(model, core.SequenceModel):
            return model
    raise checks.InputError(
        "Expected a method whose local objective is a model's loss and terms of the"
        " parameters with a model of series such as a portfolio policy, got a method"
        " with an objective of its own."
    )

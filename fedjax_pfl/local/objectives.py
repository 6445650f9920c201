"""Objectives of local problems, also for models of sequences."""

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
    """An `Objective` that also returns a model's state between batches.

    A subclass defines `step`. Any other function `(key, params, batch, context) -> []`
    is an objective, too, of models without such state.
    """

    @abc.abstractmethod
    def step(
        self,
        key: core.Key | None,
        params: core.Params,
        batch: core.Batch,
        context: core.Tree,
        carry: core.Tree,
    ) -> tuple[jax.Array, tuple[Any, Any]]:
        """Returns the value of a batch, and the model's state after it.

        Args:
          key: `[]` key of the model's randomness, or None for none.
          params: parameters.
          batch: examples; for a `StatisticsModel` with its current statistics.
          context: further input of the objective.
          carry: carry of a `SequenceModel`; None for other models.

        Returns:
          The value `[]`, and a pair: the carry, and running statistics or None.
        """

    def __call__(
        self,
        key: core.Key | None,
        params: core.Params,
        batch: core.Batch,
        context: core.Tree,
    ) -> jax.Array:
        """Returns the value `[]` of a batch."""
        return self.step(key, params, batch, context, None)[0]

    def with_statistics(
        self,
        key: core.Key | None,
        params: core.Params,
        batch: core.Batch,
        context: core.Tree,
    ) -> tuple[jax.Array, Any]:
        """Returns the value `[]` of a batch, and running statistics after it."""
        value, (_, running) = self.step(key, params, batch, context, None)
        return value, running


@dataclasses.dataclass(frozen=True)
class DataLoss(StatefulLoss):
    """A model's loss on a batch, and optionally a term of the parameters.

    Attributes:
      model: the model.
      term: `(params, context) -> []`, or None.
      network: `(params, context) -> [*P]`, all parameters of the model, if only a part
        is trained; or None.
    """

    model: core.Model
    term: Callable[[Any, Any], Any] | None = None
    network: Callable[[Any, Any], Any] | None = None

    __post_init__ = struct.check_fields

    def step(
        self,
        key: core.Key | None,
        params: core.Params,
        batch: core.Batch,
        context: core.Tree,
        carry: core.Tree,
    ) -> tuple[jax.Array, tuple[Any, Any]]:
        """Returns the value, and the model's state; see `StatefulLoss.step`."""
        model, inputs = self.model, batch
        if carry is not None and isinstance(model, core.SequenceModel):
            # Outputs at earlier moments are inputs of this batch.
            inputs = dataclasses.replace(batch, x=model.recall(carry, batch))
        full_params = params if self.network is None else self.network(params, context)
        outputs, running = statistics.forward(model, full_params, inputs, key)
        value = model.loss(outputs, inputs)
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
    """An objective of a pair: shared parameters and the client's personal ones.

    Attributes:
      objective: the objective of shared parameters.
    """

    objective: Objective

    def step(
        self,
        key: core.Key | None,
        params: core.Params,
        batch: core.Batch,
        context: core.Tree,
        carry: core.Tree,
    ) -> tuple[jax.Array, tuple[Any, Any]]:
        """Returns the value, and the model's state; see `StatefulLoss.step`."""
        shared, personal = params
        step = stepwise(self.objective, carry)
        return step(key, shared, batch.with_personal(personal), context, carry)


def stepwise(objective: Objective, carry: core.Tree) -> Callable[..., Any]:
    """Returns `StatefulLoss.step` of an objective, for a carry or None."""
    if carry is not None:
        _sequence_model(objective)
    if isinstance(objective, StatefulLoss):
        return objective.step

    def step(
        key: core.Key | None,
        params: core.Params,
        batch: core.Batch,
        context: core.Tree,
        carry: None,
    ):
        if core.Constants.of(batch.constants).running is not None:
            raise checks.InputError(
                "Expected a method with an objective that returns running statistics,"
                " such as DataLoss, for a model with batch normalization, got one with"
                " an objective of its own."
            )
        return objective(key, params, batch, context), (None, None)

    return step


def sampler(
    objective: Objective, view: core.ClientView
) -> Callable[..., tuple[jax.Array, jax.Array]] | None:
    """Returns the sampler of `local_scan` for a `SequenceModel`, else None."""
    if view.carry is None:
        return None
    model = _sequence_model(objective)

    def piece(key: core.Key, data: core.ClientData, batch_size: int):
        return model.positions(key, view.round, data, batch_size)

    return piece


def _sequence_model(objective: Objective) -> core.SequenceModel:
    """Returns the sequence model of an objective that exposes its outputs."""
    # Parts of a network train in turns, between which the carry would be lost.
    if isinstance(objective, DataLoss) and objective.network is None:
        model = objective.model
        if isinstance(model, core.SequenceModel):
            return model
    raise checks.InputError(
        "Expected a method whose local objective is a model's loss and terms of the"
        " parameters with a model of series such as a portfolio policy, got a method"
        " with an objective of its own."
    )

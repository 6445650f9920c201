"""Objectives of local problems, and how they meet models of sequences."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax

from fedjax_pfl import core
from fedjax_pfl.core import checks, statistics, struct

__all__ = ["DataLoss", "Joint", "Objective", "moving", "sampler", "stepwise"]

Objective = Callable[[core.Key | None, Any, core.Batch, Any], jax.Array]


@dataclasses.dataclass(frozen=True)
class DataLoss:
    """A model's loss on a batch, and perhaps a term that looks at no examples.

    An `Objective`; also the only one that tells the model's outputs, which a
    `SequenceModel` carries from step to step.

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
        whole = self._whole(params, context)
        outputs = self.model.apply(whole, batch.x, key=key, constants=batch.constants)
        return self._value(outputs, params, batch, context), outputs

    def with_statistics(
        self, key: core.Key | None, params: Any, batch: core.Batch, context: Any
    ) -> tuple[jax.Array, Any]:
        """Returns the value `[]` and running statistics after this batch.

        Args:
          key: see `with_outputs`.
          params: see `with_outputs`.
          batch: examples; those of a `StatisticsModel` with the statistics of before.
          context: see `with_outputs`.

        Returns:
          Value, and statistics or None.
        """
        whole = self._whole(params, context)
        outputs, running = statistics.forward(self.model, whole, batch, key)
        return self._value(outputs, params, batch, context), running

    def _whole(self, params: Any, context: Any) -> Any:
        """Returns the parameters of the model."""
        return params if self.network is None else self.network(params, context)

    def _value(
        self, outputs: jax.Array, params: Any, batch: core.Batch, context: Any
    ) -> jax.Array:
        """Returns the loss of outputs, with the term."""
        value = self.model.loss(outputs, batch)
        return value if self.term is None else value + self.term(params, context)

    def plus(self, term: Callable[[Any, Any], Any]) -> "DataLoss":
        """Returns the objective with another term `(params, context) -> []`."""
        return dataclasses.replace(self, term=term)


@dataclasses.dataclass(frozen=True)
class Joint:
    """An objective of the shared and the client's own parameters, a pair, together.

    Attributes:
      objective: of shared parameters.
    """

    objective: Objective

    def __call__(
        self, key: core.Key | None, params: Any, batch: core.Batch, context: Any
    ) -> jax.Array:
        """Returns the value `[]`."""
        shared, personal = params
        return self.objective(key, shared, batch.with_personal(personal), context)

    def with_statistics(
        self, key: core.Key | None, params: Any, batch: core.Batch, context: Any
    ) -> tuple[jax.Array, Any]:
        """Returns the value `[]` and running statistics after this batch."""
        shared, personal = params
        move = moving(self.objective)
        return move(key, shared, batch.with_personal(personal), context)


def moving(objective: Objective) -> Callable[..., tuple[jax.Array, Any]]:
    """Returns an objective that also moves running statistics, where there are some.

    Args:
      objective: of the local problem.

    Returns:
      `(key, params, batch, context) -> ([], statistics)`, the latter those of a
      `StatisticsModel` after the batch, or None.

    Raises:
      InputError: when called with statistics, if the objective does not tell them.
    """

    def moved(key: core.Key | None, params: Any, batch: core.Batch, context: Any):
        if core.Constants.of(batch.constants).running is None:
            return objective(key, params, batch, context), None
        if not hasattr(objective, "with_statistics"):
            raise checks.InputError(
                "Expected a method whose local objective tells the running statistics"
                " of a model with batch normalization, as DataLoss does, got one with"
                " an objective of its own."
            )
        return objective.with_statistics(  # pyright: ignore
            key, params, batch, context
        )

    return moved


def stepwise(objective: Objective, carry: Any) -> Callable[..., tuple[jax.Array, Any]]:
    """Returns an objective that also moves what is carried from step to step.

    Args:
      objective: of the local problem.
      carry: that of a `SequenceModel`; None for models without.

    Returns:
      `(key, params, batch, context, carry) -> ([], (carry, statistics))`.

    Raises:
      InputError: if there is a carry and the objective does not tell its outputs.
    """
    if carry is None:
        move = moving(objective)

        def stepped(
            key: core.Key | None, params: Any, batch: core.Batch, context: Any, _: None
        ):
            value, running = move(key, params, batch, context)
            return value, (None, running)

        return stepped
    model = _sequence_model(objective)

    def moved(
        key: core.Key | None, params: Any, batch: core.Batch, context: Any, carry: Any
    ):
        recalled = dataclasses.replace(batch, x=model.recall(carry, batch))
        value, outputs = objective.with_outputs(  # pyright: ignore
            key, params, recalled, context
        )
        return value, (model.remember(carry, batch, outputs), None)

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
    # Parts of a network train in turns, between which nothing would be remembered.
    is_whole = isinstance(objective, DataLoss) and objective.network is None
    if is_whole and isinstance(model, core.SequenceModel):
        return model
    raise checks.InputError(
        "Expected a method whose local objective is a model's loss and terms of the"
        " parameters with a model of series such as a portfolio policy, got a method"
        " with an objective of its own."
    )

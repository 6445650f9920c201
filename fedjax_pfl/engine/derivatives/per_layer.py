"""A value of a field for every layer, shared by all clients, learned by going back."""

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
import optax

from fedjax_pfl import core, results
from fedjax_pfl.core import struct, tree_paths
from fedjax_pfl.engine import groups
from fedjax_pfl.engine.derivatives import learning, own_values
from fedjax_pfl.engine.derivatives.objective import Objective
from fedjax_pfl.engine.options import as_keywords
from fedjax_pfl.round.process import FederatedProcess

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["LearnedPerLayer", "arrays_of", "learn_per_layer"]


@dataclasses.dataclass(frozen=True)
class LearnedPerLayer:
    """A field of which every layer has learned a value, the same for all clients.

    Attributes:
      result: trainings with the learned values, a point per seed.
      process: the process with the values, for as many clients as these had.
      field: dotted name of the field.
      objective: what was made small, as a string.
      layers: names of the model's arrays, such as `hidden_0/kernel`.
      sizes: how many numbers each of them has.
      values: `[L]` the learned values, those of the best training.
      steps: `[T]` the objective after each training, mean over seeds.
    """

    result: results.Result
    process: FederatedProcess
    field: str
    objective: str
    layers: tuple[str, ...]
    sizes: tuple[int, ...]
    values: np.ndarray
    steps: np.ndarray

    __post_init__ = struct.check_fields

    def table(self) -> "pd.DataFrame":
        """Returns a row per layer: its name, its parameters, and the field's value."""
        import pandas as pd

        columns = {"layer": self.layers, "parameters": self.sizes}
        return pd.DataFrame({**columns, self.field: self.values})

    def __str__(self) -> str:
        return (
            f"{self.table().to_string(index=False)}\n{self.objective}:"
            f" {self.steps[0]:.4g} before, {np.nanmin(self.steps):.4g} at best."
        )


@as_keywords("stop_when")
def learn_per_layer(
    key: core.Key,
    process: FederatedProcess,
    model: Any,
    spec: core.Specification,
    field: str,
    num_rounds: int,
    *,
    objective: str | Objective = learning.OBJECTIVE,
    seeds: Sequence[int] = (0, 1, 2),
    optimizer: optax.GradientTransformation | None = None,
    num_trainings: int = 10,
    **options: Any,
) -> LearnedPerLayer:
    """Learns a value of a field for every layer, by training again and again.

    A layer is an array of the model's parameters, a kernel or a bias. One backward pass
    gives the derivatives in all values, in a few times the time of a training. All
    seeds and clients share the values, which begin at the algorithm's, and move as
    those of `learn`.

    Args:
      key: `[]` key shared by all trainings.
      process: base process, without `per_client`.
      model: the model.
      spec: the federation's specification, with validation examples.
      field: dotted name of a number that layers may have for themselves: `lam` of Ditto
        and FLAME, `mu` of FedProx, and the learning rate and weight decay of `SGD` in
        these and in FedAvg.
      num_rounds: rounds R of a training.
      objective: see `hypergradients`; the mean over seeds counts.
      seeds: of trainings side by side.
      optimizer: of optax, on the numbers without limits; None takes Adam.
      num_trainings: trainings with derivatives, at least 1; one more is made with the
        best values.
      **options: those of `grid`, but `stop_when`; see `learn_per_client`.

    Returns:
      The values, and the trainings with them.

    Raises:
      InputError: if an argument does not fit, in one sentence; among others, for a
        field that layers cannot have for themselves.
      Interrupted: after `max_minutes`; checkpoints have all trainings until then.
    """
    learned = own_values.learn(
        (key, process, model, spec),
        *(field, num_rounds, lambda group: len(arrays_of(group))),
        objective=objective,
        seeds=seeds,
        optimizer=optimizer,
        num_trainings=num_trainings,
        options=options,
        caller="learn_per_layer",
    )
    (group,), (values,), (steps,) = learned.groups, learned.values, learned.steps
    arrays = arrays_of(group)
    own = np.tile(values, (group.federations[0].num_clients, 1))
    return LearnedPerLayer(
        result=learned.result,
        process=dataclasses.replace(process, per_client={field: own}),
        field=field,
        objective=learned.objective,
        layers=tuple(arrays),
        sizes=tuple(arrays.values()),
        values=values[0],
        steps=steps[0],
    )


def arrays_of(group: groups.Group) -> dict[str, int]:
    """Returns the sizes of the model's arrays of parameters by name, in JAX's order."""
    model = group.model.for_federation(group.federations[0])
    shapes = tree_paths.by_name(jax.eval_shape(model.init, group.keys[0]))
    return {name: int(np.prod(leaf.shape)) for name, leaf in shapes.items()}

"""Values of a field that every client has for itself, learned by going back."""

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import optax

from fedjax_pfl import core, results
from fedjax_pfl.core import struct
from fedjax_pfl.data import statistics
from fedjax_pfl.engine.derivatives import learning, own_values
from fedjax_pfl.engine.derivatives.objective import Objective
from fedjax_pfl.engine.options import as_keywords
from fedjax_pfl.round.process import FederatedProcess

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["LearnedPerClient", "learn_per_client"]


@dataclasses.dataclass(frozen=True)
class LearnedPerClient:
    """A field of which every client has learned its own value.

    Attributes:
      result: trainings with the learned values, a point per seed.
      field: dotted name of the field.
      objective: what was made small, as a string.
      values: `[G, N]` the learned values, those of the best training.
      steps: `[G, T]` the objective after each training.
      described: what is known of every seed's federation.
    """

    result: results.Result
    field: str
    objective: str
    values: np.ndarray
    steps: np.ndarray
    described: tuple[statistics.PartitionStatistics, ...]

    __post_init__ = struct.check_fields

    def table(self) -> "pd.DataFrame":
        """Returns a row per seed and client.

        Returns:
          Columns seed, client, the field's value, `train_examples`, and, of classes,
          `label_skew`: half of the sum over classes of the differences between the
          shares of the client's labels and of everybody's, 0 to 1.
        """
        import pandas as pd

        points = [point for group in self.result.groups for point in group.points]
        parts = []
        for point, known, own in zip(points, self.described, self.values, strict=True):
            columns: dict[str, Any] = {
                "seed": point.get("seed"),
                "client": np.arange(len(own)),
                self.field: own,
                "train_examples": known.num_train,
            }
            if known.label_counts is not None:
                columns["label_skew"] = known.label_distance
            parts.append(pd.DataFrame(columns))
        return pd.concat(parts, ignore_index=True)

    def __str__(self) -> str:
        from scipy import stats  # only where it is shown

        table = self.table()
        columns = [
            name
            for name in ("train_examples", "label_skew")
            if name in table and len({*table[name]}) > 1
        ]
        told = ", ".join(
            f"{stats.spearmanr(table[self.field], table[c])[0]:+.2f} with {c}"
            for c in columns
        )
        quartiles = table[self.field].quantile([0, 0.25, 0.5, 0.75, 1])
        shown = ", ".join(f"{value:.3g}" for value in quartiles)
        return (
            f"{self.field} of {self.values.shape[1]} clients, least to largest by"
            f" quarters: {shown}. Rank correlations: {told or 'none'}."
            f" {self.objective}:"
            f" {self.steps[:, 0].mean():.4g} before,"
            f" {self.steps.min(1).mean():.4g} at best."
        )


@as_keywords("stop_when")
def learn_per_client(
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
) -> LearnedPerClient:
    """Learns a value of a field for every client, by training again and again.

    One backward pass gives the derivatives in all values, in a few times the time of a
    training. Every seed has its own clients, and so its own values. They begin at the
    algorithm's, and move as those of `learn`.

    Args:
      key: `[]` key shared by all trainings.
      process: base process, without `per_client`.
      model: the model.
      spec: the federation's specification, with validation examples.
      field: dotted name of a traced number of the algorithm that clients may have for
        themselves, such as `algorithm.lam`.
      num_rounds: rounds R of a training.
      objective: see `hypergradients`.
      seeds: of trainings side by side.
      optimizer: of optax, on the numbers without limits; None takes Adam.
      num_trainings: trainings with derivatives, at least 1; one more is made with the
        best values.
      **options: those of `grid`, but `stop_when`, of the last training. With
        `checkpoints`, there is one after every training: a call that was interrupted
        goes on from it, and ends with the same values bit for bit.

    Returns:
      The values, and the trainings with them.

    Raises:
      InputError: if an argument does not fit, in one sentence.
      Interrupted: after `max_minutes`; checkpoints have all trainings until then.
    """
    learned = own_values.learn(
        (key, process, model, spec),
        *(field, num_rounds, lambda group: None),
        objective=objective,
        seeds=seeds,
        optimizer=optimizer,
        num_trainings=num_trainings,
        options=options,
        caller="learn_per_client",
    )
    return LearnedPerClient(
        result=learned.result,
        field=field,
        objective=learned.objective,
        values=np.concatenate(learned.values),
        steps=np.concatenate(learned.steps),
        described=tuple(known for g in learned.groups for known in g.described),
    )

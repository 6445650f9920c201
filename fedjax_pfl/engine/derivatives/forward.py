"""Derivatives of trainings with respect to their hyperparameters, forward mode."""

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fedjax_pfl import core, results
from fedjax_pfl.core import checks
from fedjax_pfl.engine import grids, groups, simulation, validate
from fedjax_pfl.engine.derivatives import fields as fields_
from fedjax_pfl.engine.derivatives import trainer
from fedjax_pfl.engine.derivatives.objective import Objective
from fedjax_pfl.engine.options import Options, as_keywords, time_limit
from fedjax_pfl.engine.process import FederatedProcess
from fedjax_pfl.results import learned

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Hypergradients", "hypergradients", "measured"]


@dataclasses.dataclass(frozen=True)
class Hypergradients:
    """Trainings with the derivatives of an objective in some of their fields.

    Attributes:
      result: the trainings; their histories have objective, values and derivatives at
        every evaluation among the diagnostics.
      fields: dotted names of the p fields.
      objective: what was differentiated, as a string.
      held_fixed: what parts of the process choose, which the derivatives hold fixed:
        they are exact where a small change of the fields does not change the choice.
    """

    result: results.Result
    fields: tuple[str, ...]
    objective: str
    held_fixed: tuple[str, ...]

    @property
    def value(self) -> np.ndarray:
        """The objective `[G]` after the last round, of every grid point."""
        return self._last(f"{learned.OBJECTIVE}{self.objective}")

    @property
    def derivatives(self) -> dict[str, np.ndarray]:
        """Derivatives `[G]` of the objective by field, of every grid point."""
        return {n: self._last(f"{learned.DERIVATIVE}{n}") for n in self.fields}

    def _last(self, name: str) -> np.ndarray:
        """Returns the last values of a diagnostic."""
        return np.concatenate([g.diagnostics[name][:, -1] for g in self.result.groups])

    def table(self) -> "pd.DataFrame":
        """Returns a row per grid point.

        Returns:
          The point's axes, the fields' values, `objective`, and a column `d <field>`
          per derivative.
        """
        import pandas as pd

        points = [point for group in self.result.groups for point in group.points]
        columns: dict[str, Any] = dict(pd.DataFrame(points, range(len(points))))
        for name in self.fields:
            columns[name] = self._last(f"{learned.VALUE}{name}")
        columns["objective"] = self.value
        columns |= {f"d {name}": v for name, v in self.derivatives.items()}
        return pd.DataFrame(columns)

    def __str__(self) -> str:
        text = f"{self.table().to_string(index=False)}\nDerivatives of {self.objective}"
        if self.held_fixed:
            text += f", with held fixed: {'; '.join(self.held_fixed)}"
        return f"{text}."


@as_keywords("stop_when")
def hypergradients(
    key: core.Key,
    process: FederatedProcess,
    model: Any,
    spec: core.Specification | core.Federation,
    fields: str | Sequence[str],
    num_rounds: int,
    *,
    objective: str | Objective = "validation:loss",
    axes: grids.Axes | None = None,
    **options: Any,
) -> Hypergradients:
    """Trains, and differentiates an objective in fields of the process.

    Exact derivatives of the program that runs, in forward mode: the derivatives of all
    states go with them through shuffles, cohorts, attacks and aggregation. For p fields
    this takes about 1 + p trainings, and memory for 1 + p states; no round is stored.

    Args:
      key: `[]` key from `jax.random.key(seed)`.
      process: algorithm, aggregator, participation, work, attack.
      model: the model.
      spec: the federation's specification; or a federation, without axes.
      fields: dotted names of traced numbers, such as `algorithm.lam`.
      num_rounds: rounds R, at least 1.
      objective: data, metric and model, for example `validation:loss:personal`, a mean
        over honest clients with such examples; `:worst_decile` or `:client=3` behind it
        takes those clients. See `derivatives.objective.Objective`.
      axes: grid points, as `grid` takes them, for example `{"seed": range(5)}`: every
        point has its derivatives, all of them from one program.
      **options: those of `grid`, but `stop_when`.

    Returns:
      Values and derivatives, with the trainings.

    Raises:
      InputError: if an argument does not fit: a field that is static, None or unknown,
        an objective on test data, a part without derivatives.
      Interrupted: after `max_minutes`.
    """
    is_spec = not isinstance(spec, core.Federation)
    validate.check(key, process, model, spec, spec=is_spec)
    names = fields_.check(process, fields)
    wanted = Objective.parse(objective)
    options = measured(options, wanted)
    parsed = Options(num_rounds=num_rounds, **options)
    time_is_up = time_limit(parsed.max_minutes)
    if is_spec:
        found = grids.groups_of(key, process, model, spec, {} if axes is None else axes)
    elif axes is not None:
        raise checks.InputError(
            "Expected a specification such as fp.FederationSpec with axes, got a"
            " federation."
        )
    else:
        found = [groups.single(key, process, model, spec)]
    what = trainer.Differentiation(names, wanted)
    planned = simulation.check_groups(found, parsed, trainer=what)
    result = simulation.run_groups(planned, parsed, trainer=what, interrupt=time_is_up)
    return Hypergradients(
        result, names, str(what.model_of(planned[0])), fields_.held_fixed(process)
    )


def measured(options: dict[str, Any], objective: Objective) -> dict[str, Any]:
    """Returns options that evaluate on the objective's data, where that is open."""
    if options.get("evaluate_on") is None:
        data = dict.fromkeys(("test", "validation", objective.data))
        options = options | {"evaluate_on": tuple(data)}
    return options

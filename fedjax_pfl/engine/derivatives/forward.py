"""Derivatives of trainings with respect to their hyperparameters."""

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fedjax_pfl import core, results
from fedjax_pfl.core import checks
from fedjax_pfl.engine import grids, groups, simulation, validate
from fedjax_pfl.engine.derivatives import fields as fields_
from fedjax_pfl.engine.derivatives import reverse, trainer
from fedjax_pfl.engine.derivatives.objective import Objective
from fedjax_pfl.engine.options import Options, as_keywords, time_limit
from fedjax_pfl.engine.process import FederatedProcess
from fedjax_pfl.results import learned

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Hypergradients", "hypergradients", "measured"]


@dataclasses.dataclass(frozen=True)
class Hypergradients:
    """Derivatives of an objective of trainings in some of their fields.

    Attributes:
      fields: dotted names of the p fields.
      objective: what was differentiated, as a string.
      points: values by name of every grid point.
      values: by field, `[G]` its values, or `[G, N]` those per client.
      value: the objective `[G]` after the last round.
      derivatives: by field, those of the objective, shaped like its values.
      held_fixed: what parts of the process choose, which the derivatives hold fixed:
        they are exact where a small change of the fields does not change the choice.
      result: the trainings, in forward mode; their histories have all of this at every
        evaluation among the diagnostics. None in reverse mode.
    """

    fields: tuple[str, ...]
    objective: str
    points: tuple[dict[str, Any], ...]
    values: dict[str, np.ndarray]
    value: np.ndarray
    derivatives: dict[str, np.ndarray]
    held_fixed: tuple[str, ...]
    result: results.Result | None = None

    def table(self) -> "pd.DataFrame":
        """Returns a row per grid point, of values per client one per point and client.

        Returns:
          The point's axes, `client` where there are values per client, the fields'
          values, `objective`, and a column `d <field>` per derivative.
        """
        import pandas as pd

        count = max(v.shape[1] if v.ndim > 1 else 0 for v in self.values.values())
        rows = [
            point
            | ({"client": client} if count else {})
            | {n: _entry(self.values[n], k, client) for n in self.fields}
            | {"objective": float(self.value[k])}
            | {f"d {n}": _entry(self.derivatives[n], k, client) for n in self.fields}
            for k, point in enumerate(self.points)
            for client in range(max(count, 1))
        ]
        return pd.DataFrame(rows)

    def __str__(self) -> str:
        text = f"{self.table().to_string(index=False)}\nDerivatives of {self.objective}"
        if self.held_fixed:
            text += f", with held fixed: {'; '.join(self.held_fixed)}"
        return f"{text}."


def _entry(values: np.ndarray, point: int, client: int) -> float:
    """Returns a point's number, or that of one of its clients."""
    return float(values[point] if values.ndim == 1 else values[point, client])


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

    Derivatives in values per client, `per_client.algorithm.lam` of a process that has
    `per_client={"algorithm.lam": values}`, go back through the rounds, those of other
    fields with them. About the square root of the number of rounds of states is kept,
    with all steps of as many rounds.

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
    for group in found:
        fields_.check(group.processes[0], names)
    planned = simulation.check_groups(found, parsed, trainer=what)
    models = {what.model_of(group).model for group in planned}
    if len(models) > 1:
        raise checks.InputError(
            "Expected an objective that names a model where methods differ in it, got"
            f" '{wanted}', of {' and '.join(sorted(map(str, models)))}."
        )
    shared: dict[str, Any] = {
        "fields": names,
        "objective": str(what.model_of(planned[0])),
        "points": tuple(point for group in planned for point in group.group.points),
        "held_fixed": fields_.held_fixed(process),
    }
    if any(name.startswith(fields_.PER_CLIENT) for name in names):
        parts = [reverse.go_back(group, what) for group in planned]
        value = np.concatenate([part[0] for part in parts])
        values, slopes = (
            {n: np.concatenate([part[k][n] for part in parts]) for n in names}
            for k in (1, 2)
        )
        return Hypergradients(value=value, values=values, derivatives=slopes, **shared)
    result = simulation.run_groups(planned, parsed, trainer=what, interrupt=time_is_up)

    def last(name: str) -> np.ndarray:
        return np.concatenate([g.diagnostics[name][:, -1] for g in result.groups])

    return Hypergradients(
        value=last(f"{learned.OBJECTIVE}{shared['objective']}"),
        values={n: last(f"{learned.VALUE}{n}") for n in names},
        derivatives={n: last(f"{learned.DERIVATIVE}{n}") for n in names},
        result=result,
        **shared,
    )


def measured(options: dict[str, Any], objective: Objective) -> dict[str, Any]:
    """Returns options that evaluate on the objective's data, where that is open."""
    if options.get("evaluate_on") is None:
        data = dict.fromkeys(("test", "validation", objective.data))
        options = options | {"evaluate_on": tuple(data)}
    return options

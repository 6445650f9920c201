"""Derivatives of trainings with respect to their hyperparameters."""

import dataclasses
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fedjax_pfl import core, results
from fedjax_pfl.core import checks, struct
from fedjax_pfl.engine import grids, groups, simulation, validate
from fedjax_pfl.engine.derivatives import fields as fields_
from fedjax_pfl.engine.derivatives import implicit as implicit_
from fedjax_pfl.engine.derivatives import reverse, trainer
from fedjax_pfl.engine.derivatives.objective import Objective
from fedjax_pfl.engine.options import Options, as_keywords, time_limit
from fedjax_pfl.numerics import gmres
from fedjax_pfl.results import learned
from fedjax_pfl.round.process import FederatedProcess

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Hypergradients", "hypergradients"]


@dataclasses.dataclass(frozen=True)
class Hypergradients:
    """Derivatives of an objective of trainings in some of their fields.

    Attributes:
      fields: dotted names of the p fields.
      objective: what was differentiated, as a string.
      points: values by name of every grid point.
      values: by field, `[G]` its values, or those per client, `[G, N]` or, with one
        per layer, `[G, N, L]`.
      value: the objective `[G]` after the last round.
      derivatives: by field, those of the objective, shaped like its values.
      held_fixed: what parts of the process choose, which the derivatives hold fixed:
        they are exact where a small change of the fields does not change the choice.
      result: the trainings; in forward mode their histories have all of this at every
        evaluation among the diagnostics. None in reverse mode.
      fixed_point: `[G]` how far the last round still moved the states, relative to
        them, where derivatives are those of a fixed point; else None.
      residual: by field, that of its linear system, relative to the right-hand side and
        shaped like its values; None as `fixed_point`.
      tolerance: what both are at most where the derivatives are met; None as they are.
    """

    fields: tuple[str, ...]
    objective: str
    points: tuple[dict[str, Any], ...]
    values: dict[str, np.ndarray]
    value: np.ndarray
    derivatives: dict[str, np.ndarray]
    held_fixed: tuple[str, ...]
    result: results.Result | None = None
    fixed_point: np.ndarray | None = None
    residual: dict[str, np.ndarray] | None = None
    tolerance: float | None = None

    __post_init__ = struct.check_fields

    @property
    def _errors(self) -> tuple[np.ndarray, np.ndarray] | None:
        """Distances from fixed points and largest residuals, `[G]` each."""
        if self.fixed_point is None or self.residual is None:
            return None
        count = len(self.fixed_point)
        parts = [r.reshape(count, -1) for r in self.residual.values()]
        return self.fixed_point, np.concatenate(parts, axis=1).max(axis=1)

    @property
    def is_met(self) -> np.ndarray:
        """`bool[G]` whether the points' derivatives are as exact as is wanted.

        Those at a fixed point are where it was reached and the systems were solved;
        all others, which are exact for any number of rounds, always are.
        """
        if self._errors is None:
            return np.ones(len(self.value), bool)
        return np.all([e <= self.tolerance for e in self._errors], axis=0)

    def table(self) -> "pd.DataFrame":
        """Returns a row per grid point, client and layer, as there are values for them.

        Returns:
          The point's axes, `client` where there are values per client, `layer`, the
          number of an array of parameters, where there are those, the fields'
          values, `objective`, and a column `d <field>` per derivative; at fixed points
          `fixed point`, and as `residual` the largest one.
        """
        import pandas as pd

        shapes = [v.shape + (0,) * (3 - v.ndim) for v in self.values.values()]
        clients, layers = (max(shape[k] for shape in shapes) for k in (1, 2))
        errors = dict(
            zip(("fixed point", "residual"), self._errors or (), strict=False)
        )
        rows = [
            point
            | ({"client": client} if clients else {})
            | ({"layer": layer} if layers else {})
            | {n: _entry(self.values[n], k, client, layer) for n in self.fields}
            | {"objective": float(self.value[k])}
            | {
                f"d {n}": _entry(self.derivatives[n], k, client, layer)
                for n in self.fields
            }
            | {name: float(values[k]) for name, values in errors.items()}
            for k, point in enumerate(self.points)
            for client in range(max(clients, 1))
            for layer in range(max(layers, 1))
        ]
        return pd.DataFrame(rows)

    def __str__(self) -> str:
        text = f"{self.table().to_string(index=False)}\nDerivatives of {self.objective}"
        if self.held_fixed:
            text += f", with held fixed: {'; '.join(self.held_fixed)}"
        if self._errors is None:
            return f"{text}."
        return f"{text}, at a fixed point. {self._unmet()}".rstrip()

    def _unmet(self) -> str:
        """Returns the reasons why derivatives are not exact; empty if all are."""
        if self._errors is None or self.is_met.all():
            return ""
        move, rest = (float(np.max(errors)) for errors in self._errors)
        return (
            f"{(~self.is_met).sum()} of {len(self.value)} points are not exact to"
            f" {self.tolerance:.1e}: a round still moves the state by {move:.1e} of its"
            f" size, and linear systems keep {rest:.1e} of their right-hand sides."
        )


def _entry(values: np.ndarray, *place: int) -> float:
    """Returns a point's number, or that of one of its clients, or of its layers."""
    return float(values[place[: values.ndim]])


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
    implicit: bool = False,
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

    With `implicit` the rounds are trained without derivatives, and the state that they
    led to is differentiated as their fixed point, by one linear system per value; local
    solvers that end by a tolerance count as exact. The rounds must all be alike: full
    batches, all clients, constant steps.

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
      implicit: whether to differentiate at the fixed point of a round. How far it was
        reached, and how well systems were solved, is in the result, with a warning
        where that is not enough.
      **options: those of `grid`, but `stop_when`.

    Returns:
      Values and derivatives, with the trainings.

    Raises:
      InputError: if an argument does not fit: a field that is static, None or unknown,
        an objective on test data, a part without derivatives, rounds without a fixed
        point.
      Interrupted: after `max_minutes`.
    """
    validate.check(key, process, model, spec)
    checks.boolean("implicit", implicit)
    names = fields_.check(process, fields, implicit=implicit)
    wanted = Objective.parse(objective)
    parsed = Options(num_rounds=num_rounds, **wanted.measured(options))
    time_is_up = time_limit(parsed.max_minutes)
    if not isinstance(spec, core.Federation):
        found = grids.groups_of(key, process, model, spec, {} if axes is None else axes)
    elif axes is not None:
        raise checks.InputError(
            "Expected a specification such as fp.FederationSpec with axes, got a"
            " federation."
        )
    else:
        found = [groups.single(key, process, model, spec)]
    what = (implicit_.Implicit if implicit else trainer.Differentiation)(names, wanted)
    for group in found:
        fields_.check(group.processes[0], names, implicit=implicit)
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
        "held_fixed": fields_.held_fixed(process, implicit=implicit),
    }
    if isinstance(what, implicit_.Implicit):
        shared["result"] = simulation.run_groups(
            planned, parsed, trainer=what, interrupt=time_is_up
        )
        return _solved(what, planned, shared)
    if any(name.startswith(fields_.PER_CLIENT) for name in names):
        parts = [reverse.go_back(group, what) for group in planned]
        value, values, slopes = zip(*parts, strict=True)
        return Hypergradients(
            value=np.concatenate(value),
            values=_joined(values),
            derivatives=_joined(slopes),
            **shared,
        )
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


def _joined(parts: Sequence[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """Returns the arrays of all groups by name, one behind the other."""
    return {n: np.concatenate([part[n] for part in parts]) for n in parts[0]}


def _solved(
    what: implicit_.Implicit,
    planned: Sequence[groups.PlannedGroup],
    shared: dict[str, Any],
) -> Hypergradients:
    """Returns what was found at fixed points; warns where that is not enough."""
    solutions = [what.solution(group) for group in planned]
    taken = [fields_.taken(p, what.names) for g in planned for p in g.processes]
    value = np.concatenate([solution.value for solution in solutions])
    made = Hypergradients(
        value=value,
        values={n: np.stack([np.asarray(own[n]) for own in taken]) for n in what.names},
        derivatives=_joined([s.derivatives for s in solutions]),
        fixed_point=np.concatenate([solution.fixed_point for solution in solutions]),
        residual=_joined([s.residual for s in solutions]),
        tolerance=gmres.tolerance(value.dtype),
        **shared,
    )
    if not made.is_met.all():
        text = str(made).rpartition("\n")[2]
        warnings.warn(f"{text} Train longer, or solve more exactly.", stacklevel=4)
    return made

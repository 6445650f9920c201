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
      objective: the differentiated objective, as a string.
      points: values by name of every grid point.
      values: by field, `[G]` its values, or those per client, `[G, N]` or, with one
        per layer, `[G, N, L]`.
      value: the objective `[G]` after the last round.
      derivatives: by field, derivatives of the objective, shaped like its values.
      held_fixed: choices of parts of the process that the derivatives hold fixed: they
        are exact if a small change of the fields does not change the choice.
      result: the trainings; in forward mode their diagnostics have all of this at every
        evaluation. None in reverse mode.
      fixed_point: `[G]` distance by which the last round moved the states, relative to
        their size, for derivatives at a fixed point; else None.
      residual: by field, residual of its linear system, relative to the right-hand side
        and shaped like its values; None without `fixed_point`.
      tolerance: most of both for exact derivatives; None without `fixed_point`.
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
        """`bool[G]` whether the points' derivatives are exact to the tolerance.

        Those at a fixed point are if it was reached and the systems were solved; all
        others are exact for any number of rounds.
        """
        if self._errors is None:
            return np.ones(len(self.value), bool)
        return np.all([e <= self.tolerance for e in self._errors], axis=0)

    def table(self) -> "pd.DataFrame":
        """Returns a row per grid point and, if these have values, client and layer.

        Returns:
          The point's axes, `client` for values per client, `layer`, the number of an
          array of parameters, for values per layer, the fields' values, `objective`,
          and a column `d <field>` per derivative; at fixed points `fixed point`, and as
          `residual` the largest one.
        """
        import pandas as pd

        num_axes = max(values.ndim for values in self.values.values())
        shapes = [values.shape + (1, 1) for values in self.values.values()]
        shape = np.broadcast_shapes(*(shape[:3] for shape in shapes))  # [G, N, L]

        def column(values: np.ndarray) -> np.ndarray:
            """Repeats values that clients or layers share."""
            values = values.reshape((values.shape + (1, 1))[:3]).astype(float)
            return np.broadcast_to(values, shape).ravel()

        point, *places = np.indices(shape).reshape(3, -1)
        columns = dict(zip(("client", "layer")[: num_axes - 1], places, strict=False))
        columns |= {name: column(self.values[name]) for name in self.fields}
        columns["objective"] = column(self.value)
        columns |= {f"d {name}": column(self.derivatives[name]) for name in self.fields}
        errors = zip(("fixed point", "residual"), self._errors or (), strict=False)
        columns |= {name: column(values) for name, values in errors}
        rows = pd.DataFrame(list(self.points)).iloc[point].reset_index(drop=True)
        # Axes that the first point lacks come last.
        names = dict.fromkeys((*self.points[0], *columns, *rows))
        return rows.assign(**columns)[[*names]]

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
        move, residual = (float(np.max(errors)) for errors in self._errors)
        return (
            f"{(~self.is_met).sum()} of {len(self.value)} points are not exact to"
            f" {self.tolerance:.1e}: a round still moves the state by {move:.1e} of its"
            f" size, and linear systems keep {residual:.1e} of their right-hand sides."
        )


@as_keywords("stop_when")
def hypergradients(
    key: core.Key,
    process: FederatedProcess,
    model: core.Model,
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

    Derivatives are exact for the program that runs. In forward mode, derivatives of all
    states pass with them through shuffles, cohorts, attacks and aggregation. This takes
    about 1 + p trainings for p fields, and memory for 1 + p states; no round is stored.

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
      implicit: whether to differentiate at the fixed point of a round. The result has
        the distance from it and residuals of systems, with a warning if not exact.
      **options: as for `grid`, without `stop_when`.

    Returns:
      Values and derivatives, with the trainings.

    Raises:
      InputError: if an argument does not fit: a field that is static, None or unknown,
        an objective on test data, a part without derivatives, rounds without a fixed
        point.
      Interrupted: after `max_minutes`.
    """
    validate.check(key, process, model, spec)
    names = fields_.check(process, fields, implicit=implicit)
    goal = Objective.parse(objective)
    parsed = Options(num_rounds=num_rounds, **goal.measured(options))
    time_is_up = time_limit(parsed.max_minutes)
    if not isinstance(spec, core.Federation):
        axes = {} if axes is None else axes
        unplanned = grids.groups_of(key, process, model, spec, axes)
    elif axes is not None:
        raise checks.InputError(
            "Expected a specification such as fp.FederationSpec with axes, got a"
            " federation."
        )
    else:
        unplanned = [groups.single(key, process, model, spec)]
    maker = (implicit_.Implicit if implicit else trainer.Differentiation)(names, goal)
    for group in unplanned:
        fields_.check(group.processes[0], names, implicit=implicit)
    planned = simulation.check_groups(unplanned, parsed, trainer=maker)
    # Without a named model every method takes its own: derivatives of several would be
    # mixed in one column.
    models = {maker.model_of(group).model for group in planned}
    if len(models) > 1:
        raise checks.InputError(
            "Expected an objective that names a model where methods differ in it, got"
            f" '{goal}', of {' and '.join(sorted(map(str, models)))}."
        )
    shared: dict[str, Any] = {
        "fields": names,
        "objective": str(maker.model_of(planned[0])),
        "points": tuple(point for group in planned for point in group.group.points),
        "held_fixed": fields_.held_fixed(process, implicit=implicit),
    }
    if isinstance(maker, implicit_.Implicit):
        shared["result"] = simulation.run_groups(
            planned, parsed, trainer=maker, interrupt=time_is_up
        )
        return _solved(maker, planned, shared)
    # Forward, N values per client would take N trainings; backward takes one pass.
    if any(name.startswith(fields_.PER_CLIENT) for name in names):
        parts = []
        for group in planned:
            backward = reverse.Backward(group, maker)
            parts.append((*backward(), backward.values()))
        value, slopes, values = zip(*parts, strict=True)
        return Hypergradients(
            value=np.concatenate(value),
            values=_joined(values),
            derivatives=_joined(slopes),
            **shared,
        )
    result = simulation.run_groups(planned, parsed, trainer=maker, interrupt=time_is_up)

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
    """Concatenates the arrays of all groups by name."""
    return {n: np.concatenate([part[n] for part in parts]) for n in parts[0]}


def _solved(
    maker: implicit_.Implicit,
    planned: Sequence[groups.PlannedGroup],
    shared: dict[str, Any],
) -> Hypergradients:
    """Returns the derivatives at fixed points; warns if they are not exact."""
    solutions = [maker.solutions[id(group)] for group in planned]
    taken = [fields_.taken(p, maker.names) for g in planned for p in g.processes]
    value = np.concatenate([solution.value for solution in solutions])
    derivatives = Hypergradients(
        value=value,
        values={n: np.stack([np.asarray(p[n]) for p in taken]) for n in maker.names},
        derivatives=_joined([s.derivatives for s in solutions]),
        fixed_point=np.concatenate([solution.fixed_point for solution in solutions]),
        residual=_joined([s.residual for s in solutions]),
        tolerance=gmres.tolerance(value.dtype),
        **shared,
    )
    if not derivatives.is_met.all():
        text = str(derivatives).rpartition("\n")[2]
        warnings.warn(f"{text} Train longer, or solve more exactly.", stacklevel=4)
    return derivatives

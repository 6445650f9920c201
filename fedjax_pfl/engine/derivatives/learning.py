"""Hyperparameters that are learned: moved by an optimizer along their derivatives."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import optax

from fedjax_pfl import core, results
from fedjax_pfl.core import checks, struct
from fedjax_pfl.engine import grids, groups, simulation, validate
from fedjax_pfl.engine.derivatives import descent, learner, trainer, values
from fedjax_pfl.engine.derivatives import fields as fields_
from fedjax_pfl.engine.derivatives.objective import Objective
from fedjax_pfl.engine.options import Options, as_keywords, time_limit
from fedjax_pfl.results import checkpoint, learned
from fedjax_pfl.round.process import FederatedProcess

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Learned", "learn"]

_PER = ("all", "client", "layer")
_TRAININGS = 10


@dataclasses.dataclass(frozen=True, eq=False)
class Learned:
    """Fields that were learned, with the trainings.

    Attributes:
      result: for all clients, the trainings that learned; if they restart, rounds are
        counted on from one to the next. Per client and layer, the training with the
        learned values, a point per seed.
      process: the process with the values of the start, or per client of the seed, that
        ended best.
      fields: dotted names of the fields.
      per: `all` if clients share the values, else `client` or `layer`.
      objective: the objective of the derivatives, as a string.
      held_fixed: choices that the derivatives hold fixed; see `Hypergradients`.
      best: by field, the learned values of the best training: a number of all clients,
        `[G, N]` of the clients of every seed, or `[L]` of the layers.
      path: a row per step. For all clients see `results.learned.path`; per client
        `seed`, `training` and `objective`; per layer the last two.
      values: a row per start, the best first, as in `results.learned.settings`; or per
        seed and client, with the number of training examples and, of classes,
        `label_skew`: half of the sum over classes of the differences between the shares
        of the client's labels and of all labels, 0 to 1; or per array of parameters.
    """

    result: results.Result
    process: FederatedProcess
    fields: tuple[str, ...]
    per: str
    objective: str
    held_fixed: tuple[str, ...]
    best: dict[str, Any]
    path: "pd.DataFrame"
    values: "pd.DataFrame"

    __post_init__ = struct.check_fields

    def __str__(self) -> str:
        table = self.values.to_string(index=False)
        if self.per == "all":
            best = ", ".join(f"{name} = {v:.4g}" for name, v in self.best.items())
            return f"{table}\nLearned on {self.objective}: {best}."
        if self.per == "client":
            table = "\n".join(_distribution(self.values, name) for name in self.fields)
        sign, count = learned.sign(self.objective), len({*self.path["training"]})
        steps = self.path["objective"].to_numpy().reshape(-1, count)
        best = sign * np.nanmin(sign * steps, axis=1).mean()
        return (
            f"{table}\n{self.objective}: {steps[:, 0].mean():.4g} before,"
            f" {best:.4g} at best."
        )


def _distribution(table: "pd.DataFrame", name: str) -> str:
    """Describes the distribution of a field over clients, and its correlations."""
    from scipy import stats  # only when it is shown

    columns = [
        column
        for column in ("train_examples", "label_skew")
        if column in table and len({*table[column]}) > 1
    ]
    correlations = ", ".join(
        f"{stats.spearmanr(table[name], table[column])[0]:+.2f} with {column}"
        for column in columns
    )
    quartiles = table[name].quantile([0, 0.25, 0.5, 0.75, 1])
    quartile_text = ", ".join(f"{value:.3g}" for value in quartiles)
    return (
        f"{name} of {table['client'].nunique()} clients, least to largest by quarters:"
        f" {quartile_text}. Rank correlations: {correlations or 'none'}."
    )


@as_keywords("stop_when")
def learn(
    key: core.Key,
    process: FederatedProcess,
    model: core.Model,
    spec: core.Specification | core.Federation,
    fields: str | Sequence[str],
    num_rounds: int,
    *,
    per: Literal["all", "client", "layer"] = "all",
    objective: str | Objective = "validation:loss",
    seeds: Sequence[int] = (0, 1, 2),
    starts: Sequence[Mapping[str, Any]] = ({},),
    optimizer: optax.GradientTransformation | None = None,
    num_trainings: int | None = None,
    **options: Any,
) -> Learned:
    """Learns fields of a process: moves them along the derivatives of an objective.

    A field above 0 moves in its logarithm, one between 0 and 1 in its log odds, others
    linearly; they start at the process's values. A value for all clients is shared by
    the seeds of a start; all starts are trained in one program. Values of clients and
    layers need trainings one after the other, each with one backward pass for the
    derivatives in all of them, in a few times the time of a training; every seed has
    its own values of clients, and all seeds and clients share those of layers. A layer
    is an array of the model's parameters, a kernel or a bias.

    Args:
      key: `[]` key shared by all trainings.
      process: base process; without `per_client` for values of clients and layers.
      model: the model.
      spec: the federation's specification, with validation examples.
      fields: dotted names of traced numbers, such as `algorithm.lam`. Clients may have
        values of the algorithm's fields; layers of `lam` of Ditto and FLAME, `mu` of
        FedProx, and the learning rate and weight decay of `SGD` in these and in FedAvg.
      num_rounds: rounds R of a training.
      per: `all` learns a value for all clients, `client` one for each, `layer` one for
        each layer.
      objective: see `hypergradients`.
      seeds: of every start, over which the objective is a mean.
      starts: values by dotted name with which each start differs from the process, only
        with `per="all"`.
      optimizer: of optax, on the numbers without limits; None takes Adam.
      num_trainings: trainings one after the other, at least 1, each with the values
        that the derivative of the last one led to. With None, a value for all moves
        during one training, at every evaluation, by the derivative of the objective now
        in a change of the fields since the first round, and the training goes on; those
        of clients and layers take 10. After these, one more is made with the best.
      **options: as for `grid`, without `stop_when`; for values of clients and layers,
        of the last training. With `num_trainings` for all, evaluates after every
        training. With `checkpoints`, an interrupted call goes on, and ends with the
        same values bit for bit.

    Returns:
      The learned values, their path, and the trainings.

    Raises:
      InputError: if an argument does not fit, in one sentence; see `hypergradients`.
      Interrupted: after `max_minutes`.
    """
    checks.known(per, _PER, "value of per")
    validate.check(key, process, model, spec)
    _check_points(seeds, starts, optimizer)
    names, goal = fields_.check(process, fields), Objective.parse(objective)
    optimizer = optimizer or values.default_optimizer()
    parsed = Options(num_rounds=num_rounds, **goal.measured(options))
    time_is_up = time_limit(parsed.max_minutes)
    points = [{**start, "seed": seed} for start in starts for seed in seeds]
    shared = {"fields": names, "per": per, "held_fixed": fields_.held_fixed(process)}
    if per == "all":
        restart = None if num_trainings is None else num_rounds
        maker = learner.Learning(names, goal, optimizer, restart)
        parsed = maker.options(parsed, num_trainings)
        unplanned = grids.groups_of(key, process, model, spec, points)
        planned = simulation.check_groups(unplanned, parsed, trainer=maker)
        result = simulation.run_groups(
            planned, parsed, trainer=maker, interrupt=time_is_up
        )
        return _learned_for_all(process, result, starts, shared)
    num_trainings = _TRAININGS if num_trainings is None else num_trainings
    checks.positive_int("num_trainings", num_trainings)
    _check_starts(process, names, per, starts)
    value_names = tuple(f"{fields_.PER_CLIENT}{name}" for name in names)
    maker = trainer.Differentiation(value_names, goal)
    unplanned = grids.groups_of(key, process, model, spec, points)
    if per == "layer" and len(unplanned) > 1:
        raise checks.InputError(
            "Expected seeds whose federations are alike in what is compiled, since they"
            f" share the values of layers, got {len(unplanned)} kinds of them."
        )
    start_groups = [descent.begun(group, names, per=per) for group in unplanned]
    fields_.check(start_groups[0].processes[0], value_names)
    planned = simulation.check_groups(start_groups, parsed, trainer=maker)
    steps, training = _places(parsed)
    runs = descent.descend(planned, maker, optimizer, num_trainings, steps, time_is_up)
    pairs = zip(unplanned, runs, strict=True)
    best_groups = [descent.with_values(group, v) for group, (v, _) in pairs]
    parsed = dataclasses.replace(parsed, checkpoints=training)
    planned = simulation.check_groups(best_groups, parsed)
    result = simulation.run_groups(planned, parsed, interrupt=time_is_up)
    path = np.concatenate([path for _, path in runs])
    best = {n: np.concatenate([v[n] for v, _ in runs]) for n in names}
    winner = int(np.argmin(np.nanmin(goal.sign * path, axis=1)))
    per_client = {name: value[winner] for name, value in best.items()}
    if per == "layer":  # the same in all of [G, N, L]
        best = {name: value[0, 0] for name, value in best.items()}
    return Learned(
        result=result,
        process=dataclasses.replace(process, per_client=per_client),
        objective=str(maker.model_of(planned[0])),
        best=best,
        path=_path_of(path, unplanned, per),
        values=_table_of(best, unplanned, per),
        **shared,
    )


def _check_points(seeds: Any, starts: Any, optimizer: Any) -> None:
    """Refuses invalid seeds, starts and optimizers."""
    if not len(seeds):
        raise checks.InputError(f"Expected at least one seed, got {seeds!r}.")
    is_listed = isinstance(starts, list | tuple) and starts
    if not is_listed or not all(isinstance(start, Mapping) for start in starts):
        raise checks.InputError(
            "Expected starts as a list of values by dotted name, such as"
            f" [{{'algorithm.lam': 0.1}}], got {starts!r}."
        )
    for name, value in ((n, v) for start in starts for n, v in start.items()):
        if not isinstance(value, int | float | np.number):
            raise checks.InputError(
                f"Expected starts that differ in numbers, got {name}={value!r}."
            )
    if optimizer is not None and not hasattr(optimizer, "update"):
        raise checks.InputError(
            "Expected an optimizer such as optax.adam(0.3), got"
            f" {checks.shown(optimizer)}."
        )


def _check_starts(
    process: FederatedProcess,
    names: Sequence[str],
    per: str,
    starts: Sequence[Mapping[str, Any]],
) -> None:
    """Refuses values of clients or layers that have no place to begin."""
    if process.per_client is not None:
        raise checks.InputError(
            "Expected per_client=None, since values begin at the algorithm's, got"
            f" those of {', '.join(process.per_client)}."
        )
    if any(starts):
        raise checks.InputError(
            f"Expected no starts with per={per!r}, where values begin at the"
            f" algorithm's, got {list(starts)}."
        )
    for name in names:
        fields_.scale_of(process, name)


def _places(
    options: Options,
) -> tuple[checkpoint.Checkpoints | None, checkpoint.Checkpoints | None]:
    """Returns checkpoints of the steps, and of the last training."""
    if options.checkpoints is None:
        return None, None
    folder, names = options.checkpoints.path, ("steps", "training")
    for path in sorted(folder.glob("*")):
        if path.name not in names and not path.name.startswith("."):
            raise checks.InputError(
                "Expected only checkpoints of learn, of values of clients or layers, in"
                f" '{folder}', found '{path.name}'."
            )
    steps, training = (
        dataclasses.replace(options.checkpoints, directory=folder / name)
        for name in names
    )
    return steps, training


def _learned_for_all(
    process: FederatedProcess,
    result: results.Result,
    starts: Sequence[Mapping[str, Any]],
    shared: dict[str, Any],
) -> Learned:
    """Reads the learned values from the histories of trainings."""
    path, table = learned.path(result.groups), learned.settings(result.groups)
    names = shared["fields"]
    assert path is not None and table is not None
    row = table.iloc[0]
    starting = dict.fromkeys(name for start in starts for name in start)
    settings = {name: row[f"start {name}"] for name in starting}
    settings |= {name: float(row[name]) for name in names}
    for name, value in settings.items():
        process = struct.replace_field(process, name, value)
    return Learned(
        result=result,
        process=process,
        objective=str(learned.objective(result.groups)),
        best={n: float(v) for n, v in fields_.taken(process, names).items()},
        path=path,
        values=table,
        **shared,
    )


def _path_of(
    path: np.ndarray, unplanned: Sequence[groups.Group], per: str
) -> "pd.DataFrame":
    """Returns a row per training, and per seed if each has its own values."""
    import pandas as pd

    number, count = path.shape
    columns = {"training": np.tile(np.arange(count) + 1, number)}
    if per == "client":
        seeds = [point["seed"] for group in unplanned for point in group.points]
        columns = {"seed": np.repeat(seeds, count), **columns}
    return pd.DataFrame({**columns, "objective": path.ravel()})


def _table_of(
    best: dict[str, np.ndarray], unplanned: Sequence[groups.Group], per: str
) -> "pd.DataFrame":
    """Returns a row per layer, or per seed and client with its statistics."""
    import pandas as pd

    if per == "layer":
        arrays = descent.arrays_of(unplanned[0])
        sizes = {"layer": [*arrays], "parameters": [*arrays.values()]}
        return pd.DataFrame({**sizes, **best})
    parts = []
    for group in unplanned:
        for point, statistics in zip(group.points, group.described, strict=True):
            point_values = {name: values[len(parts)] for name, values in best.items()}
            clients = np.arange(len(statistics.num_train))
            columns = {"seed": point["seed"], "client": clients, **point_values}
            columns["train_examples"] = statistics.num_train
            if statistics.label_counts is not None:
                columns["label_skew"] = statistics.label_distance
            parts.append(pd.DataFrame(columns))
    return pd.concat(parts, ignore_index=True)

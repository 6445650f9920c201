"""Values of a field per client or layer: one pass back for each of their steps."""

import contextlib
import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import optax

from fedjax_pfl import core, results
from fedjax_pfl.core import checks
from fedjax_pfl.engine import grids, groups, simulation, validate
from fedjax_pfl.engine.callbacks import progress
from fedjax_pfl.engine.derivatives import fields as fields_
from fedjax_pfl.engine.derivatives import forward, learning, reverse, sharing, trainer
from fedjax_pfl.engine.derivatives.descent import Descent
from fedjax_pfl.engine.derivatives.objective import Objective
from fedjax_pfl.engine.options import Options, time_limit
from fedjax_pfl.results import checkpoint, directories
from fedjax_pfl.round.process import FederatedProcess

__all__ = ["OwnValues", "learn", "with_values"]


@dataclasses.dataclass(frozen=True)
class OwnValues:
    """Learned values, and the trainings with them.

    Attributes:
      result: trainings with the values of the best training, a point per seed.
      objective: what was made small, as a string.
      groups: of the trainings, without values of their own.
      values: of every group, `[G, N]` of clients or `[1, L]` of layers.
      steps: of every group, the objective after each training, `[G, T]` or `[1, T]`.
    """

    result: results.Result
    objective: str
    groups: Sequence[groups.Group]
    values: Sequence[np.ndarray]
    steps: Sequence[np.ndarray]


def learn(
    base: tuple[core.Key, FederatedProcess, Any, core.Specification | core.Federation],
    field: str,
    num_rounds: int,
    num_layers_of: Callable[[groups.Group], int | None],
    *,
    objective: str | Objective,
    seeds: Sequence[int],
    optimizer: optax.GradientTransformation | None,
    num_trainings: int,
    options: dict[str, Any],
    caller: str,
) -> OwnValues:
    """Trains, goes back and moves the values, again and again.

    Args:
      base: key, process, model and specification.
      field: dotted name of a traced number of the algorithm.
      num_rounds: rounds R of a training.
      num_layers_of: of a group; None gives every client a value, a number gives every
        layer one.
      objective: see `hypergradients`.
      seeds: of trainings side by side.
      optimizer: on the numbers without limits; None takes Adam.
      num_trainings: trainings T with derivatives.
      options: those of `grid`.
      caller: name of the function that was called, for messages.
    """
    key, process, model, spec = base
    validate.check(key, process, model, spec)
    checks.positive_int("num_trainings", num_trainings)
    learning.check_points(seeds, ({},), optimizer)
    if process.per_client is not None:
        raise checks.InputError(
            "Expected per_client=None, since values begin at the algorithm's, got"
            f" those of {', '.join(process.per_client)}."
        )
    fields_.check(process, [field])
    fields_.scale_of(process, field)
    name = f"{fields_.PER_CLIENT}{field}"
    what = trainer.Differentiation((name,), Objective.parse(objective))
    parsed = Options(num_rounds=num_rounds, **forward.measured(options, what.objective))
    time_is_up = time_limit(parsed.max_minutes)
    found = grids.groups_of(key, process, model, spec, {"seed": list(seeds)})
    layers = [num_layers_of(group) for group in found]
    if len(found) > 1 and None not in layers:
        raise checks.InputError(
            "Expected seeds whose federations are alike in what is compiled, since they"
            f" share the values of layers, got {len(found)} kinds of them."
        )
    unplanned = [
        with_values(group, field, num_layers=count)
        for group, count in zip(found, layers, strict=True)
    ]
    fields_.check(unplanned[0].processes[0], [name])
    planned = simulation.check_groups(unplanned, parsed, trainer=what)
    optimizer = optimizer or learning.default_optimizer()
    steps, training = _places(parsed, caller)
    values, path, ready = [], [], []
    with contextlib.ExitStack() as stack:
        if steps is not None:
            stack.enter_context(directories.locked(steps.path))
            steps.check(len(planned))
        for number, (plan, count) in enumerate(zip(planned, layers, strict=True)):
            store = None if steps is None else steps.store(number, plan.algorithm)
            shared = _shared(plan, count)
            backward = reverse.Backward(plan, what, store)
            descent = Descent(backward, name, optimizer, num_trainings, store, shared)
            title = f"{plan.algorithm} x {len(plan.group.points)}, there and back"
            total = num_trainings * num_rounds
            with progress.steps(title, total, is_shown=parsed.progress) as reach:
                descent.run(time_is_up, reach)
            values.append(descent.best)
            path.append(descent.path)
            own = shared.spread(descent.best)
            ready.append(with_values(unplanned[number], field, own))
    parsed = dataclasses.replace(parsed, checkpoints=training)
    last = simulation.check_groups(ready, parsed)
    result = simulation.run_groups(last, parsed, interrupt=time_is_up)
    shown = str(what.model_of(planned[0]))
    return OwnValues(result, shown, unplanned, values, path)


def _shared(plan: groups.PlannedGroup, num_layers: int | None) -> sharing.Sharing:
    """Returns who shares values: nobody, or all clients those of layers."""
    if num_layers is None:
        return sharing.PerClient()
    return sharing.PerLayer(len(plan.group.points), plan.num_clients)


def _places(
    options: Options, caller: str
) -> tuple[checkpoint.Checkpoints | None, checkpoint.Checkpoints | None]:
    """Returns where checkpoints of the steps are, and those of the last training."""
    if options.checkpoints is None:
        return None, None
    folder, names = options.checkpoints.path, ("steps", "training")
    for path in sorted(folder.glob("*")):
        if path.name not in names and not path.name.startswith("."):
            raise checks.InputError(
                f"Expected only checkpoints of {caller} in '{folder}', found"
                f" '{path.name}'."
            )
    steps, training = (
        dataclasses.replace(options.checkpoints, directory=folder / name)
        for name in names
    )
    return steps, training


def with_values(
    group: groups.Group,
    field: str,
    values: np.ndarray | None = None,
    *,
    num_layers: int | None = None,
) -> groups.Group:
    """Returns a group whose clients have values of their own.

    Args:
      group: of processes without.
      field: dotted name of a traced number of the algorithm.
      values: `[G, N]`, or `[G, N, L]` of layers; None takes those of the processes for
        all clients.
      num_layers: L of these, or None.
    """
    shape = (group.federations[0].num_clients,)
    shape += () if num_layers is None else (num_layers,)
    processes = []
    for number, process in enumerate(group.processes):
        own = np.full(shape, float(fields_.taken(process, [field])[field]))
        if values is not None:
            own = np.asarray(values[number])
        processes.append(dataclasses.replace(process, per_client={field: own}))
    return dataclasses.replace(group, processes=processes)

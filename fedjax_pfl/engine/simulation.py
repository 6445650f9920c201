"""The calls of a user: one training, or a grid of them in few compiled programs."""

import collections
import contextlib
import itertools
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from fedjax_pfl import core, results
from fedjax_pfl.core import checks
from fedjax_pfl.engine import (
    callbacks,
    compiled,
    grids,
    groups,
    profiling,
    save_models,
    validate,
)
from fedjax_pfl.engine.driver import Run, Trainer
from fedjax_pfl.engine.options import Options, as_keywords, time_limit
from fedjax_pfl.engine.process import FederatedProcess
from fedjax_pfl.engine.resident import Resident
from fedjax_pfl.results import directories, provenance

__all__ = ["check_groups", "grid", "run_groups", "simulate"]

_finished = itertools.count(1)
_LOOK_EVERY = 8
"""Groups between two looks at the maps of compiled programs, which take a while."""


@as_keywords("points_per_chunk")
def simulate(
    key: core.Key,
    process: FederatedProcess,
    model: Any,
    federation: core.Federation,
    num_rounds: int,
    **options: Any,
) -> results.Result:
    """Runs one training and evaluates every client on its own data.

    Args:
      key: `[]` from `jax.random.key(seed)`; all randomness of the training follows from
        it.
      process: algorithm, aggregator, participation, work, attack.
      model: for example `MLP(widths=(64,))`; shapes come from the federation.
      federation: data of N clients.
      num_rounds: rounds R, at least 1.
      **options: `eval_every`, `evaluate_on`, `eval_clients`, `execution`,
        `diagnostics`, `stop_when`, `memory_limit`, `max_minutes`, `checkpoints`,
        `callbacks`, `models_to`, `progress`: fields of `engine.Options`.

    Returns:
      The result; a non-finite value ends the training and is in its status.

    Raises:
      InputError: if an argument does not fit, in one sentence.
      Interrupted: after `max_minutes`.
    """
    validate.check(key, process, model, federation)
    parsed = Options(num_rounds=num_rounds, **options)
    time_is_up = time_limit(parsed.max_minutes)
    config = grids.config_of(process, model, federation)
    group = groups.single(key, process, model, federation, config)
    return run_groups(check_groups([group], parsed), parsed, interrupt=time_is_up)


@as_keywords()
def grid(
    key: core.Key,
    process: FederatedProcess,
    model: Any,
    spec: core.Specification,
    axes: Mapping[str, Iterable[Any]],
    num_rounds: int,
    **options: Any,
) -> results.Result:
    """Trains all points of a grid: numeric axes vmapped, static ones in groups.

    Args:
      key: `[]` key shared by all points; see `grids.groups_of`.
      process: base process.
      model: base model.
      spec: base federation.
      axes: values by dotted name, for example `{"algorithm.lam": [0.1, 1.0]}`.
      num_rounds: rounds R, at least 1.
      **options: those of `simulate`, and `points_per_chunk`. Finished groups in
        `checkpoints` are not trained again; one object of `callbacks` sees all points.

    Returns:
      One result with all points; diverged ones are in it, with their status.

    Raises:
      InputError: if an argument does not fit, in one sentence.
      Interrupted: after `max_minutes`.
    """
    validate.check(key, process, model, spec, spec=True)
    parsed = Options(num_rounds=num_rounds, **options)
    time_is_up = time_limit(parsed.max_minutes)  # building the data counts
    planned = check_groups(grids.groups_of(key, process, model, spec, axes), parsed)
    return run_groups(planned, parsed, interrupt=time_is_up)


def run_groups(
    planned: Sequence[groups.PlannedGroup],
    options: Options,
    *,
    trainer: Callable[..., Trainer] = Resident,
    interrupt: Callable[[], str | None] = lambda: None,
    profile: profiling.Profile | None = None,
) -> results.Result:
    """Trains groups one after the other, with progress on standard error.

    Args:
      planned: from `check_groups`, of one class of trainers.
      options: of all of them; what is told, saved and written.
      trainer: class of the trainers.
      interrupt: asked between evaluations; a reason ends the training.
      profile: of a few rounds, or None.

    Returns:
      The result.

    Raises:
      Interrupted: if there was a reason to end; checkpoints have all until then.
      InputError: if checkpoints belong to another training or are damaged.
    """
    checkpoints = options.checkpoints
    if checkpoints is not None and jax.process_count() > 1:
        raise checks.InputError(
            "Checkpoints are written by trainings of one process, got"
            f" {jax.process_count()} processes; leave checkpoints out."
        )
    if options.models_to is not None:
        save_models.check(planned, options.models_to)
    unplanned = [group.group for group in planned]
    _warn_of_idle_parts(unplanned)
    origin = provenance.collect()
    around = {} if profile is None else {"around": profile.around}
    histories = []
    with contextlib.ExitStack() as stack:
        if checkpoints is not None:
            stack.enter_context(directories.locked(checkpoints.path))
            checkpoints.check(len(planned))
        models = stack.enter_context(save_models.writer(options.models_to))
        watch = stack.enter_context(callbacks.watching(unplanned, options))

        def prepare(number: int) -> tuple[Trainer, Any]:
            store = None
            if checkpoints is not None:
                store = checkpoints.store(number, planned[number].algorithm)
            return trainer(planned[number], store), store

        waiting = collections.deque([prepare(0)])
        stack.callback(lambda: [following.close() for following, _ in waiting])
        for number in range(len(planned)):
            current, store = waiting.popleft()
            if number + 1 < len(planned):  # compiles while this group trains
                waiting.append(prepare(number + 1))
            with contextlib.closing(current):
                record = Run(current, store).train(
                    interrupt=interrupt,
                    evaluated=watch.evaluated(number),
                    **around,
                )
                histories.append(record)
                models.add(number, record, current)
            del current  # before the next group's states are made
            if next(_finished) % _LOOK_EVERY == 0:
                compiled.forget_if_many()
        watch.result = results.Result(groups=tuple(histories), provenance=origin)
        models.finish(watch.result)
    return watch.result


def check_groups(
    unplanned: Sequence[groups.Group],
    options: Options,
    *,
    trainer: Callable[..., Trainer] = Resident,
) -> list[groups.PlannedGroup]:
    """Plans groups, and validates every part of them before anything is trained.

    Args:
      unplanned: from `grids.groups_of`, several calls' together if wanted.
      options: of all of them.
      trainer: class of the trainers.

    Returns:
      The planned groups.

    Raises:
      InputError: if something does not fit, in one sentence.
    """
    planned = [groups.plan(group, options) for group in unplanned]
    for group in planned:
        trainer.check(group)  # pyright: ignore
    return planned


def _warn_of_idle_parts(unplanned: Sequence[groups.Group]) -> None:
    """Warns of an attack or an aggregator that changes nothing.

    An attack needs malicious clients; a federation without them is fine beside others
    with them: it is what these are compared with. An aggregator needs a method that
    aggregates; others are named, since beside it they stay what they are.

    Args:
      unplanned: what is to be trained.
    """
    idle: dict[str, list[str]] = {}
    for group in unplanned:
        process = group.processes[0]
        if process.aggregator is not None and not process.algorithm.aggregates:
            rule = type(process.aggregator).__name__
            idle.setdefault(rule, []).append(type(process.algorithm).__name__)
    for rule, methods in idle.items():
        warnings.warn(
            f"{rule} changes nothing for {', '.join(dict.fromkeys(methods))}: no"
            " aggregate of messages is made there.",
            stacklevel=3,
        )
    at_work: dict[str, bool] = {}
    for group in unplanned:
        attacks = {type(p.attack).__name__ for p in group.processes if p.attack}
        if poisoning := group.config.get("federation.label_poisoning"):
            attacks.add(str(poisoning))
        someone = any(np.asarray(f.malicious).any() for f in group.federations)
        for attack in attacks:
            at_work[attack] = at_work.get(attack, False) or someone
    for attack in sorted(attack for attack, used in at_work.items() if not used):
        warnings.warn(
            f"{attack} changes nothing, since no client is malicious; give the"
            " federation a malicious_fraction above 0.",
            stacklevel=3,
        )

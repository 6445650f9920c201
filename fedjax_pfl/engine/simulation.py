"""What a user calls: one training, or a grid of trainings in few compiled programs."""

import contextlib
import datetime
import itertools
import os
import platform
import subprocess
import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import jax
import numpy as np

from fedjax_pfl import core, data, results
from fedjax_pfl.core import checks, sharding
from fedjax_pfl.engine import (
    compiled,
    driver,
    grids,
    options,
    profiling,
    save_models,
    stopping,
    validate,
)
from fedjax_pfl.engine.callbacks import Callback, watching
from fedjax_pfl.engine.groups import Group, check
from fedjax_pfl.engine.process import FederatedProcess
from fedjax_pfl.results import checkpoint, directories, history

__all__ = [
    "check_groups",
    "grid",
    "provenance",
    "run_groups",
    "simulate",
    "time_limit",
    "warn_of_idle_parts",
]

_trained = itertools.count(1)
_LOOK_EVERY = 8
"""Groups between two looks at the maps of compiled programs, which take a while."""


def provenance() -> dict[str, Any]:
    """Versions, device and commit of this run."""
    try:
        commit = subprocess.run(
            ["git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"],
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        commit = None
    return {
        "fedjax_pfl": metadata.version("fedjax_pfl"),
        "jax": jax.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "backend": jax.default_backend(),
        "device": jax.devices()[0].device_kind,
        "num_devices": jax.device_count(),
        "commit": commit,
        "started": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }


def run_groups(
    groups: Sequence[Group],
    settings: options.Settings,
    *,
    checkpoints: checkpoint.Checkpoints | None = None,
    interrupt: Callable[[], str | None] = lambda: None,
    callbacks: Sequence[Callback] = (),
    models_to: str | os.PathLike[str] | None = None,
    progress: bool = True,
    profile: profiling.Profile | None = None,
) -> results.Result:
    """Trains groups one after the other, with progress on standard error.

    Args:
      groups: from `grids.groups_of`, several calls' together if wanted.
      settings: how they are trained.
      checkpoints: where they are saved, and continued from; None does neither.
      interrupt: asked between evaluations; a reason ends the training.
      callbacks: told of the evaluations, by the first of several processes.
      models_to: new directory for the trained models, or None.
      progress: whether to show it: bars on a terminal, a display that is updated in a
        notebook, else lines.
      profile: of a few rounds, or None.

    Returns:
      The result.

    Raises:
      Interrupted: if there was a reason to end; `checkpoints` have all until then.
      InputError: if `checkpoints` belong to another training or are damaged.
    """
    several = jax.process_count() > 1
    if several and checkpoints is not None:
        raise checks.InputError(
            "Checkpoints are written by trainings of one process, got"
            f" {jax.process_count()} processes; leave checkpoints out."
        )
    check_groups(groups, settings, models_to)
    warn_of_idle_parts(groups)
    origin = provenance()
    watched = {} if profile is None else {"around": profile.around}
    found: list[history.History] = []
    with contextlib.ExitStack() as stack:
        if checkpoints is not None:
            stack.enter_context(directories.locked(checkpoints.path))
            checkpoints.check(len(groups))
        models = stack.enter_context(save_models.writer(models_to))
        watch = stack.enter_context(
            watching(callbacks, groups, settings, progress=progress)
        )
        ahead = [_prepared(0, groups, settings, checkpoints)]
        for number, group in enumerate(groups):
            prepared = ahead.pop()
            if number + 1 < len(groups):  # compiles while this group trains
                ahead.append(_prepared(number + 1, groups, settings, checkpoints))
            record, run = driver.run_group(
                prepared,
                interrupt=interrupt,
                evaluated=watch.evaluated(number),
                **watched,
            )
            found.append(record)
            models.add(number, group, record, run)
            del run, prepared  # before the next group's states are made
            if next(_trained) % _LOOK_EVERY == 0:
                compiled.forget_if_many()
        watch.result = results.Result(groups=tuple(found), provenance=origin)
        models.finish(watch.result)
    return watch.result


def _prepared(
    number: int,
    groups: Sequence[Group],
    settings: options.Settings,
    checkpoints: checkpoint.Checkpoints | None,
) -> driver.Prepared:
    """Lets the programs of a group be compiled."""
    group = groups[number]
    name = type(group.processes[0].algorithm).__name__
    store = None if checkpoints is None else checkpoints.store(number, name)
    return driver.prepare(group, settings, store)


def check_groups(
    groups: Sequence[Group],
    settings: options.Settings,
    models_to: str | os.PathLike[str] | None = None,
) -> None:
    """Lets every part object before anything is trained.

    Args:
      groups: what is to be trained.
      settings: how.
      models_to: see `simulate`.

    Raises:
      InputError: if something does not fit, in one sentence.
    """
    if models_to is not None:
        save_models.check(groups, settings, models_to)
    for group in groups:
        check(group, settings)


def warn_of_idle_parts(groups: Sequence[Group]) -> None:
    """Says that an attack or an aggregator changes nothing.

    An attack needs malicious clients; a federation without them is fine beside others
    with them: it is what these are compared with. An aggregator needs a method that
    aggregates; others are named, since beside it they stay what they are.

    Args:
      groups: what is to be trained.
    """
    idle: dict[str, list[str]] = {}
    for group in groups:
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
    for group in groups:
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


def simulate(
    key: core.Key,
    process: FederatedProcess,
    model: Any,
    federation: core.Federation,
    num_rounds: int,
    *,
    eval_every: int | None = None,
    execution: str | sharding.Execution = "auto",
    evaluate_on: Sequence[str] | Mapping[str, int | None] = options.EVALUATE_ON,
    eval_clients: str | int = "all",
    diagnostics: bool = False,
    stop_when: stopping.StopWhen | None = None,
    checkpoints: checkpoint.Checkpoints | None = None,
    max_minutes: float | None = None,
    callbacks: Sequence[Callback] = (),
    models_to: str | os.PathLike[str] | None = None,
    memory_limit: str | int = "free",
    progress: bool = True,
) -> results.Result:
    """Runs one training and evaluates every client on its own data.

    Args:
      key: `[]` from `jax.random.key(seed)`; all randomness of the training follows from
        it.
      process: algorithm, aggregator, participation, work, attack.
      model: for example `MLP(widths=(64,))`; shapes come from the federation.
      federation: data of N clients.
      num_rounds: rounds R, at least 1.
      eval_every: rounds between evaluations; None gives about 20 evaluations.
      execution: `auto`, `loop`, `vmap`, `chunk=K`, `shard` or `shard=DEVICES`.
      evaluate_on: data to evaluate on: a client's own `test`, `validation` or `train`
        examples; `others`, its own and some other clients' test examples (as many as
        the federation's `num_others`); `everybody`, all test examples. A mapping gives
        rounds between evaluations by name, None for `eval_every`.
      eval_clients: whose models are evaluated: `all`, `participants` of the last round,
        or the size of a sample of clients that is drawn once per seed.
      diagnostics: whether to compute the algorithm's diagnostics at evaluations.
      stop_when: when the training ends before its last round, or None.
      checkpoints: where the training is saved. If the directory has checkpoints of the
        same training, it goes on from the newest: bit-identical, on the same backend
        and versions, to a training that was never interrupted. None saves nothing.
      max_minutes: after which the training is saved and ended, > 0; None for no limit.
      callbacks: told of every evaluation; see `Callback`.
      models_to: directory, which must not exist yet, in which the trained models of the
        evaluated clients are saved; see `load_models`. None saves none.
      memory_limit: what the training may need, for example `8GB`; more is refused
        before the first round. `free` takes what is free now, `none` refuses nothing.
      progress: whether to show progress, on standard error or in a notebook's cell.

    Returns:
      The result; a non-finite value ends the training and is in its status.

    Raises:
      InputError: if an argument does not fit, in one sentence.
      Interrupted: after `max_minutes`.
    """
    validate.check(key, process, model, federation)
    settings = options.Settings.parse(
        num_rounds,
        eval_every=eval_every,
        execution=execution,
        evaluate_on=evaluate_on,
        eval_clients=eval_clients,
        diagnostics=diagnostics,
        stop_when=stop_when,
        memory_limit=memory_limit,
    )
    group = Group(
        points=[{}],
        processes=[process],
        model=model,
        federations=[federation],
        described=[data.describe(federation)],
        keys=[key],
        config=grids.config_of(process, model, federation),
    )
    return run_groups(
        [group],
        settings,
        checkpoints=checkpoints,
        interrupt=time_limit(max_minutes),
        callbacks=callbacks,
        models_to=models_to,
        progress=progress,
    )


def time_limit(minutes: float | None) -> Callable[[], str | None]:
    """A function that, so many minutes from now on, says that time is up.

    Args:
      minutes: > 0, or None for never.

    Returns:
      What `run_groups` takes as `interrupt`.

    Raises:
      InputError: if the number does not fit.
    """
    if minutes is not None:
        checks.number("max_minutes", minutes, above=0)
    start = time.monotonic()

    def asked() -> str | None:
        if minutes is None or time.monotonic() - start < 60 * minutes:
            return None
        return f"The time of {minutes:g} minutes was up"

    return asked


def grid(
    key: core.Key,
    process: FederatedProcess,
    model: Any,
    spec: core.Specification,
    axes: Mapping[str, Iterable[Any]],
    num_rounds: int,
    *,
    eval_every: int | None = None,
    execution: str | sharding.Execution = "auto",
    evaluate_on: Sequence[str] | Mapping[str, int | None] = options.EVALUATE_ON,
    eval_clients: str | int = "all",
    diagnostics: bool = False,
    points_per_chunk: int | None = None,
    stop_when: stopping.StopWhen | None = None,
    checkpoints: checkpoint.Checkpoints | None = None,
    max_minutes: float | None = None,
    callbacks: Sequence[Callback] = (),
    models_to: str | os.PathLike[str] | None = None,
    memory_limit: str | int = "free",
    progress: bool = True,
) -> results.Result:
    """Trains all points of a grid: numeric axes vmapped, static ones in groups.

    Args:
      key: `[]` key shared by all points; see `grids.groups_of`.
      process: base process.
      model: base model.
      spec: base federation.
      axes: values by dotted name, for example `{"algorithm.lam": [0.1, 1.0]}`.
      num_rounds: rounds R, at least 1.
      eval_every: see `simulate`.
      execution: see `simulate`.
      evaluate_on: see `simulate`.
      eval_clients: see `simulate`.
      diagnostics: see `simulate`.
      points_per_chunk: points vmapped together, which bounds memory; None picks.
      stop_when: when a point ends before its last round, or None; points that ended
        stay as they are while others go on.
      checkpoints: see `simulate`; finished groups are not trained again.
      max_minutes: see `simulate`.
      callbacks: see `simulate`; one object sees all points.
      models_to: see `simulate`.
      memory_limit: see `simulate`; of each group, since these follow one another.
      progress: see `simulate`.

    Returns:
      One result with all points; diverged ones are in it, with their status.

    Raises:
      InputError: if an argument does not fit, in one sentence.
      Interrupted: after `max_minutes`.
    """
    validate.check(key, process, model, spec, spec=True)
    settings = options.Settings.parse(
        num_rounds,
        eval_every=eval_every,
        execution=execution,
        evaluate_on=evaluate_on,
        eval_clients=eval_clients,
        diagnostics=diagnostics,
        points_per_chunk=points_per_chunk,
        stop_when=stop_when,
        memory_limit=memory_limit,
    )
    interrupt = time_limit(max_minutes)
    return run_groups(
        grids.groups_of(key, process, model, spec, axes),
        settings,
        checkpoints=checkpoints,
        interrupt=interrupt,
        callbacks=callbacks,
        models_to=models_to,
        progress=progress,
    )

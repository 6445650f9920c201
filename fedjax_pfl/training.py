"""What a user calls: one training, or a grid of trainings in few compiled programs."""

import dataclasses
import datetime
import itertools
import platform
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import jax
import numpy as np
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from fedjax_pfl import checks, clients, data, driver, history, results, struct, types
from fedjax_pfl.process import FederatedProcess

__all__ = ["Federations", "grid", "groups_of", "run_groups", "simulate"]

EVALUATE_ON = ("test", "validation")


def _plain(value: Any) -> Any:
    """A value as JSON knows it."""
    if isinstance(value, np.ndarray | jax.Array | np.generic):
        return np.asarray(value).tolist()
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    if value is None or isinstance(value, str | int | float | bool):
        return value
    if dataclasses.is_dataclass(value):
        return type(value).__name__
    return getattr(value, "__name__", repr(value))


def _flat(prefix: str, node: Any) -> dict[str, Any]:
    """Flat configuration of a component: its kind and its dotted fields."""
    if node is None:
        return {prefix: None}
    return {name: _plain(value) for name, value in struct.named_fields(node, prefix)}


def _config(process: FederatedProcess, model: Any, federation: Any) -> dict[str, Any]:
    """Flat configuration of a training."""
    parts = {f.name: getattr(process, f.name) for f in dataclasses.fields(process)}
    on_nonfinite = parts.pop("on_nonfinite")
    config: dict[str, Any] = {"on_nonfinite": on_nonfinite}
    for name, part in parts.items():
        config |= _flat(name, part)
    config |= _flat("model", model)
    if isinstance(federation, types.Federation):
        return config | {
            "federation.dataset": federation.name,
            "federation.num_clients": federation.num_clients,
        }
    described = _flat("federation", federation)
    return config | described | {"federation.dataset": federation.dataset.name}


def _provenance() -> dict[str, Any]:
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
    groups: Sequence[driver.Group],
    num_rounds: int,
    *,
    eval_every: int | None = None,
    execution: str | clients.Execution = "auto",
    evaluate_on: Sequence[str] | Mapping[str, int | None] = EVALUATE_ON,
    eval_clients: str | int = "all",
    diagnostics: bool = False,
    points_per_chunk: int | None = None,
    progress: bool = True,
) -> results.Result:
    """Trains groups one after the other, with a progress bar on standard error.

    Args:
      groups: from `groups_of`, several calls' together if wanted.
      num_rounds: rounds R, at least 1.
      eval_every: see `simulate`.
      execution: see `simulate`.
      evaluate_on: see `simulate`.
      eval_clients: see `simulate`.
      diagnostics: see `simulate`.
      points_per_chunk: see `grid`.
      progress: whether to show the bar.

    Returns:
      The result.
    """
    provenance = _provenance()
    found: list[history.History] = []
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("rounds"),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        TextColumn("{task.fields[text]}"),
    )
    console = Console(stderr=True)
    with Progress(*columns, console=console, disable=not progress) as bar:
        for number, group in enumerate(groups, 1):
            name = type(group.processes[0].algorithm).__name__
            title = f"{number}/{len(groups)} {name} x {len(group.points)}"
            task = bar.add_task(title, total=num_rounds, text="compiling")
            record, _ = driver.run_group(
                group,
                num_rounds,
                eval_every=eval_every,
                execution=execution,
                evaluate_on=evaluate_on,
                eval_clients=eval_clients,
                diagnostics=diagnostics,
                points_per_chunk=points_per_chunk,
                advance=lambda rounds, text, task=task: bar.update(
                    task, advance=rounds, text=text
                ),
            )
            bar.update(task, completed=num_rounds)
            found.append(record)
    return results.Result(groups=tuple(found), provenance=provenance)


def simulate(
    key: types.Key,
    process: FederatedProcess,
    model: Any,
    federation: types.Federation,
    num_rounds: int,
    *,
    eval_every: int | None = None,
    execution: str | clients.Execution = "auto",
    evaluate_on: Sequence[str] | Mapping[str, int | None] = EVALUATE_ON,
    eval_clients: str | int = "all",
    diagnostics: bool = False,
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
      progress: whether to show a progress bar on standard error.

    Returns:
      The result; a non-finite value ends the training and is in its status.

    Raises:
      InputError: if an argument does not fit, in one sentence.
    """
    group = driver.Group(
        points=[{}],
        processes=[process],
        model=model,
        federations=[federation],
        described=[data.describe(federation)],
        keys=[key],
        config=_config(process, model, federation),
    )
    return run_groups(
        [group],
        num_rounds,
        eval_every=eval_every,
        execution=execution,
        evaluate_on=evaluate_on,
        eval_clients=eval_clients,
        diagnostics=diagnostics,
        progress=progress,
    )


@dataclasses.dataclass(frozen=True)
class _Point:
    """One grid point before grouping."""

    values: dict[str, Any]
    process: FederatedProcess
    model: Any
    spec: data.FederationSpec
    key: types.Key


def _make_point(
    key: types.Key,
    process: FederatedProcess,
    model: Any,
    spec: data.FederationSpec,
    values: dict[str, Any],
) -> _Point:
    """Applies swept values by dotted name."""
    for name, value in values.items():
        if name == "seed":
            checks.whole("seed", value, at_least=0)
            key = jax.random.fold_in(key, value)
            spec = dataclasses.replace(spec, seed=int(value))
        elif name == "model":
            model = value
        elif name.startswith("model."):
            model = struct.replace_field(model, name.removeprefix("model."), value)
        elif name == "federation":
            spec = value
        elif name.startswith("federation."):
            spec = struct.replace_field(spec, name.removeprefix("federation."), value)
        else:
            process = struct.replace_field(process, name, value)
    return _Point(values=values, process=process, model=model, spec=spec, key=key)


class Federations:
    """Federations by their specs, each built and described once."""

    def __init__(self):
        self._found: dict[
            data.FederationSpec, tuple[types.Federation, data.PartitionStatistics]
        ] = {}

    def get(
        self, spec: data.FederationSpec
    ) -> tuple[types.Federation, data.PartitionStatistics]:
        """Returns the federation of a spec and its statistics."""
        if spec not in self._found:
            federation = spec.build()
            self._found[spec] = (federation, data.describe(federation))
        return self._found[spec]


def groups_of(
    key: types.Key,
    process: FederatedProcess,
    model: Any,
    spec: data.FederationSpec,
    axes: Mapping[str, Iterable[Any]],
    federations: Federations | None = None,
) -> list[driver.Group]:
    """Forms all grid points and puts those together that share one compiled program.

    Points differ in numeric (traced) fields within a group, and in static fields,
    models or shapes of the data between groups. Federations are built once per distinct
    spec.

    Args:
      key: `[]` key; the axis `seed` folds its value in, so that points of one seed
        share data, data order and start.
      process: base process.
      model: base model.
      spec: base federation.
      axes: values by dotted name: fields of the process (`algorithm.lam`), `model.`,
        `federation.`, and `seed`, which is also the federation's seed.
      federations: those that other calls have built already; new ones are added.

    Returns:
      Groups in order of first appearance.

    Raises:
      InputError: if a name or value does not fit.
    """
    named = {name: list(values) for name, values in axes.items()}
    for name, values in named.items():
        if not values:
            raise checks.InputError(f"Expected at least one value for axis {name!r}.")
    if "seed" not in named:
        named["seed"] = [spec.seed]
    combinations = itertools.product(*named.values())
    points = [
        _make_point(key, process, model, spec, dict(zip(named, values, strict=True)))
        for values in combinations
    ]
    federations = Federations() if federations is None else federations
    grouped: dict[Any, list[_Point]] = {}
    for point in points:
        federation, _ = federations.get(point.spec)
        shapes = jax.tree.map(lambda leaf: leaf.shape, federation.train.pool())
        signature = (
            jax.tree.structure(point.process),
            point.model,
            federation.num_clients,
            str(jax.tree.leaves(shapes, is_leaf=lambda x: isinstance(x, tuple))),
            jax.tree.structure(federation),
        )
        grouped.setdefault(signature, []).append(point)
    return [
        driver.Group(
            points=[
                {name: _plain(value) for name, value in point.values.items()}
                for point in group
            ],
            processes=[point.process for point in group],
            model=group[0].model,
            federations=[federations.get(point.spec)[0] for point in group],
            described=[federations.get(point.spec)[1] for point in group],
            keys=[point.key for point in group],
            config=_shared(
                [_config(point.process, point.model, point.spec) for point in group]
            ),
        )
        for group in grouped.values()
    ]


def _shared(configs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """What all configurations of a group have in common."""
    first, *others = configs
    return {
        name: value
        for name, value in first.items()
        if all(name in other and other[name] == value for other in others)
    }


def grid(
    key: types.Key,
    process: FederatedProcess,
    model: Any,
    spec: data.FederationSpec,
    axes: Mapping[str, Iterable[Any]],
    num_rounds: int,
    *,
    eval_every: int | None = None,
    execution: str | clients.Execution = "auto",
    evaluate_on: Sequence[str] | Mapping[str, int | None] = EVALUATE_ON,
    eval_clients: str | int = "all",
    diagnostics: bool = False,
    points_per_chunk: int | None = None,
    progress: bool = True,
) -> results.Result:
    """Trains all points of a grid: numeric axes vmapped, static ones in groups.

    Args:
      key: `[]` key shared by all points; see `groups_of`.
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
      progress: whether to show a progress bar on standard error.

    Returns:
      One result with all points; diverged ones are in it, with their status.

    Raises:
      InputError: if an argument does not fit, in one sentence.
    """
    return run_groups(
        groups_of(key, process, model, spec, axes),
        num_rounds,
        eval_every=eval_every,
        execution=execution,
        evaluate_on=evaluate_on,
        eval_clients=eval_clients,
        diagnostics=diagnostics,
        points_per_chunk=points_per_chunk,
        progress=progress,
    )

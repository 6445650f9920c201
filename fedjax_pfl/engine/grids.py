"""The points of a grid, in groups that share one compiled program."""

import dataclasses
import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import jax

from fedjax_pfl import core, data
from fedjax_pfl.core import checks, struct
from fedjax_pfl.engine import groups, validate
from fedjax_pfl.engine.process import FederatedProcess

__all__ = ["Federations", "groups_of"]


@dataclasses.dataclass(frozen=True)
class _Point:
    """One grid point before grouping."""

    values: dict[str, Any]
    process: FederatedProcess
    model: Any
    spec: Any
    key: core.Key


def _make_point(
    key: core.Key,
    process: FederatedProcess,
    model: Any,
    spec: core.Specification,
    values: dict[str, Any],
) -> _Point:
    """Applies swept values by dotted name."""
    for name, value in values.items():
        if name == "seed":
            checks.whole("seed", value, at_least=0, at_most=checks.MAX_SEED)
            key = jax.random.fold_in(key, value)
            spec = struct.replace_field(spec, "seed", int(value))
        elif name == "model":
            validate.check_model(value)
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
            core.Specification,
            tuple[core.Federation, data.PartitionStatistics],
        ] = {}

    def get(
        self, spec: core.Specification
    ) -> tuple[core.Federation, data.PartitionStatistics]:
        """Returns the federation of a spec and its statistics."""
        if spec not in self._found:
            federation = spec.build()
            self._found[spec] = (federation, data.describe(federation))
        return self._found[spec]


def groups_of(
    key: core.Key,
    process: FederatedProcess,
    model: Any,
    spec: core.Specification,
    axes: Mapping[str, Iterable[Any]],
    federations: Federations | None = None,
) -> list[groups.Group]:
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
    for name, values in axes.items():
        if isinstance(values, str) or not isinstance(values, Iterable):
            raise checks.InputError(
                f"Expected a list of values for axis {name!r}, got {values!r}."
            )
    named = {name: list(values) for name, values in axes.items()}
    _check_names(named, process, model, spec)
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
        groups.Group(
            points=[
                {name: struct.plain(value) for name, value in point.values.items()}
                for point in group
            ],
            processes=[point.process for point in group],
            model=group[0].model,
            federations=[federations.get(point.spec)[0] for point in group],
            described=[federations.get(point.spec)[1] for point in group],
            keys=[point.key for point in group],
            config=_shared(
                [
                    groups.config_of(point.process, point.model, point.spec)
                    for point in group
                ]
            ),
        )
        for group in grouped.values()
    ]


def _check_names(
    axes: Mapping[str, Sequence[Any]],
    process: FederatedProcess,
    model: Any,
    spec: core.Specification,
) -> None:
    """Refuses names that begin with no part of a training, and completes them."""
    parts = {"model": model, "federation": spec, "seed": None}
    parts |= {f.name: getattr(process, f.name) for f in dataclasses.fields(process)}
    swept = [(n, value) for n, values in axes.items() if n in parts for value in values]
    fields = [
        field
        for part, value in (*parts.items(), *swept)
        for field, _ in struct.named_fields(value, part)
    ]
    for name in axes:
        if name.partition(".")[0] in parts:
            continue
        ends = [field for field in fields if field.endswith(f".{name}")]
        if ends:
            raise checks.InputError(
                f"Expected the whole name of axis {name!r}: did you mean {ends[0]!r}?"
            )


def _shared(configs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Returns the settings that all configurations of a group share."""
    first, *others = configs
    return {
        name: value
        for name, value in first.items()
        if all(name in other and other[name] == value for other in others)
    }

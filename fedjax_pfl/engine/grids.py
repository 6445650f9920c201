"""The points of a grid, in groups that share one compiled program."""

import dataclasses
import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import jax

from fedjax_pfl import core, data
from fedjax_pfl.core import checks, struct
from fedjax_pfl.engine import groups, validate
from fedjax_pfl.round.process import FederatedProcess

__all__ = ["Axes", "Federations", "combinations", "groups_of"]

Axes = Mapping[str, Iterable[Any]] | Iterable[Mapping[str, Any]]
"""Values by dotted name, all combinations of which are points; or the points."""


@dataclasses.dataclass(frozen=True)
class _Point:
    """One grid point before grouping."""

    values: dict[str, Any]
    process: FederatedProcess
    model: core.Model
    spec: core.Specification
    key: core.Key


def _make_point(
    key: core.Key,
    process: FederatedProcess,
    model: core.Model,
    spec: core.Specification,
    values: dict[str, Any],
) -> _Point:
    """Applies swept values by dotted name."""
    for name, value in values.items():
        if name == "seed":
            checks.whole("seed", value, at_least=0, at_most=checks.MAX_SEED)
            # Points of one seed share data, data order and start.
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
            if isinstance(spec, _FixedSpec):
                raise checks.InputError(
                    f"Expected a specification to sweep {name}, got a federation, whose"
                    " examples are distributed already; FederationSpec.from_arrays"
                    " takes the arrays."
                )
            spec = struct.replace_field(spec, name.removeprefix("federation."), value)
        else:
            process = struct.replace_field(process, name, value)
    return _Point(values=values, process=process, model=model, spec=spec, key=key)


@dataclasses.dataclass(eq=False)
class _FixedSpec:
    """A federation in place of a specification: seeds do not change it."""

    federation: core.Federation
    seed: int = 0

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _FixedSpec) and self.federation is other.federation

    def __hash__(self) -> int:
        return id(self.federation)

    def build(self) -> core.Federation:
        """Returns the federation."""
        return self.federation

    def describe(self) -> dict[str, Any]:
        """Returns the name and the number of clients."""
        federation = self.federation
        return {"dataset": federation.name, "num_clients": federation.num_clients}


class Federations:
    """Federations by their specs, each built and described once."""

    def __init__(self):
        self._built: dict[
            core.Specification,
            tuple[core.Federation, data.PartitionStatistics],
        ] = {}

    def get(
        self, spec: core.Specification
    ) -> tuple[core.Federation, data.PartitionStatistics]:
        """Returns the federation of a spec and its statistics."""
        if spec not in self._built:
            federation = spec.build()
            self._built[spec] = (federation, data.describe(federation))
        return self._built[spec]


def combinations(axes: Mapping[str, Iterable[Any]]) -> list[dict[str, Any]]:
    """Returns every combination of values by name."""
    for name, values in axes.items():
        if isinstance(values, str) or not isinstance(values, Iterable):
            raise checks.InputError(
                f"Expected a list of values for axis {name!r}, got {values!r}."
            )
    named = {name: list(values) for name, values in axes.items()}
    for name, values in named.items():
        if not values:
            raise checks.InputError(f"Expected at least one value for axis {name!r}.")
    return [
        dict(zip(named, values, strict=True))
        for values in itertools.product(*named.values())
    ]


def groups_of(
    key: core.Key,
    process: FederatedProcess,
    model: core.Model,
    spec: core.Specification | core.Federation,
    axes: Axes,
    federations: Federations | None = None,
) -> list[groups.Group]:
    """Forms all grid points, in groups that share one compiled program."""
    parsed: Any = axes  # type checkers take a mapping for an iterable
    named = combinations(parsed) if isinstance(axes, Mapping) else list(parsed)
    if not named or not all(isinstance(values, Mapping) for values in named):
        raise checks.InputError(
            "Expected axes as values by dotted name, or grid points that have one value"
            f" by name each, got {axes!r}."
        )
    recipe = _FixedSpec(spec) if isinstance(spec, core.Federation) else spec
    _check_names(named, process, model, recipe)
    points = [
        _make_point(
            *(key, process, model, recipe), {**v, "seed": v.get("seed", recipe.seed)}
        )
        for v in named
    ]
    # Built once per distinct specification, also over several calls.
    federations = Federations() if federations is None else federations
    grouped: dict[Any, list[_Point]] = {}
    for point in points:
        federation, _ = federations.get(point.spec)
        pools = [
            p.pool() for p in (federation.train, federation.validation, federation.test)
        ]
        shapes = jax.tree.map(lambda leaf: leaf.shape, pools)
        # Points of a group differ in traced fields only; static fields, models and
        # shapes of the data need programs of their own.
        signature = (
            jax.tree.structure(point.process),
            point.model,
            federation.num_clients,
            federation.unseen and federation.unseen.num_clients,
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
    points: Sequence[Mapping[str, Any]],
    process: FederatedProcess,
    model: core.Model,
    spec: core.Specification,
) -> None:
    """Refuses names that do not begin with a part of a training."""
    parts = {"model": model, "federation": spec, "seed": None}
    parts |= {f.name: getattr(process, f.name) for f in dataclasses.fields(process)}
    names = dict.fromkeys(itertools.chain.from_iterable(points))
    unknown = [name for name in names if name.partition(".")[0] not in parts]
    if not unknown:
        return
    # A swept part brings fields that the base part lacks.
    swept = [(n, p[n]) for p in points for n in p.keys() & parts.keys()]
    fields = [
        field
        for part, value in (*parts.items(), *swept)
        for field, _ in struct.named_fields(value, part)
    ]
    for name in unknown:
        checks.whole_name(name, fields, "axis")


def _shared(configs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Returns the settings that all configurations of a group share."""
    base, *configs = configs
    return {
        name: value
        for name, value in base.items()
        if all(name in config and config[name] == value for config in configs)
    }

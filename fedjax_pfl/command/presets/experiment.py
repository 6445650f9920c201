"""Experiments of a command: grids of settings, changed by `--set name=value`.

Names are those of result files. Values are JSON, names need no quotes, commas sweep. A
component's value is its name in a registry; several transforms are `top_k+qsgd`.

Settings are parsed, and names of components checked, without JAX.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import operator
from collections.abc import Iterable, Mapping
from typing import Any

import fedjax_pfl as fp
from fedjax_pfl import core
from fedjax_pfl.algorithms import own_methods
from fedjax_pfl.command import components
from fedjax_pfl.command.presets import json_fields, wrappers
from fedjax_pfl.core import checks, struct

__all__ = [
    "Experiment",
    "Grid",
    "apply_settings",
    "grids_of",
    "own_algorithms",
    "parse",
]

Settings = wrappers.Settings
_EITHER = (
    ("algorithm.kappa", "algorithm.rho"),
    ("algorithm.alpha", "algorithm.theta"),
    ("algorithm.num_malicious", "algorithm.malicious_fraction"),
    ("aggregator.rho", "aggregator.rho_quantile"),
    ("aggregator.num_malicious", "aggregator.malicious_fraction"),
    ("aggregator.rule.rho", "aggregator.rule.rho_quantile"),
    ("aggregator.rule.num_malicious", "aggregator.rule.malicious_fraction"),
    ("model.roles.frozen", "model.roles.trained"),
)
_ALTERNATIVES = {**dict(_EITHER), **{b: a for a, b in _EITHER}}
_DEFAULTS = {"Optax": {"hyperparameters": {"learning_rate": 0.001}}}  # adam
_BESIDE = "+"
_OWN = {"seed": "seeds", "num_rounds": "num_rounds", "eval_every": "eval_every"}
_NOT_SET = {
    f"model.{field}"
    for field in ("input_shape", "inputs", "num_classes", "embedding_size")
    + ("features", "window", "assets", "initial_params")
}


def _registry(name: str) -> Mapping[str, Any]:
    """Returns the classes that a component may be, by their names."""
    path, _ = components.COMPONENTS[name]
    return operator.attrgetter(path)(fp)


def _is_none(name: str, value: Any) -> bool:
    """Returns whether a value leaves an optional component out."""
    _, is_optional = components.COMPONENTS[name]
    return is_optional and value in (None, "none")


def _evaluate_on() -> tuple[tuple[str, int | None], ...]:
    """Returns the default data of evaluations, without separate periods."""
    from fedjax_pfl.engine import options  # imports JAX

    return tuple((name, None) for name in options.EVALUATE_ON)


@dataclasses.dataclass(frozen=True)
class Grid:
    """One process on one kind of data, and its swept fields."""

    process: fp.FederatedProcess
    model: core.Model
    spec: core.Specification
    # Values by dotted name, without seeds.
    axes: Mapping[str, tuple[Any, ...]] = dataclasses.field(default_factory=dict)

    @property
    def root(self) -> dict[str, Any]:
        """The root of dotted names."""
        fields = {
            f.name: getattr(self.process, f.name)
            for f in dataclasses.fields(self.process)
        }
        return {**fields, "model": self.model, "federation": self.spec}

    def replace(self, name: str, value: Any) -> Grid:
        """Returns a copy with one field changed and no longer swept."""
        fields = struct.replace_field(self.root, name, value)
        axes = {
            n: v
            for n, v in self.axes.items()
            if n != name and not n.startswith(f"{name}.")
        }
        return Grid(
            model=fields.pop("model"),
            spec=fields.pop("federation"),
            process=fp.FederatedProcess(**fields),
            axes=axes,
        )

    def started(self, params: core.Params) -> Grid:
        """Returns a copy with models that start from these parameters."""

        def start(model: core.Model) -> core.Model:
            return struct.replace_field(model, "initial_params", params)

        axes = dict(self.axes)
        if "model" in axes:
            axes["model"] = tuple(map(start, axes["model"]))
        return dataclasses.replace(self, model=start(self.model), axes=axes)

    def names(self) -> list[str]:
        """Returns all settable names, without those that data or files determine."""
        names = dict(struct.named_fields(self.root)) | {"transforms": None}
        return [name for name in names if name not in _NOT_SET]


def grids_of(
    methods: Iterable[Any],
    model: core.Model,
    spec: core.Specification,
    axes: Mapping[str, tuple[Any, ...]] | None = None,
    *,
    cohort: int | None = None,
    **fields: Any,
) -> tuple[Grid, ...]:
    """Makes a grid of each method, on one federation."""
    if cohort is not None:
        fields["participation"] = fp.UniformCohort(size=cohort)
    grids = []
    for method in methods:
        # A method may be a whole process, and have axes of its own.
        process, own_axes = method if isinstance(method, tuple) else (method, {})
        if not isinstance(process, fp.FederatedProcess):
            process = fp.FederatedProcess(algorithm=process, **fields)
        grids.append(Grid(process, model, spec, {**(axes or {}), **own_axes}))
    return tuple(grids)


@dataclasses.dataclass(frozen=True)
class Experiment:
    """Grids of a command; all share seeds, so differences are paired."""

    name: str  # of the preset
    grids: tuple[Grid, ...]
    num_rounds: int
    seeds: tuple[int, ...] = (0,)
    eval_every: int | None = None  # rounds; None for about twenty evaluations
    # Data to evaluate on, each with rounds between evaluations or None.
    evaluate_on: tuple[tuple[str, int | None], ...] = dataclasses.field(
        default_factory=_evaluate_on
    )
    eval_clients: str | int = "all"
    learned: tuple[str, ...] = ()  # methods with an extra row in a benchmark

    def __post_init__(self):
        from fedjax_pfl.engine import schedule  # imports JAX

        checks.positive_int("num_rounds", self.num_rounds)
        schedule.Schedule.parse(
            dict(self.evaluate_on), self.eval_every, self.eval_clients, self.num_rounds
        )
        if not self.seeds or len(set(self.seeds)) < len(self.seeds):
            raise checks.InputError(
                f"Expected different seeds, at least one, got {list(self.seeds)}."
            )
        for seed in self.seeds:
            checks.whole("seed", seed, at_least=0, at_most=checks.MAX_SEED)

    @property
    def num_points(self) -> int:
        """Number of trainings."""
        sizes = (math.prod(map(len, grid.axes.values())) for grid in self.grids)
        return len(self.seeds) * sum(sizes)

    def single(self) -> Experiment:
        """Keeps the first grid without its axes and with one seed: one training."""
        grid = dataclasses.replace(self.grids[0], axes={})
        return dataclasses.replace(self, grids=(grid,), seeds=self.seeds[:1])


def apply_settings(experiment: Experiment, settings: Iterable[str]) -> Experiment:
    """Applies settings `name=value[,value...]`, components before their fields."""
    parsed = parse(settings)
    if "algorithm" in parsed:
        experiment = _set_algorithms(experiment, parsed)
    if "model" in parsed:
        experiment = _changed(experiment, "model", parsed)
    experiment = _wrapped(experiment, parsed)
    handled = {"algorithm", "model", wrappers.ROLES, wrappers.ADAPTERS}
    names = [name for name in parsed if name not in handled]
    parts = components.COMPONENTS
    # Components before their fields, and owners before parts.
    for name in sorted(names, key=lambda n: (n not in parts, n.count("."))):
        set_one = _set_own if name in _OWN else _changed
        experiment = set_one(experiment, name, parsed)
    return experiment


def _changed(experiment: Experiment, name: str, parsed: Settings) -> Experiment:
    """Sets one component or field of every grid that has it."""
    names = {n for grid in experiment.grids for n in grid.names()}
    if name not in names:
        names |= {*_OWN, *wrappers.known()}
        head = name.rpartition(".")[0]
        # The nearest names are those of the same component.
        level = [n for n in names if head and n.startswith(f"{head}.")]
        checks.known(name, level or names, "field")
    set_one = _set_component if name in components.COMPONENTS else _set_field
    changed = (
        set_one(grid, name, parsed) if name in grid.names() else [grid]
        for grid in experiment.grids
    )
    grids = tuple(itertools.chain.from_iterable(changed))
    return dataclasses.replace(experiment, grids=grids)


def _wrapped(experiment: Experiment, parsed: Settings) -> Experiment:
    """Gives all models the roles and adapters of the settings."""
    names = (wrappers.ROLES, wrappers.ADAPTERS)
    wraps = {n: values for n, values in parsed.items() if n.startswith(names)}
    if not wraps:
        return experiment
    grids = (
        dataclasses.replace(grid, model=wrappers.wrap(grid.model, wraps))
        for grid in experiment.grids
    )
    return dataclasses.replace(experiment, grids=tuple(grids))


def parse(settings: Iterable[str]) -> dict[str, tuple[Any, ...]]:
    """Reads settings `name=value[,value...]`."""
    parsed = dict(_parse(text) for text in settings)
    for name, values in parsed.items():
        if name in components.COMPONENTS:
            _check_component(name, values)
    return parsed


def _check_component(name: str, values: Iterable[Any]) -> None:
    """Refuses names that are not in the registry."""
    registry = _registry(name)
    noun = name.rpartition(".")[2].replace("_", " ")
    if name == "algorithm":
        values = _algorithms(values)
    if name == "transforms":
        noun, values = "transform", itertools.chain(*map(_transforms, values))
    for value in values:
        if name == "algorithm" and ":" in value:
            own_methods.check_name(value)
        elif not _is_none(name, value):
            checks.known(value, registry, noun)


def _transforms(value: Any) -> list[Any]:
    """Returns the ordered names of transforms in a value such as `top_k+qsgd`."""
    return [] if _is_none("transforms", value) else str(value).split(_BESIDE)


def own_algorithms(settings: Iterable[str]) -> list[str]:
    """Returns the algorithms `module:Class` in settings, without importing them."""
    names = _algorithms(parse(settings).get("algorithm", ()))
    return [name for name in names if ":" in name]


def _algorithms(values: Iterable[Any]) -> list[str]:
    """Returns names without the `+` that keeps the preset's methods."""
    return [str(value).removeprefix(_BESIDE) for value in values]


def _parse(text: str) -> tuple[str, tuple[Any, ...]]:
    """Splits `name=value,value`; commas alone, in brackets or quotes do not split."""
    name, equals, values = text.partition("=")
    if not (name and equals and values.strip()):
        raise checks.InputError(f"Expected --set name=value, got {text!r}.")
    try:
        parsed = _values(name, values)
    except checks.InputError:
        raise
    except (ValueError, RecursionError) as error:  # too many digits or brackets
        raise checks.InputError(
            f"Expected the value of {name} to be shorter, got {len(values)} characters."
        ) from error
    if any(value in parsed[:k] for k, value in enumerate(parsed)):
        raise checks.InputError(f"Expected different values of {name}, got {values}.")
    return name, tuple(tuple(v) if isinstance(v, list) else v for v in parsed)


def _values(name: str, text: str) -> list[Any]:
    """Returns the values of one setting; a lone comma is a separator of a table."""
    if text == ",":
        return [text]
    try:
        return json.loads(f"[{text}]")
    except json.JSONDecodeError:
        if any(mark in text for mark in '[]{}"'):
            raise checks.InputError(
                f"Expected the value of {name} to be JSON such as 0.1, true or "
                f"[64,32], got {text!r}."
            ) from None
        return [_word(value.strip()) for value in text.split(",")]


def _word(text: str) -> Any:
    """Returns a JSON value, or the text itself."""
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text


def _set_algorithms(experiment: Experiment, parsed: Settings) -> Experiment:
    """Keeps the preset's grids of the named algorithms, or makes new ones."""
    # A plus before the first name keeps all grids of the preset.
    is_beside = str(parsed["algorithm"][0]).startswith(_BESIDE)
    grids: list[Grid] = list(experiment.grids) if is_beside else []
    for value in _algorithms(parsed["algorithm"]):
        kind = own_methods.find(value)
        candidates = [g for g in experiment.grids if type(g.process.algorithm) is kind]
        if not candidates:
            base = experiment.grids[0]
            # A new grid has the preset's local solver, so that comparisons stay fair.
            has_solver = any(f.name == "local" for f in dataclasses.fields(kind))
            solvers = (grid.process.algorithm.local for grid in experiment.grids)
            solver = next((s for s in solvers if s is not None), None)
            shares = has_solver and solver is not None
            method = kind.with_solver(solver) if shares else kind()
            candidates = [base.replace("algorithm", method)]
        grids += [grid for grid in candidates if grid not in grids]
    return dataclasses.replace(experiment, grids=tuple(grids))


def _set_own(experiment: Experiment, name: str, parsed: Settings) -> Experiment:
    """Sets seeds or a number of rounds."""
    for value in parsed[name]:
        json_fields.check(name, value, int)
    if name == "seed":
        return dataclasses.replace(experiment, seeds=parsed[name])
    value, *extra = parsed[name]
    if extra:
        raise checks.InputError(
            f"Expected one value of {name}, got {list(parsed[name])}."
        )
    return dataclasses.replace(experiment, **{_OWN[name]: value})


def _set_component(grid: Grid, name: str, parsed: Settings) -> list[Grid]:
    """Makes one grid per named component."""
    current, grids = struct.get_field(grid.root, name), []
    for value in parsed[name]:
        if name == "transforms":
            kinds = [_registry(name)[kind] for kind in _transforms(value)]
            if kinds == [type(part) for part in current]:
                grids.append(grid)
                continue
            parts = (_build(f"{name}.{k}", c, parsed) for k, c in enumerate(kinds))
            grids.append(grid.replace(name, tuple(parts)))
        elif _is_none(name, value):
            grids.append(grid.replace(name, None))
        elif struct.kind_of(current) is _registry(name)[value]:
            grids.append(grid)  # with the preset's settings of this component
        else:
            component = _build(name, _registry(name)[value], parsed)
            component = struct.replace_innermost(current, component)
            grids.append(grid.replace(name, component))
    return grids


def _build(name: str, cls: type, parsed: Settings) -> Any:
    """Makes a component; fields without a default come from other settings."""
    fields = dict(_DEFAULTS.get(cls.__name__, {}))
    for field in dataclasses.fields(cls):
        if not struct.is_required(field) or field.name in fields:
            continue
        setting = f"{name}.{field.name}"
        if setting not in parsed:
            raise checks.InputError(
                f"Expected --set {setting}=... together with {name}={cls.__name__}."
            )
        fields[field.name] = parsed[setting][0]
        json_fields.check(
            setting, fields[field.name], json_fields.annotation(cls, field)
        )
    return cls(**fields)


def _set_field(grid: Grid, name: str, parsed: Settings) -> list[Grid]:
    """Returns the grid with one field set or, for several values, swept."""
    current = struct.get_field(grid.root, name)
    if isinstance(current, Mapping) or dataclasses.is_dataclass(current):
        fields = ", ".join(n for n in grid.names() if n.startswith(f"{name}."))
        raise checks.InputError(f"Expected one of the fields of {name}: {fields}.")
    head, _, field = name.rpartition(".")
    owner = struct.get_field(grid.root, head) if head else grid.process
    annotation: Any = float
    if (kind := struct.kind_of(owner)) is not None:
        fields = {f.name: f for f in dataclasses.fields(kind)}
        annotation = json_fields.annotation(kind, fields[field])
    alternative = _ALTERNATIVES.get(name)
    if alternative in parsed:
        raise checks.InputError(f"Expected {name} or {alternative}, got both.")
    # Of two fields for one number, only one may be set.
    if alternative in grid.names():
        grid = grid.replace(alternative, None)
    values = tuple(json_fields.check(name, v, annotation) for v in parsed[name])
    for value in values:  # the object checks every value
        try:
            result = grid.replace(name, value)
        except checks.InputError as error:
            text = str(error).replace(f"Expected {field} ", f"Expected --set {name} ")
            raise checks.InputError(text) from None
    if len(values) == 1 and name != "federation.seed":  # which follows the seed
        return [result]
    base = grid.replace(name, values[0])
    return [dataclasses.replace(base, axes={**base.axes, name: values})]

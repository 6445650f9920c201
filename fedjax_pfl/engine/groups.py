"""Grid points that share a program: whether they can be trained, and how."""

import dataclasses
import functools
import itertools
import warnings
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_pfl import core
from fedjax_pfl.core import checks, client_rows, sharding, struct
from fedjax_pfl.data import statistics
from fedjax_pfl.engine import (
    auto_execution,
    evaluation,
    timetables,
    trained_parameters,
    validate,
)
from fedjax_pfl.engine import schedule as schedules
from fedjax_pfl.engine.options import Options
from fedjax_pfl.results import metrics
from fedjax_pfl.round.process import FederatedProcess

__all__ = [
    "Group",
    "Plan",
    "PlannedGroup",
    "config_of",
    "plan",
    "single",
    "warn_of_idle_parts",
]


@dataclasses.dataclass(frozen=True)
class Group:
    """Grid points that share one compiled program."""

    points: Sequence[dict[str, Any]]  # swept values by field
    processes: Sequence[FederatedProcess]  # of one structure
    model: core.Model
    federations: Sequence[core.Federation]  # of one number of clients
    described: Sequence[statistics.PartitionStatistics]
    keys: Sequence[core.Key]
    config: dict[str, Any]  # shared by the points

    def parts(self, num_points: int) -> "list[Group]":
        """Returns the group in parts of at most so many points, in their order."""
        fields = ("points", "processes", "federations", "described", "keys")
        return [
            dataclasses.replace(
                self, **{n: getattr(self, n)[k : k + num_points] for n in fields}
            )
            for k in range(0, len(self.points), num_points)
        ]


def config_of(
    process: FederatedProcess, model: core.Model, federation: Any
) -> dict[str, Any]:
    """Returns the flat configuration of a training."""
    parts = {f.name: getattr(process, f.name) for f in dataclasses.fields(process)}
    if not parts["parts"]:
        del parts["parts"]
    on_nonfinite = parts.pop("on_nonfinite")
    config: dict[str, Any] = {"on_nonfinite": on_nonfinite}
    for name, part in parts.items():
        config |= struct.plain_fields(part, name)
    # Distinguishes pipelines, also of different lengths.
    chain = " + ".join(type(part).__name__ for part in process.transforms)
    config["transforms"] = chain or None
    config |= struct.plain_fields(model, "model")
    if isinstance(federation, core.Federation):
        return config | {
            "federation.dataset": federation.name,
            "federation.num_clients": federation.num_clients,
        }
    described = federation.describe().items()
    return config | {f"federation.{name}": value for name, value in described}


def single(
    key: core.Key,
    process: FederatedProcess,
    model: core.Model,
    federation: core.Federation,
    *,
    is_described: bool = True,
) -> Group:
    """Returns the group of one training, with or without statistics of its data."""
    return Group(
        points=[{}],
        processes=[process],
        model=model,
        federations=[federation],
        described=[statistics.describe(federation)] if is_described else [],
        keys=[key],
        config=config_of(process, model, federation),
    )


@dataclasses.dataclass(frozen=True)
class Plan:
    """Static part of a compiled group."""

    model: core.Model  # given the shapes of the data
    execution: sharding.Execution
    schedule: schedules.Schedule  # a segment lies between two evaluations
    diagnostics: bool
    points_per_chunk: int  # vmapped together, on each device
    alike: bool  # points of a chunk have equal data and draws
    stops: bool  # points may end before others
    point_devices: int = 1  # if several, they do not share clients

    @property
    def points(self) -> sharding.Execution:
        """Execution mode of the map over points."""
        return sharding.Execution(
            mode="shard" if self.point_devices > 1 else "chunk",
            chunk_size=self.points_per_chunk,
            num_devices=self.point_devices,
        )

    def __str__(self) -> str:
        shared = f", points on {self.point_devices} devices"
        return str(self.execution) + (shared if self.point_devices > 1 else "")


@dataclasses.dataclass(frozen=True, eq=False)
class PlannedGroup:
    """A validated group and how it is run; made once, by `plan`."""

    group: Group
    options: Options
    plan: Plan
    processes: Sequence[FederatedProcess]  # with numbers as arrays
    keys: Sequence[core.Key]  # of the package's own generator
    order: np.ndarray  # `int[G]`, of points in programs
    digest: str | None = None  # of the data if no process has all of them

    @property
    def algorithm(self) -> str:
        """Class name of the points' algorithm."""
        return type(self.group.processes[0].algorithm).__name__

    @property
    def num_clients(self) -> int:
        """Clients N of every point."""
        return self.group.federations[0].num_clients

    @property
    def num_parameters(self) -> int:
        """Parameters D of the model."""
        return client_rows.size(self._params)

    @property
    def _params(self) -> core.Params:
        """Shapes of the model's parameters."""
        return jax.eval_shape(self.plan.model.init, self.keys[0])

    @functools.cached_property
    def names(self) -> tuple[str, ...]:
        """Names of the algorithm's predictors."""
        return evaluation.predictor_names(*self._shapes())

    @functools.cached_property
    def metrics(self) -> tuple[str, ...]:
        """Names of the metrics."""
        return evaluation.metric_names(*self._shapes())

    @functools.cached_property
    def unseen_rule(self) -> evaluation.Unseen | None:
        """Service of clients that never trained; None without any."""
        if self.group.federations[0].unseen is None:
            return None
        return evaluation.unseen_rule(*self._shapes())

    @property
    def unseen_names(self) -> tuple[str, ...]:
        """Names of the models of clients that never trained; none without any."""
        return () if self.unseen_rule is None else self.unseen_rule.names

    @functools.cached_property
    def kinds(self) -> dict[str, trained_parameters.Kind]:
        """Trained parts of all predictors by name; see `trained_parameters`."""
        return trained_parameters.kinds(*self._shapes())

    @property
    def state_shapes(self) -> core.State:
        """Shapes of the state of the first point."""
        return self._shapes()[1]

    def _shapes(self) -> tuple[FederatedProcess, core.State, Any, Any]:
        """Process, shapes of its state, model and federation of the first point."""
        process, federation = self.group.processes[0], self.group.federations[0]

        def init(key: core.Key, federation: core.Federation) -> core.State:
            return process.init(key, self.plan.model, federation)

        state = jax.eval_shape(init, self.keys[0], federation)
        return process, state, self.plan.model, federation

    def configuration(self, execution: str) -> dict[str, Any]:
        """Returns the flat configuration of the group and of its execution."""
        schedule, metric = self.plan.schedule, self.options.metric
        chosen = {} if metric is None else {"metric": metric}
        return (
            self.group.config
            | chosen
            | {
                "num_rounds": self.options.num_rounds,
                "eval_every": schedule.segment,
                "evaluate_on": dict(schedule.every),
                "eval_clients": schedule.clients,
                "execution": execution,
                "num_parameters": self.num_parameters,
                "parameter_dtype": str(jnp.result_type(*jax.tree.leaves(self._params))),
            }
        )


def plan(group: Group, options: Options) -> PlannedGroup:
    """Validates a group and decides how it is run."""
    _check(group, options)
    model = group.model.for_federation(group.federations[0])
    model.check_start()
    group = _with_fixed_arrays(group, model)
    federation, process = group.federations[0], group.processes[0]
    execution = options.parsed_execution
    if isinstance(execution, str):
        execution = auto_execution.choose(process, model, federation, len(group.points))
    execution = auto_execution.form_chunks(execution, group.federations)
    devices = auto_execution.devices_of_points(execution, len(group.points))
    for key in group.keys:
        validate.check_key(key)
    # Of the package's own generator, which draws the same under vmap and in loops.
    keys = [core.new_key(jax.random.key_data(key)) for key in group.keys]
    processes = timetables.with_timetables(
        group.processes, model, group.federations, keys, options.num_rounds
    )
    order, at_once, alike = _chunks_of_points(
        group, model, keys, execution, options, devices
    )
    dtype = jnp.result_type(float)
    planned = PlannedGroup(
        group=group,
        options=options,
        plan=Plan(
            model=model,
            execution=execution,
            schedule=options.schedule,
            diagnostics=options.diagnostics,
            points_per_chunk=min(at_once, -(-len(group.points) // devices)),
            alike=alike,
            point_devices=devices,
            stops=options.stop_when is not None and len(group.points) > 1,
        ),
        # Of one dtype, since 1 and 1.0 would be traced separately.
        processes=[struct.as_arrays(process, dtype) for process in processes],
        keys=keys,
        order=order,
    )
    # These need shapes of the state and names of predictors, which the plan has.
    if process.aggregator is not None:
        process.aggregator.check_state(planned.state_shapes)
    if options.stop_when is not None:
        options.stop_when.model_of(planned.names)
        metrics.headline(planned.metrics, options.stop_when.chosen)
    if options.metric is not None:
        metrics.headline(planned.metrics, options.metric)
    if federation.unseen is not None:
        if isinstance(model, core.SequenceModel):
            raise checks.InputError(
                f"Models of series such as {type(model).__name__} are not adapted to"
                " clients that never trained; expected unseen_fraction=0."
            )
        planned.unseen_rule  # noqa: B018 (refuses methods without a network)
    return planned


def _chunks_of_points(
    group: Group,
    model: core.Model,
    keys: Sequence[core.Key],
    execution: sharding.Execution,
    options: Options,
    num_devices: int,
) -> tuple[np.ndarray, int, bool]:
    """Returns the order of points, points per chunk, and whether these are alike."""
    process, first_federation = group.processes[0], group.federations[0]
    # Federations by identity: points of one seed share the object.
    families: dict[Any, list[int]] = {}
    for number, (key, federation) in enumerate(
        zip(keys, group.federations, strict=True)
    ):
        words = np.asarray(jax.random.key_data(key)).tobytes()
        families.setdefault((words, id(federation)), []).append(number)
    sizes = {len(family) for family in families.values()}
    parts = (execution, process, model, first_federation)
    # Points of one key and federation share their batches if every chunk is
    # homogeneous; not if points may end early, which only saves the time of whole
    # chunks.
    if len(sizes) == 1 and options.stop_when is None:
        most_points = options.points_per_chunk
        if most_points is None:
            most_points = auto_execution.points_at_once(*parts, alike=True)
        at_once = auto_execution.alike_at_once(sizes.pop(), most_points)
        if at_once > 1 and len(keys) // num_devices % at_once == 0:
            return np.concatenate(list(families.values())), at_once, True
    most_points = options.points_per_chunk or auto_execution.points_at_once(*parts)
    return np.arange(len(keys)), most_points, False


def _with_fixed_arrays(group: Group, model: core.Model) -> Group:
    """Adds a model's start and its frozen parameters to the data, for programs."""
    start, fields = model.initial_params, {}
    if start is not None:
        fields["start"] = start.on_device
    has_roles = isinstance(model, core.RoleModel)
    frozen = model.frozen_params(fields.get("start")) if has_roles else None
    if not fields and not has_roles:
        return group
    federations = []
    for federation in group.federations:
        train = federation.train
        if has_roles:
            constants = core.Constants(
                given=train.constants, frozen=frozen, fixed=model.fixed_rows()
            )
            train = dataclasses.replace(train, constants=constants)
        train = dataclasses.replace(train, **fields)
        federations.append(dataclasses.replace(federation, train=train))
    return dataclasses.replace(group, federations=federations)


def _check(group: Group, options: Options) -> None:
    """Validates the data and all parts of a group; see `plan`."""
    rule = options.stop_when
    for federation in group.federations:
        options.schedule.check(federation)
        if rule is not None and rule.data == "validation":
            _check_validation(federation)
        _check_examples(federation)
        _check_pools(federation)
    num_clients = group.federations[0].num_clients
    size = group.processes[0].participation.cohort_size(num_clients)
    # Values differ between points, so each is checked.
    for process in group.processes:
        process.check_cohort(size, num_clients)


def _check_validation(federation: core.Federation) -> None:
    """Refuses a federation without validation examples."""
    if not isinstance(federation.malicious, jax.ShapeDtypeStruct):
        if not np.asarray(federation.validation.num_examples).any():
            raise checks.InputError(
                "Expected validation examples to stop or to choose on, got none; give"
                " the federation a validation_fraction above 0."
            )


def _check_examples(federation: core.Federation) -> None:
    """Refuses clients without training examples."""
    if isinstance(federation.malicious, jax.ShapeDtypeStruct):
        return
    empty = np.flatnonzero(np.asarray(federation.train.num_examples) == 0)
    if empty.size:
        raise checks.InputError(
            f"Expected every client to have training examples, but {empty.size} of"
            f" {federation.num_clients} have none, the first of them client"
            f" {empty[0]}."
        )


def _check_pools(federation: core.Federation) -> None:
    """Refuses validation or test pools with examples of another form."""

    def form(leaf: jax.Array) -> tuple[Any, ...]:
        is_whole = jnp.issubdtype(leaf.dtype, jnp.integer) and leaf.dtype != jnp.uint8
        return leaf.shape[1:], is_whole  # images are scaled, tokens are not

    for name, field in itertools.product(("validation", "test"), ("x", "y")):
        train_array = getattr(federation.train, field)
        array = getattr(getattr(federation, name), field)
        if form(array) != form(train_array):
            raise checks.InputError(
                f"Expected {name}.{field} to hold {train_array.dtype}"
                f"{[*train_array.shape[1:]]} per example, as train.{field} does, got"
                f" {array.dtype}{[*array.shape[1:]]}."
            )


def warn_of_idle_parts(unplanned: Sequence[Group]) -> None:
    """Warns of an attack, an aggregator or a rounding that has no effect."""
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
    is_rounded = any(struct.innermost(g.model).bfloat16_products for g in unplanned)
    if is_rounded and jax.default_backend() == "cpu":
        warnings.warn(
            "bfloat16_products=True is slower on a CPU, which rounds the operands and"
            " multiplies them as floats of 32 bits; it is for accelerators.",
            stacklevel=3,
        )
    # A federation without malicious clients is the baseline of others that have some.
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

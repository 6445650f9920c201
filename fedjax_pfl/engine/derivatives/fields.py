"""The numbers of a process in which trainings can be differentiated."""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import numpy as np

from fedjax_pfl import core
from fedjax_pfl.core import checks, struct
from fedjax_pfl.round.process import PARTS, FederatedProcess

PER_CLIENT = "per_client."
"""Prefix of the names of values per client."""

__all__ = [
    "PER_CLIENT",
    "Scale",
    "check",
    "held_fixed",
    "names_of",
    "of_some",
    "parts",
    "put",
    "scale_of",
    "taken",
]


def check(
    process: FederatedProcess, fields: Sequence[str], *, implicit: bool = False
) -> tuple[str, ...]:
    """Returns dotted names; refuses names that are not traced numbers of a process."""
    names = (fields,) if isinstance(fields, str) else tuple(fields)
    if not names:
        raise checks.InputError(
            "Expected at least one field to differentiate in, such as"
            " 'algorithm.local.learning_rate', got none."
        )
    if len({*names}) < len(names):
        raise checks.InputError(f"Expected each field once, got {', '.join(names)}.")
    numbers, kinds = struct.traced_numbers(process), (*PARTS, "transforms")
    for name in names:
        if name in numbers:
            continue
        kind = name.partition(".")[0]
        # The most specific reason first: the others hold for these names, too.
        if kind in ("federation", "model", "seed"):
            raise checks.InputError(
                "Expected fields of the process, which a training has derivatives in,"
                f" got {name!r}."
            )
        if name.startswith(PER_CLIENT):
            raise checks.InputError(
                f"Expected values of {name.removeprefix(PER_CLIENT)!r} in the process's"
                f" per_client, to be differentiated in {name!r}."
            )
        if kind not in kinds:
            checks.whole_name(name, numbers, "field")
            checks.known(kind, kinds, "part of a process")
        value = struct.get_field(process, name)
        raise checks.InputError(
            f"Expected {name} to be a traced number, to be differentiated in, got"
            f" {struct.plain(value)!r}; {', '.join(numbers)} are."
        )
    # Some parts have no derivative at all, others none along a way back.
    in_use = list(_parts_in_use(process))
    for part in in_use:
        _refuse(part, part.no_derivative, "derivatives")
    if any(name.startswith(PER_CLIENT) for name in names) and not implicit:
        for part in in_use:
            _refuse(
                part,
                part.forward_only,
                "derivatives in values per client, which go back through all rounds",
                "; hypergradients with implicit=True has them at a fixed point",
            )
    return names


def of_some(
    processes: Sequence[FederatedProcess], fields: Sequence[str]
) -> tuple[str, ...]:
    """Returns dotted names; refuses those that no process has as traced numbers."""
    for name in fields:
        # The error is about a process that has the field, if there is one.
        having = [p for p in processes if name in struct.traced_numbers(p)]
        check((having or list(processes))[0], [name])
    return check(processes[0], fields) if len(processes) == 1 else tuple(fields)


def names_of(process: FederatedProcess, names: Sequence[str]) -> tuple[str, ...]:
    """Returns the names that are traced numbers of a process."""
    numbers = struct.traced_numbers(process)
    return tuple(name for name in names if name in numbers)


def parts(node: Any) -> Iterator[Any]:
    """Yields the dataclasses of a process, itself first."""
    if not dataclasses.is_dataclass(node) or isinstance(node, type):
        return
    yield node
    for field in dataclasses.fields(node):
        value = getattr(node, field.name)
        for part in value if isinstance(value, tuple) else (value,):
            yield from parts(part)


def _parts_in_use(process: FederatedProcess) -> Iterator[core.Pluggable]:
    """Yields the pluggable parts of a process, including the aggregator in use."""
    nodes: list[Any] = [process]
    if process.aggregator is None and process.algorithm.aggregates:
        nodes.append(process.used_aggregator())
    for node in nodes:
        yield from (p for p in parts(node) if isinstance(p, core.Pluggable))


def _refuse(
    part: core.Pluggable, reason: str | None, derivatives: str, advice: str = ""
) -> None:
    """Refuses a part if there is a reason why it has no such derivatives."""
    if reason is not None:
        raise checks.InputError(
            f"Expected parts that have {derivatives}, got {type(part).__name__}, which"
            f" {reason}{advice}."
        )


def held_fixed(process: FederatedProcess, *, implicit: bool = False) -> tuple[str, ...]:
    """Returns choices that derivatives hold fixed: `Krum: which rows are averaged`."""
    texts = [
        f"{type(part).__name__}: {part.chooses}"
        for part in _parts_in_use(process)
        # At a fixed point a solver that ends by a tolerance counts as exact.
        if part.chooses is not None and not (implicit and part.forward_only)
    ]
    return tuple(dict.fromkeys(texts))


def taken(process: FederatedProcess, names: Sequence[str]) -> dict[str, Any]:
    """Returns the values of traced fields by dotted name."""
    numbers = struct.traced_numbers(process)
    return {name: numbers[name] for name in names}


def put(process: FederatedProcess, values: dict[str, Any]) -> FederatedProcess:
    """Returns a process with other values of traced fields, by dotted name."""

    def replaced(path: tuple[Any, ...], leaf: core.Tree) -> core.Tree:
        name = jax.tree_util.keystr(path, simple=True, separator=".")
        return values.get(name, leaf)

    return jax.tree_util.tree_map_with_path(replaced, process)


@dataclasses.dataclass(frozen=True)
class Scale:
    """Scale on which a field moves: `log` above 0, `logit` below 1, or `linear`."""

    kind: str

    def free(self, value: np.ndarray) -> np.ndarray:
        """Returns the unbounded numbers of values of any shape."""
        if self.kind == "log":
            return np.log(value)
        return np.log(value) - np.log1p(-value) if self.kind == "logit" else value

    def value(self, free: np.ndarray) -> np.ndarray:
        """Inverts `free`; infinite if the value overflows."""
        if self.kind == "linear":
            return free
        with np.errstate(over="ignore"):
            return np.exp(free if self.kind == "log" else -np.logaddexp(0, -free))

    def slope(self, value: np.ndarray) -> np.ndarray:
        """Returns the derivatives of values in their unbounded numbers."""
        if self.kind == "log":
            return value
        return value * (1 - value) if self.kind == "logit" else np.ones_like(value)


def scale_of(process: FederatedProcess, name: str) -> Scale:
    """Returns the scale of a field that passes `check`, by its declared limits."""
    owner, _, last = name.rpartition(".")
    node = struct.get_field(process, owner)
    limits: dict[str, Any] = {}
    if dataclasses.is_dataclass(node):
        field = next(f for f in dataclasses.fields(node) if f.name == last)
        limits = dict(field.metadata.get("limits") or {})
    elif last == "learning_rate":  # of optax, which has no limits
        limits = {"above": 0}
    low = limits.get("above", limits.get("at_least"))
    high = limits.get("below", limits.get("at_most"))
    value = float(struct.get_field(process, name))
    if low != 0:
        return Scale("linear")
    inside = value > 0 and (high is None or value < high)
    if not inside:  # steps of a logarithm or log odds never leave a limit
        raise checks.InputError(
            f"Expected {name} to begin strictly between its limits, got {value:g}."
        )
    return Scale("logit" if high == 1 else "log")

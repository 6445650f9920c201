"""Columns that distinguish the trainings of several groups."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

__all__ = ["IDENTITY", "Named", "fields", "settings"]

IDENTITY = {
    "algorithm": "algorithm",
    "dataset": "federation.dataset",
    "partition": "federation.partition",
}
"""Column of a table -> setting."""

# They follow from other settings, or change no training.
_DERIVED = ("federation.seed", "num_parameters", "parameter_dtype", "execution")
_DERIVED += ("metric",)


class Named(Protocol):
    """A group before its training, or its history."""

    @property
    def points(self) -> Sequence[Mapping[str, Any]]:
        """Swept field -> value, one mapping per point."""
        ...

    @property
    def config(self) -> Mapping[str, Any]:
        """Flat configuration shared by the points."""
        ...


def settings(group: Named) -> dict[str, Any]:
    """Returns settings, with `model` renamed, since tables have such a column."""
    return {
        "model.class" if name == "model" else name: value
        for name, value in group.config.items()
    }


def fields(groups: Sequence[Named]) -> tuple[str, ...]:
    """Returns the names of settings that vary, except the seed and `IDENTITY`."""
    swept = dict.fromkeys(
        f for group in groups for point in group.points for f in point
    )
    values: dict[tuple[str, str], list[Any]] = {}
    for config in map(settings, groups):
        for field, value in config.items():
            # Settings of a component count if they differ between groups with the same
            # one.
            owner = config.get(field.rpartition(".")[0])
            values.setdefault((field, str(owner)), []).append(value)
    differ = [f for (f, _), v in values.items() if any(x != v[0] for x in v)]
    differ += _missing_parts([group.config for group in groups])
    differ = [f for f in differ if f not in _DERIVED]
    excluded = {"seed", *IDENTITY.values()}
    return tuple(f for f in dict.fromkeys([*swept, *differ]) if f not in excluded)


def _missing_parts(configs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Returns the names of parts that not all components of one kind have."""
    names = dict.fromkeys(name for config in configs for name in config)
    parents = {name.rpartition(".")[0] for name in names}
    partial_names = []
    for name in names:
        parent = name.rpartition(".")[0]
        kinds = {True: set(), False: set()}
        for config in configs:
            kinds[name in config].add(str(config.get(parent)))
        if name in parents and parent and kinds[True] & kinds[False] - {"None"}:
            partial_names.append(name)
    return partial_names

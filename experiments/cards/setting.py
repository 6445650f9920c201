"""Settings of a card's experiments, read from their presets."""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from experiments.cards import markdown
from fedjax_pfl.command import presets
from fedjax_pfl.core import struct

__all__ = ["lines"]

_SHARED = ("model", "federation", "participation", "work")


def lines(names: Sequence[str]) -> Iterator[str]:
    """Yields a table of all values that presets fix, and of their differences."""
    import experiments.presets  # noqa: F401 (adds presets of the papers)

    experiment_list = [presets.get(name) for name in names]
    shared: dict[str, list[Any]] = {}
    for experiment in experiment_list:
        root = experiment.grids[0].root
        values = {
            "rounds": experiment.num_rounds,
            "seeds": ", ".join(map(str, experiment.seeds)),
        }
        for part in _SHARED:
            fields = _field_list(_fields(root[part], ""))
            values[part] = f"{type(root[part]).__name__}: {fields}".rstrip(": ")
        for name, value in values.items():
            shared.setdefault(name, []).append(value)
    distinct = {n: dict.fromkeys(map(str, values)) for n, values in shared.items()}
    rows = [(name, "<br>".join(values)) for name, values in distinct.items()]
    methods: dict[str, dict[str, None]] = {}
    references: dict[str, dict[str, Any]] = {}
    for grid in itertools.chain(*(experiment.grids for experiment in experiment_list)):
        name = type(grid.process.algorithm).__name__
        fields = _fields(grid.process.algorithm, "")
        fields |= _fields(grid.process.aggregator, "aggregator")
        fields |= {field: f"one of {list(v)}" for field, v in grid.axes.items()}
        # The first preset's fields in full; later ones only where they differ.
        reference_fields = references.setdefault(name, fields)
        differences = {n: v for n, v in fields.items() if reference_fields.get(n) != v}
        differences |= {n: None for n in reference_fields if n not in fields}
        printed_fields = fields if reference_fields is fields else differences
        methods.setdefault(name, {})[_field_list(printed_fields)] = None
    for name, variants in methods.items():
        texts = [variant for variant in variants if variant]
        rows.append((name, "<br>or ".join(texts)))
    yield from markdown.table(("setting", "value"), rows)


def _fields(part: Any, prefix: str) -> dict[str, Any]:
    """Returns fields by dotted name, without fields that are off."""
    if part is None:
        return {}
    fields = struct.plain_fields(part, prefix)
    return {n: v for n, v in fields.items() if v not in (None, False, "", [])}


def _field_list(fields: Mapping[str, Any]) -> str:
    """Returns fields and values as text."""
    return ", ".join(f"{n} = {v}" for n, v in fields.items())

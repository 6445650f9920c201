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
    """Yields a table of everything that presets fix, each field where it differs.

    Args:
      names: of presets of one comparison, for example one per data set.

    Yields:
      Lines of Markdown.
    """
    import experiments.presets  # noqa: F401 (adds those of the papers)

    found = [presets.get(name) for name in names]
    shared: dict[str, list[Any]] = {}
    for experiment in found:
        root = experiment.grids[0].root
        values = {
            "rounds": experiment.num_rounds,
            "seeds": ", ".join(map(str, experiment.seeds)),
        }
        for part in _SHARED:
            values[part] = _described(root[part])
        for name, value in values.items():
            shared.setdefault(name, []).append(value)
    rows = [(name, _once(values)) for name, values in shared.items()]
    methods: dict[str, dict[str, None]] = {}
    firsts: dict[str, dict[str, Any]] = {}
    for grid in itertools.chain(*(experiment.grids for experiment in found)):
        name = type(grid.process.algorithm).__name__
        fields = _fields(grid.process.algorithm, "")
        fields |= _fields(grid.process.aggregator, "aggregator")
        fields |= {field: f"one of {list(v)}" for field, v in grid.axes.items()}
        first = firsts.setdefault(name, fields)
        changed = {n: v for n, v in fields.items() if first.get(n) != v}
        changed |= {n: None for n in first if n not in fields}
        shown = fields if first is fields else changed
        methods.setdefault(name, {})[_listed(shown)] = None
    for name, variants in methods.items():
        texts = [variant for variant in variants if variant]
        rows.append((name, "<br>or ".join(texts)))
    yield from markdown.table(("setting", "value"), rows)


def _once(values: Sequence[Any]) -> str:
    """Returns different values once each."""
    return "<br>".join(dict.fromkeys(map(str, values)))


def _described(part: Any) -> str:
    """Returns a component with its fields in one line."""
    return f"{type(part).__name__}: {_listed(_fields(part, ''))}".rstrip(": ")


def _fields(part: Any, prefix: str) -> dict[str, Any]:
    """Returns fields by dotted name, but for those that are off."""
    if part is None:
        return {}
    fields = struct.plain_fields(part, prefix)
    return {n: v for n, v in fields.items() if v not in (None, False, "", [])}


def _listed(fields: Mapping[str, Any]) -> str:
    """Returns fields and values as text."""
    return ", ".join(f"{n} = {v}" for n, v in fields.items())

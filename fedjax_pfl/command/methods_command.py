"""The command line that lists methods and their fields."""

import dataclasses
import inspect
import re
import sys
from collections.abc import Iterator
from typing import Annotated, Any

import typer

from fedjax_pfl.command import cli

__all__ = ["HELP", "main"]

HELP = "Lists the methods; with a name, the fields that --set takes and their defaults."


def main(
    name: Annotated[
        str | None,
        typer.Argument(metavar="METHOD", help="As in --algorithm, for example flame."),
    ] = None,
) -> None:
    """Prints a table."""
    cli.answer(lambda: _print(name))


def _print(name: str | None) -> None:
    """Imports JAX late, so that `--help` answers at once."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    from fedjax_pfl.algorithms import registry
    from fedjax_pfl.core import checks

    if name is None:
        titles, rows = ("method", "what it is"), list(_methods(registry.ALGORITHMS))
    else:
        checks.known(name, registry.ALGORITHMS, "method")
        kind = registry.ALGORITHMS[name]
        print(f"{name}: {_sentence(kind)}")
        titles = ("field", "default", "in a grid", "meaning and range")
        rows = list(_fields(kind))
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for title in titles:
        table.add_column(title, overflow="fold")
    for row in rows:
        table.add_row(*row)
    width = None if sys.stdout.isatty() else 120
    Console(width=width, markup=False).print(table)
    if name is None:
        print("The fields of one: fedjax-pfl methods NAME")


def _methods(registry: Any) -> Iterator[tuple[str, str]]:
    """Yields names, and the first sentence of each class."""
    for name in sorted(registry):
        yield name, _sentence(registry[name])


def _sentence(kind: type) -> str:
    """Returns the first sentence of a class's docstring."""
    return " ".join((inspect.getdoc(kind) or "").partition("\n\n")[0].split())


def _fields(kind: type) -> Iterator[tuple[str, str, str, str]]:
    """Yields what can be set: default, cost in a grid, and documentation."""
    meanings = _meanings(kind)
    for field in dataclasses.fields(kind):
        value = field.default
        default = "" if value is dataclasses.MISSING else _text(value)
        cost = "one program per value" if field.metadata.get("static") else "an axis"
        is_part = dataclasses.is_dataclass(value)
        meaning = meanings.get(field.name, "")
        yield (
            f"algorithm.{field.name}",
            default,
            "by its fields" if is_part else cost,
            meaning,
        )


def _text(value: Any) -> str:
    """Formats a default as `--set` takes it; parts by their class."""
    if dataclasses.is_dataclass(value):
        return type(value).__name__
    return "none" if value is None else str(value)


def _meanings(kind: type) -> dict[str, str]:
    """Reads the `Attributes:` of a class and, where it has none, of its bases."""
    meanings: dict[str, str] = {}
    for owner in reversed(kind.__mro__):
        block = (inspect.getdoc(owner) or "").partition("Attributes:\n")[2]
        for name, text in re.findall(
            r"^  (\w+): (.*(?:\n    .*)*)", block, re.MULTILINE
        ):
            meanings[name] = " ".join(text.split())
    return meanings

"""The command line that lists methods and their fields."""

import dataclasses
import inspect
import re
from collections.abc import Iterator
from typing import Annotated

import typer

from fedjax_pfl.command import cli, completion

__all__ = ["main"]


@cli.answered
def main(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="METHOD",
            help="As in --algorithm, for example flame; list for all.",
            autocompletion=completion.methods,
        ),
    ] = None,
) -> None:
    """Prints a table."""
    # JAX is imported late, so that `--help` answers at once.
    from fedjax_pfl.algorithms import registry
    from fedjax_pfl.command import printing
    from fedjax_pfl.core import checks

    methods, console = registry.ALGORITHMS, printing.console()
    if name in (None, "list"):
        rows = [(method, _sentence(methods[method])) for method in sorted(methods)]
        printing.table(console, ("method", "what it is"), rows)
        print("The fields of one: fedjax-pfl methods NAME")
        return
    checks.known(name, methods, "method")
    print(f"{name}: {_sentence(methods[name])}")
    titles = ("field", "default", "in a grid", "meaning and range")
    printing.table(console, titles, _fields(methods[name]))


def _sentence(kind: type) -> str:
    """Returns the first sentence of a class's docstring."""
    return " ".join((inspect.getdoc(kind) or "").partition("\n\n")[0].split())


def _fields(
    kind: type, prefix: str = "algorithm"
) -> Iterator[tuple[str, str, str, str]]:
    """Yields the settable fields: name, default, cost in a grid, documentation."""
    from fedjax_pfl.engine import tuning

    meanings = _meanings(kind)
    for field in dataclasses.fields(kind):
        value = field.default
        default = "" if value is dataclasses.MISSING else str(value).lower()
        cost = "one program per value" if field.metadata.get("static") else "an axis"
        if dataclasses.is_dataclass(value):  # a part, with fields of its own
            default, cost = type(value).__name__, "by its fields"
        meaning = meanings.get(field.name, "")
        if "search" in field.metadata:
            meaning += f" --tune searches {tuning.text(tuning.declared(field))}."
        if "unsearched" in field.metadata:
            meaning += f" --tune leaves it: {field.metadata['unsearched']}."
        name = f"{prefix}.{field.name}"
        yield name, default, cost, meaning
        if dataclasses.is_dataclass(value):
            # A part, such as a local solver, is followed by its own fields.
            yield from _fields(type(value), name)


def _meanings(kind: type) -> dict[str, str]:
    """Reads the `Attributes:` of a class or, if it has none, of its bases."""
    meanings: dict[str, str] = {}
    # A class overrides the descriptions of its bases.
    for owner in reversed(kind.__mro__):
        block = (inspect.getdoc(owner) or "").partition("Attributes:\n")[2]
        for name, text in re.findall(
            r"^  (\w+): (.*(?:\n    .*)*)", block, re.MULTILINE
        ):
            meanings[name] = " ".join(text.split())
    return meanings

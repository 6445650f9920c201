"""The rooms of the package, and a drawing of the imports between them."""

import ast
import collections
from collections.abc import Iterator, Mapping
from pathlib import Path

__all__ = ["LEVELS", "draw", "edges", "imported", "rooms", "violations"]

PACKAGE = "fedjax_pfl"
ROOT = "__init__"
_ENTRY = "__main__"  # of `python -m fedjax_pfl`: above all rooms, and none itself
LEVELS = (
    ("core",),
    ("numerics", "data", "models", "local", "attacks", "messages", "results"),
    ("aggregators", "portfolio", "round"),
    ("algorithms", "engine"),
    ("figures",),
    (ROOT, "testing"),
    ("report",),
    ("benchmark",),
    ("command",),
)
"""Rooms from the ground up: each imports from lower levels, and from itself, only."""

Edges = Mapping[tuple[str, str], list[str]]


def rooms(package: Path) -> set[str]:
    """Returns the names of the rooms in a directory, and that of its root module."""
    folders = {path.parent.name for path in package.glob("*/__init__.py")}
    modules = {path.stem for path in package.glob("*.py")}
    return (folders | modules) - {_ENTRY}


def edges(package: Path) -> Edges:
    """Finds imports between rooms, also in functions: pair of rooms -> modules."""
    imports: dict[tuple[str, str], set[str]] = collections.defaultdict(set)
    names = rooms(package)
    for path in sorted(package.rglob("*.py")):
        parts = path.relative_to(package).with_suffix("").parts
        if parts[0] == _ENTRY:
            continue
        for name in imported(ast.parse(path.read_text("utf-8"))):
            words = name.split(".")
            if words[0] != PACKAGE:
                continue
            room = words[1] if len(words) > 1 and words[1] in names else ROOT
            if room != parts[0]:
                imports[parts[0], room].add("/".join(parts))
    return {edge: sorted(imports[edge]) for edge in sorted(imports)}


def imported(tree: ast.AST) -> Iterator[str]:
    """Yields the dotted names that a file imports, wherever it does."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            dots = "." * node.level
            yield from (f"{dots}{node.module}.{alias.name}" for alias in node.names)


def violations(imports: Edges) -> list[str]:
    """Returns a sentence for every edge that does not run to a lower level."""
    level = {room: number for number, row in enumerate(LEVELS) for room in row}
    # Rooms of one level must not import each other: circles would be possible.
    return [
        f"{source} imports {target}, which is not below it: {', '.join(modules)}"
        for (source, target), modules in imports.items()
        if source not in level or target not in level or level[target] >= level[source]
    ]


def draw(imports: Edges) -> str:
    """Draws the levels, highest first, each room with the rooms that it imports."""
    lines = []
    for number, row in reversed(list(enumerate(LEVELS))):
        for room in row:
            targets = [target for source, target in imports if source == room]
            lines.append(f"{number}  {room:<12} -> {', '.join(targets) or 'nothing'}")
    count = sum(map(len, LEVELS))
    lines.append(f"{count} rooms on {len(LEVELS)} levels, {len(imports)} edges")
    return "\n".join(lines)

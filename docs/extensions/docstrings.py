"""Docstrings of the package, which are Markdown, in the documentation.

Classes and functions go through autodoc, which reads reStructuredText: what differs is
translated. Module docstrings, which say what a method is, are parsed as Markdown.
"""

import dataclasses
import importlib
import inspect
import re
import typing
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from fedjax_pfl import algorithms

_PACKAGE = "fedjax_pfl"
_SECTION = re.compile(r"^\w+:$")
_ARGUMENT = re.compile(r"^\s*(\*{0,2}\w+):(\s|$)")  # napoleon reads it
_FIELD = re.compile(r"^  (\w+):(?=\s|$)")
_TYPE_MODULE = re.compile(r"\b(?:[a-z_]+\.)+(?=[A-Za-z])")
_SPECIAL = re.compile(r"([\\*|]|_(?!\w))")


def translate(lines: list[str]) -> list[str]:
    """Translates a Google-style docstring with Markdown into reStructuredText.

    Code in single backticks gets double ones, an indented block before the first
    section becomes a literal one; outside of code, stars, bars and final underscores
    are characters. Examples stay as they are.
    """
    translated, code, example, block, section = [], False, False, False, False
    for line in lines:
        section = section or bool(_SECTION.match(line))
        example = bool(line.strip()) and (example or line.lstrip().startswith(">>>"))
        indented = line.startswith("    ") and not section
        if indented and not block and translated and not translated[-1]:
            translated += ["::", ""]
            block = True
        block = block and (indented or not line.strip())
        if block or example:
            translated.append(line)
        else:
            text, code = _inline(line, code)
            translated.append(text)
    return translated


def _inline(line: str, code: bool) -> tuple[str, bool]:
    """Returns one line of text, and whether code goes on in the next one."""
    name = None if code else _ARGUMENT.match(line)
    start = name.end() if name else len(line) - len(line.lstrip())
    if line.lstrip().startswith("* ") and not code:
        start += 2
    text = line[:start]
    for number, part in enumerate(line[start:].split("`")):
        if number > 0:
            code = not code
            text += "``" if code or not part[:1].isalnum() else "``\\ "
        text += part if code else _SPECIAL.sub(r"\\\1", part)
    return text, code


def _translate(
    app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]
) -> None:
    """Translates a docstring in place, and adds the types of a class's fields."""
    lines[:] = translate(lines)
    if what == "class":
        lines[:] = _typed(lines, _types(obj))


def _types(cls: type) -> dict[str, str]:
    """Returns the types of the fields of a class in words; not those that are `Any`."""
    found = {}
    for base in reversed(cls.__mro__):
        for name, annotation in getattr(base, "__annotations__", {}).items():
            found[name] = _TYPE_MODULE.sub("", _type_text(annotation))
    return {name: text for name, text in found.items() if text != "Any"}


def _type_text(annotation: Any) -> str:
    """Returns an annotation as it is written; of checked ones what they check."""
    if typing.get_origin(annotation) is typing.Annotated:
        value, *checked = typing.get_args(annotation)
        kinds = [c.__name__ for c in checked if isinstance(c, type)]
        return " | ".join(kinds) or _type_text(value)
    if isinstance(annotation, str):
        return annotation
    return inspect.formatannotation(annotation)


def _typed(lines: list[str], types: dict[str, str]) -> list[str]:
    """Writes types behind the names of a section of attributes, as napoleon reads."""
    typed, inside = [], False
    for line in lines:
        inside = line == "Attributes:" or (inside and line[:1] in ("", " "))
        field = _FIELD.match(line)
        if inside and field and field[1] in types:
            line = f"  {field[1]} ({types[field[1]]}):{line[field.end() :]}"
        typed.append(line)
    return typed


def _unnoted(
    app: Sphinx,
    what: str,
    name: str,
    obj: Any,
    options: Any,
    signature: str,
    returned: str,
) -> tuple[str, str]:
    """Returns signatures without annotations that say nothing, or stand at fields."""
    if what == "class" and signature and dataclasses.is_dataclass(obj):
        whole, empty = inspect.signature(obj), inspect.Signature.empty
        bare = [p.replace(annotation=empty) for p in whole.parameters.values()]
        whole = whole.replace(parameters=bare, return_annotation=empty)
        return str(whole), returned
    return signature and signature.replace(": ~typing.Any", ""), returned


def _skip(
    app: Sphinx, what: str, name: str, obj: Any, skip: bool, options: Any
) -> bool | None:
    """Leaves out what is not ours, and hooks, which the base class documents."""
    foreign = not getattr(obj, "__module__", _PACKAGE).startswith(_PACKAGE)
    owner = getattr(obj, "__qualname__", "").partition(".")[0]
    hook = what == "class" and hasattr(algorithms.SingleExchange, name)
    return True if foreign or (hook and owner != "SingleExchange") else None


class ModuleText(SphinxDirective):
    """`{module-text} MODULE`: the docstring of a module after its first line."""

    required_arguments = 1
    has_content = False

    def run(self) -> list[nodes.Node]:
        """Parses it where the directive stands."""
        module = importlib.import_module(self.arguments[0])
        self.env.note_dependency(inspect.getsourcefile(module))
        first, _, rest = inspect.cleandoc(module.__doc__ or "").partition("\n")
        text = f"**{first}**\n{rest}"
        return self.parse_text_to_nodes(text)


def setup(app: Sphinx) -> dict[str, bool]:
    """Connects the translation and adds the directive."""
    app.connect("autodoc-process-docstring", _translate, priority=400)
    app.connect("autodoc-process-signature", _unnoted)
    app.connect("autodoc-skip-member", _skip)
    app.add_directive("module-text", ModuleText)
    return {"parallel_read_safe": True, "parallel_write_safe": True}

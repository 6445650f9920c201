"""Docstrings of the package, which are Markdown, in the documentation.

Classes and functions go through autodoc, which reads reStructuredText: what differs is
translated. Module docstrings, which say what a method is, are parsed as Markdown.
"""

import importlib
import inspect
import re
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from fedjax_pfl import algorithms

_PACKAGE = "fedjax_pfl"
_SECTION = re.compile(r"^\w+:$")
_ARGUMENT = re.compile(r"^\s*(\*{0,2}\w+):(\s|$)")  # napoleon reads it
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
    """Translates a docstring in place."""
    lines[:] = translate(lines)


def _unnoted(
    app: Sphinx,
    what: str,
    name: str,
    obj: Any,
    options: Any,
    signature: str,
    returned: str,
) -> tuple[str, str]:
    """Returns signatures without annotations that say nothing."""
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

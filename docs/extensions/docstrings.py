"""Docstrings of the package, which are Markdown, in the documentation.

Classes and functions go through autodoc, which reads reStructuredText: what differs is
translated. Module docstrings, which say what a method is, are parsed as Markdown.
"""

import importlib
import inspect
import re

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from fedjax_pfl import algorithms

_SECTION = re.compile(r"^\s*(\*{0,2}\w+):(\s|$)")  # of arguments: napoleon reads it
_SPECIAL = re.compile(r"([\\*|]|_(?!\w))")


def translate(lines: list[str]) -> list[str]:
    """Translates a Google-style docstring with Markdown into reStructuredText.

    Code in single backticks gets double ones; outside of it, stars, bars and final
    underscores are characters. Examples stay as they are.
    """
    translated, code, example = [], False, False
    for line in lines:
        example = bool(line.strip()) and (example or line.lstrip().startswith(">>>"))
        if example:
            translated.append(line)
            continue
        name = _SECTION.match(line) if not code else None
        start = name.end() if name else len(line) - len(line.lstrip())
        if line.lstrip().startswith("* ") and not code:
            start += 2
        text = line[:start]
        for number, part in enumerate(line[start:].split("`")):
            code ^= number > 0
            if number > 0:
                text += "``" + ("" if code or not part[:1].isalnum() else r"\ ")
            text += part if code else _SPECIAL.sub(r"\\\1", part)
        translated.append(text)
    return translated


def _translate(app, what, name, obj, options, lines) -> None:
    lines[:] = translate(lines)


def _skip(app, what, name, obj, skip, options) -> bool | None:
    """Leaves the hooks of algorithms to the class that defines them."""
    hook = what == "class" and hasattr(algorithms.SingleExchange, name)
    owner = getattr(obj, "__qualname__", "").partition(".")[0]
    return True if hook and owner != "SingleExchange" else None


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
    app.connect("autodoc-skip-member", _skip)
    app.add_directive("module-text", ModuleText)
    return {"parallel_read_safe": True, "parallel_write_safe": True}

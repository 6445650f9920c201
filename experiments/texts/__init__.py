"""Texts of generated pages: Jinja templates in Markdown, one file per page.

Lines of a paragraph are wrapped in the file, and one line in the page. Tables, lists
and other text of several lines come from the code.
"""

import re
from pathlib import Path
from typing import Any

import jinja2

__all__ = ["blocks", "page", "rendered"]


def rendered(template: str, **values: Any) -> str:
    """Returns a template's text; undefined names are errors, instead of gaps."""
    environment = jinja2.Environment(
        undefined=jinja2.StrictUndefined, keep_trailing_newline=True, autoescape=False
    )
    return environment.from_string(template).render(values)


def blocks(name: str, **values: Any) -> list[str]:
    """Returns the headings, paragraphs and tables of `<name>.md` with these values."""
    source = (Path(__file__).parent / f"{name}.md").read_text("utf-8")
    parts = [
        part if part.startswith("```") else part.replace("\n", " ")
        for part in source.strip().split("\n\n")
    ]
    parts = re.split("\n{2,}", rendered("\n\n".join(parts), **values))
    return [part for part in parts if part.strip()]


def page(name: str, **values: Any) -> str:
    """Returns the page of the blocks of `<name>.md`."""
    return "\n\n".join(blocks(name, **values)) + "\n"

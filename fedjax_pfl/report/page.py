"""The page of a report: one self-contained file."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import jinja2

from fedjax_pfl.report import facts, histories, sections, sources, svg, tables
from fedjax_pfl.results import comparison

__all__ = ["FOLDER", "Content", "filled", "render"]

FOLDER = "report_files"
"""Folder of the figures and tables as files, next to the page."""
_HERE = Path(__file__).parent
_MANY = 3  # methods that a title names


@dataclasses.dataclass(frozen=True)
class Content:
    """Content of a page."""

    loaded: sources.Loaded
    headline: tuple[comparison.Comparison, ...]  # open
    details: tuple[comparison.Comparison, ...]  # opened by a click
    sections: tuple[sections.Section, ...]
    facts: tuple[tables.Table, ...]  # searched settings, and seconds


def render(content: Content) -> str:
    """Writes the page."""
    loaded = content.loaded
    links = [(table.name, table.title) for table in content.headline]
    links += [(section.name, section.title) for section in content.sections]
    links += [(table.name, table.title) for table in content.facts]
    links += [("configuration", "Configuration"), ("again", "How to run it again")]
    # Texts from names and settings are escaped; a rule of the page forbids loading
    # other files.
    return filled(
        "page.html.jinja",
        title=_title(loaded),
        overview=facts.overview(loaded),
        chapters=links,
        methods=facts.methods(loaded.result),
        headline=content.headline,
        details=content.details,
        sections=content.sections,
        facts=content.facts,
        configuration=facts.configuration(loaded),
        sources=[
            {
                "name": source.name,
                "command": source.command,
                "facts": facts.provenance(source),
            }
            for source in loaded.sources
        ],
        drawn={section.name: _drawn(section) for section in content.sections},
        histories={
            section.name: histories.packed(section.content)
            for section in content.sections
            if section.name == "clients"
        },
        folder=FOLDER,
        texts=_texts,
    )


def _drawn(section: sections.Section) -> dict[str, str]:
    """Returns a section's figure by the name of its y-axis."""
    return {
        view: svg.inline(
            figure, "-".join(filter(None, (section.name, view))), section.title
        )
        for view, figure in section.views()
    }


def _title(loaded: sources.Loaded) -> str:
    """Formats text, for example `Flame, FedAvg and Local on digits`."""
    *heads, tail = facts.methods(loaded.result)
    text = f"{', '.join(heads)} and {tail}" if heads else tail
    if len(heads) >= _MANY:
        text = f"{len(heads) + 1} methods"
    data = loaded.result.communication()["dataset"].dropna().unique()
    return f"{text} on {', '.join(map(str, data)) or 'own data'}"


def _texts(row: comparison.Row) -> str:
    """Returns text and verdict of a row's differences to every row, as JSON."""
    texts = [
        ("reference", "reference") if d is None else (d.text, d.verdict)
        for d in row.differences
    ]
    return json.dumps(texts)


def filled(template: str, **content: Any) -> str:
    """Returns a page of a template, which escapes all texts, with style and script."""
    # A misspelled name in a template is an error, not an empty text.
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_HERE),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
    )
    css, js = ((_HERE / f"page.{end}").read_text("utf-8") for end in ("css", "js"))
    return environment.get_template(template).render(css=css, js=js, **content)

"""Tables of a report, as Markdown and LaTeX."""

import dataclasses
import html
import math
import re
from collections.abc import Iterable, Sequence

from fedjax_pfl.results import comparison

__all__ = [
    "Part",
    "Table",
    "latex",
    "markdown",
    "number",
    "of_comparison",
    "of_rows",
]

_SPECIAL = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    "±": r"$\pm$",
    "×": r"$\times$",
    "−": "$-$",
    "–": "--",
} | {character: f"\\{character}" for character in "&%$#_{}"}


@dataclasses.dataclass(frozen=True)
class Part:
    """Rows of a table under a separate heading, which may be empty."""

    heading: str
    rows: tuple[tuple[str, ...], ...]


@dataclasses.dataclass(frozen=True)
class Table:
    """A table of text."""

    name: str  # stem of its file names
    title: str
    caption: str  # meaning of its numbers
    columns: tuple[str, ...]  # titles
    parts: tuple[Part, ...]  # at least one
    num_texts: int = 1  # text columns at the left
    short: str = ""  # caption for a paper, or empty
    best: tuple[int, ...] = ()  # columns with the first row of a part in bold


def of_rows(
    name: str,
    title: str,
    caption: str,
    columns: Iterable[str],
    rows: Iterable[tuple[str, ...]],
    num_texts: int = 1,
) -> Table:
    """Returns a table of one part."""
    parts = (Part("", tuple(rows)),)
    return Table(name, title, caption, tuple(columns), parts, num_texts)


def of_comparison(source: comparison.Comparison) -> Table:
    """Returns a comparison with differences to each environment's reference."""
    parts = tuple(
        Part(environment.title, tuple(comparison.rows_of(source, environment)))
        for environment in source.environments
    )
    return Table(
        name=source.name,
        title=source.title,
        caption=source.caption,
        columns=comparison.titles_of(source),
        parts=parts,
        num_texts=2,
        short=source.short,
        best=(0, 1, 2) if source.is_paired else (),
    )


def number(value: float) -> str:
    """Formats a number of any size for a cell."""
    if math.isnan(value):
        return "–"
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def markdown(table: Table) -> str:
    """Returns the table as Markdown, with its caption below it."""
    lines = [f"### {_plain(table.title)}", ""]
    rule = ["---"] * table.num_texts
    rule += ["---:"] * (len(table.columns) - table.num_texts)
    for part in table.parts:
        if part.heading:
            lines += [f"{_plain(part.heading)}:", ""]
        for row in (table.columns, rule, *part.rows):
            cells = row if row is rule else map(_plain, row)
            lines.append(f"| {' | '.join(cells)} |")
        lines.append("")
    return "\n".join([*lines, _plain(table.caption), ""])


def latex(table: Table) -> str:
    """Returns the table as LaTeX, with rules of the package booktabs."""
    width = len(table.columns)
    kinds = "l" * table.num_texts + "r" * (width - table.num_texts)
    caption = f"{table.title}. {table.caption}"
    lines = [r"% needs \usepackage{booktabs}"]
    if table.short:
        # The long caption stays in the file as a comment.
        lines, caption = [*lines, f"% {_line(caption)}"], table.short
    lines += [r"\begin{table}", r"\centering", rf"\caption{{{_tex(caption)}}}"]
    lines += [rf"\begin{{tabular}}{{{kinds}}}", r"\toprule"]
    lines.append(_row([_tex(title) for title in table.columns]))
    for part in table.parts:
        lines.append(r"\midrule")
        if part.heading:
            heading = _tex(part.heading)
            lines.append(rf"\multicolumn{{{width}}}{{l}}{{{heading}}} \\")
        for number, row in enumerate(part.rows):
            bold = table.best if number == 0 else ()
            cells = enumerate(map(_tex, row))
            lines.append(
                _row([rf"\textbf{{{t}}}" if k in bold else t for k, t in cells])
            )
    lines += [r"\bottomrule", r"\end{tabular}", r"\end{table}", ""]
    return "\n".join(lines)


def _row(cells: Sequence[str]) -> str:
    """Formats a row of LaTeX; protects a leading bracket, which starts an option."""
    return " & ".join(f"{{{t}}}" if t[:1] == "[" else t for t in cells) + r" \\"


def _tex(text: str) -> str:
    """Escapes text for LaTeX."""
    return "".join(_SPECIAL.get(character, character) for character in _line(text))


def _plain(text: str) -> str:
    """Escapes text for Markdown, including HTML."""
    escaped = html.escape(_line(text), quote=False)
    return re.sub(r"([\\`*_|]|(?<=\])\()", r"\\\1", escaped)


def _line(text: str) -> str:
    """Returns text in one line."""
    return " ".join(text.split())

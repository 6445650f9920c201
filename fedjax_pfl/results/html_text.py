"""Rankings as HTML, which notebooks show."""

import html
from collections.abc import Sequence

from fedjax_pfl.results import comparison

__all__ = ["of_comparison", "paragraph", "preformatted"]


def of_comparison(compared: comparison.Comparison) -> str:
    """Returns a table per environment below its conclusion, the best row in bold."""
    parts = []
    for environment in compared.environments:
        titles, rows = comparison.brief(compared, environment)
        best, *others = rows
        lines = [_row(titles, "th"), _row(best, "td", is_bold=compared.is_paired)]
        lines += [_row(row, "td") for row in others]
        if environment.title:
            parts.append(paragraph(environment.title))
        if environment.conclusion:
            parts.append(paragraph(environment.conclusion))
        parts.append(f"<table>{''.join(lines)}</table>")
    return "".join(parts)


def paragraph(text: str) -> str:
    """Returns a paragraph of text."""
    return f"<p>{html.escape(text)}</p>"


def preformatted(text: str) -> str:
    """Returns lines of text in their columns; nothing if there are none."""
    return f"<pre>{html.escape(text)}</pre>" if text.strip() else ""


def _row(cells: Sequence[str], kind: str, is_bold: bool = False) -> str:
    """Returns a row; the first two cells are texts."""
    shown = []
    for number, cell in enumerate(cells):
        text = f"<b>{html.escape(cell)}</b>" if is_bold else html.escape(cell)
        side = "left" if number < 2 else "right"
        shown.append(f'<{kind} style="text-align: {side}">{text}</{kind}>')
    return f"<tr>{''.join(shown)}</tr>"

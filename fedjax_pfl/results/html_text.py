"""Rankings as HTML for notebooks."""

import html
from collections.abc import Sequence

from fedjax_pfl.results import comparison

__all__ = ["of_comparison", "paragraph", "preformatted"]


def of_comparison(compared: comparison.Comparison) -> str:
    """Returns a table per environment below its conclusion, the best row in bold."""
    parts = []
    for environment in compared.environments:
        titles, rows = comparison.brief(compared, environment)
        top_row, *lower_rows = rows
        lines = [_row(titles, "th"), _row(top_row, "td", is_bold=compared.is_paired)]
        lines += [_row(row, "td") for row in lower_rows]
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
    """Returns lines of text in fixed-width columns; empty without text."""
    return f"<pre>{html.escape(text)}</pre>" if text.strip() else ""


def _row(cells: Sequence[str], kind: str, is_bold: bool = False) -> str:
    """Returns a row; the first two cells are texts."""
    texts = []
    for number, cell in enumerate(cells):
        text = f"<b>{html.escape(cell)}</b>" if is_bold else html.escape(cell)
        side = "left" if number < 2 else "right"
        texts.append(f'<{kind} style="text-align: {side}">{text}</{kind}>')
    return f"<tr>{''.join(texts)}</tr>"

"""The console and the tables of commands, as wide as the terminal."""

import os
import sys
from collections.abc import Container, Iterable, Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from fedjax_pfl.core import texts

__all__ = ["console", "table"]

_WIDTH = 160  # of files and pipes, where rich would assume 80
_GAP = 2  # between columns; the edges take one of them and one more


class _Console(Console):
    """A console that prints texts unchanged: no markup, emoji or control."""

    def render_str(self, text: str, **options: Any) -> Text:
        """Renders a text or a table's cell, with control characters made visible."""
        return super().render_str(texts.printable(text), **options)


def console(*, quiet: bool = False) -> Console:
    """Makes a console that prints texts unchanged, without wrapping lines."""
    is_known = sys.stdout.isatty() or "COLUMNS" in os.environ
    return _Console(
        quiet=quiet,
        width=None if is_known else _WIDTH,
        highlight=False,
        markup=False,
        emoji=False,
        soft_wrap=True,
    )


def table(
    console: Console,
    titles: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    title: str | None = None,
    numbers: Container[str] = (),
    styles: Sequence[str] = (),
) -> None:
    """Prints a table; breaks cells between words if lines are short."""
    # Names in files may have control characters, which would act on the terminal.
    rows = [[*map(texts.printable, row)] for row in rows]
    columns = list(zip(titles, *filter(None, rows), strict=True))
    drawn = Table(
        title=title, box=box.SIMPLE_HEAD, show_header=any(titles), padding=(0, 1, 0, 0)
    )
    for name, width in zip(titles, _widths(columns, console.width), strict=True):
        justify = "right" if name in numbers else "left"
        drawn.add_column(name, width=width, justify=justify, overflow="fold")
    for number, row in enumerate(rows):
        if row:
            drawn.add_row(*row, style=styles[number] if styles else None)
        else:
            drawn.add_section()
    console.print(drawn, soft_wrap=False, crop=False)


def _widths(columns: Sequence[Sequence[str]], available: int) -> list[int]:
    """Narrows the widest columns until all fit, though not below their words."""
    widths = [_longest(cells, "\n") for cells in columns]
    words = [_longest(cells, None) for cells in columns]
    while sum(widths) + _GAP * len(widths) + 1 > available:
        candidates = [k for k, width in enumerate(widths) if width > words[k]]
        if not candidates:
            break
        widths[max(candidates, key=lambda k: widths[k])] -= 1
    return widths


def _longest(cells: Sequence[str], separator: str | None) -> int:
    """Returns the length of the longest line or, without a separator, word."""
    return max(len(part) for cell in cells for part in cell.split(separator) or [""])

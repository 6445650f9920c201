"""Progress in a notebook: one display below the cell, which is updated in place.

HTML without scripts and widgets, so that it also stays in a saved notebook.
"""

import html
import importlib
import sys
import time
from typing import Any

from fedjax_pfl.engine.callbacks.pace import Pace

__all__ = ["Table", "is_here"]

_SECONDS = 0.1
"""Least time between two updates."""


def is_here() -> bool:
    """Returns whether this process is the kernel of a notebook; imports nothing."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return getattr(shell, "kernel", None) is not None


class Table:
    """One row per group, in the output of the cell that trains."""

    def __init__(self):
        self._rows: list[Pace] = []
        self._handle, self._last_update = None, 0.0

    def begin(self, pace: Pace) -> None:
        """Adds a group."""
        self._rows.append(pace)
        self._show()

    def update(self, pace: Pace) -> None:
        """Shows all groups, if the last update is old enough."""
        if time.monotonic() - self._last_update >= _SECONDS:
            self._show()

    def close(self) -> None:
        """Shows the end."""
        self._show()

    def _show(self) -> None:
        """Shows all groups in place of the last update."""
        display = importlib.import_module("IPython.display")  # needs a kernel
        self._last_update = time.monotonic()
        content: Any = {
            "text/html": f"<table>{''.join(map(_row, self._rows))}</table>",
            "text/plain": "\n".join(
                ", ".join([f"{row.title}: {rounds}", *texts])
                for row in self._rows
                for rounds, *texts in [row.parts()]
            ),
        }
        if self._handle is None:
            self._handle = display.display(content, raw=True, display_id=True)
        else:
            self._handle.update(content, raw=True)


def _row(pace: Pace) -> str:
    """Returns a row of the table."""
    bar = f'<progress value="{pace.done}" max="{pace.num_rounds}"></progress>'
    cells = [html.escape(pace.title), bar, *map(html.escape, pace.parts())]
    return f"<tr>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>"

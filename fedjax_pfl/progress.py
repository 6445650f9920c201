"""Progress of long work on standard error: bars on a terminal, else lines of a log."""

import contextlib
import time
from collections.abc import Callable, Iterator

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.text import Text

__all__ = ["Shown", "shown"]

LINE_SECONDS = 30.0
"""Least time between two lines of one group in a log."""

Shown = Callable[[str], Callable[[int, str], None]]
"""Takes the title of a group, returns what takes its further rounds and a text."""


@contextlib.contextmanager
def shown(num_rounds: int, *, quiet: bool) -> Iterator[Shown]:
    """Shows how far groups of trainings are.

    Args:
      num_rounds: of every group.
      quiet: whether to show nothing.

    Yields:
      What begins a group.
    """
    console = Console(stderr=True)
    if quiet:
        yield lambda title: lambda rounds, text: None
    elif not console.is_terminal:
        yield lambda title: _logged(console, title, num_rounds)
    else:
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("rounds"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            _Rate(),
            TextColumn("{task.fields[text]}"),
        )
        with Progress(*columns, console=console) as bar:

            def begin(title: str) -> Callable[[int, str], None]:
                task = bar.add_task(title, total=num_rounds, text="compiling")
                return lambda rounds, text: bar.update(task, advance=rounds, text=text)

            yield begin


class _Rate(ProgressColumn):
    """Rounds per second of late."""

    def render(self, task: Task) -> Text:
        """For example `12.3 rounds/s`; nothing before the first ones."""
        speed = task.finished_speed or task.speed
        return Text("" if speed is None else f"{speed:.3g} rounds/s")


def _logged(
    console: Console, title: str, num_rounds: int
) -> Callable[[int, str], None]:
    """Prints a line now and then, and the last one."""
    started = last = time.monotonic()
    done = 0

    def advance(rounds: int, text: str) -> None:
        nonlocal done, last
        done += rounds
        now = time.monotonic()
        if done < num_rounds and now - last < LINE_SECONDS:
            return
        last = now
        rate = done / max(now - started, 1e-9)
        left = (num_rounds - done) / max(rate, 1e-9)
        line = f"{title}: {done}/{num_rounds} rounds, {now - started:.0f} s,"
        line += f" {rate:.3g} rounds/s, {left:.0f} s left, {text}"
        console.print(line, soft_wrap=True, highlight=False, markup=False)

    return advance

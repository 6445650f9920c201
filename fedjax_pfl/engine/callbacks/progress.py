"""Progress of trainings: bars on a terminal, a table in a notebook, else a log."""

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    ProgressColumn,
    Task,
    TextColumn,
    TimeElapsedColumn,
)
from rich.progress import Progress as Bars
from rich.text import Text

from fedjax_pfl import results
from fedjax_pfl.engine.callbacks import base, notebook
from fedjax_pfl.engine.callbacks.pace import Pace, duration, title

__all__ = ["Log", "Progress", "steps"]

LINE_SECONDS = 30.0
"""Least time between two lines of one group in a log."""


class _Display(Protocol):
    """Display of progress."""

    def begin(self, pace: Pace) -> None:
        """Shows a new group."""

    def update(self, pace: Pace) -> None:
        """Shows changes of the group."""

    def close(self) -> None:
        """Shows no more."""


class Progress(base.Callback):
    """Shows rounds per second, the current metric and the time left of every group."""

    def __init__(self, num_groups: int | None = None):
        self._num_groups = num_groups

    def begin(self, trainings: Sequence[base.Training]) -> None:
        """Opens the display with the first group."""
        trainings_by_group: dict[int, list[base.Training]] = {}
        for training in trainings:
            trainings_by_group.setdefault(training.group, []).append(training)
        count = self._num_groups or len(trainings_by_group)
        self._waiting = [
            title(group, count, members[0].settings["algorithm"], len(members))
            for group, members in trainings_by_group.items()
        ]
        self._num_rounds = trainings[0].num_rounds
        self._display = _display()
        self._next()

    def _next(self) -> None:
        """Begins the next group, if there is one."""
        if self._waiting:
            self._pace = Pace(self._waiting.pop(0), self._num_rounds)
            self._display.begin(self._pace)

    def evaluated(self, evaluation: base.Evaluation) -> None:
        """Shows an evaluation."""
        done, text = evaluation.round, evaluation.headline()
        # A bar of a training that was stopped early is complete.
        if evaluation.is_last and done < self._num_rounds:
            text = f"{text}, ended after round {done}"
            done = self._num_rounds
        self._pace.reach(done, text, is_restored=evaluation.is_restored)
        self._display.update(self._pace)
        if evaluation.is_last:
            self._next()

    def end(self, result: results.Result | None) -> None:
        """Closes the display."""
        self._display.close()


@contextlib.contextmanager
def steps(
    title: str, num_rounds: int, *, is_shown: bool
) -> Iterator[Callable[[int, str], None]]:
    """Shows the progress of work without evaluations, by calls `(rounds, text)`."""
    if not is_shown:
        yield lambda done, text: None
        return
    display, pace = _display(), Pace(title, num_rounds)
    display.begin(pace)

    def reach(done: int, text: str) -> None:
        pace.reach(done, text, is_restored=False)
        display.update(pace)

    try:
        yield reach
    finally:
        display.close()


def _display() -> _Display:
    """Returns the display for the environment of this process."""
    if notebook.is_here():
        return notebook.Table()
    console = Console(stderr=True)
    return _Bars(console) if console.is_terminal else Log(console)


class Log:
    """A line every half minute, and the last one of every group."""

    def __init__(self, console: Console):
        self._console = console

    def begin(self, pace: Pace) -> None:
        """Starts to wait for the first line."""
        self._last = pace.elapsed

    def update(self, pace: Pace) -> None:
        """Prints a line if the last one is old enough."""
        is_complete = pace.done == pace.num_rounds
        if not is_complete and pace.elapsed - self._last < LINE_SECONDS:
            return
        self._last = pace.elapsed
        line = f"{pace.title}: {', '.join(pace.parts())}"
        self._console.print(Text(line), soft_wrap=True)

    def close(self) -> None:
        """Does nothing: printed lines stay."""


class _Bars:
    """One bar per group."""

    def __init__(self, console: Console):
        self._bars = Bars(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("rounds"),
            TimeElapsedColumn(),
            _Pace(),
            TextColumn("{task.fields[pace].text}", markup=False),
            console=console,
        )
        self._bars.start()

    def begin(self, pace: Pace) -> None:
        """Adds a bar."""
        self._task = self._bars.add_task(pace.title, total=pace.num_rounds, pace=pace)

    def update(self, pace: Pace) -> None:
        """Moves the last bar."""
        self._bars.update(self._task, completed=pace.done)

    def close(self) -> None:
        """Stops to draw, and leaves the bars on the screen."""
        self._bars.stop()


class _Pace(ProgressColumn):
    """Rounds per second and the time left, which goes on between evaluations."""

    def render(self, task: Task) -> Text:
        """Shows `12.3 rounds/s 0:01:23 left`; nothing before the first rounds."""
        pace: Pace = task.fields["pace"]
        left = pace.left(time.monotonic())
        if pace.rate is None or left is None:
            return Text()
        return Text(f"{pace.rate:.3g} rounds/s {duration(left)} left")

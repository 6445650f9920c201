"""Pace of a group of trainings, and the time left."""

import datetime
import time

from fedjax_pfl.core import texts

__all__ = ["Pace", "duration", "title"]


class Pace:
    """Rounds of a group against the clock; its rate is in rounds per second."""

    def __init__(self, title: str, num_rounds: int):
        """Starts the clock."""
        self.title, self.num_rounds = texts.printable(title), num_rounds
        self.done, self.text, self.rate = 0, "compiling", None
        self._start = self._now = time.monotonic()
        self._since = (self._start, 0)
        self._is_compiled = False

    def reach(self, done: int, text: str, *, is_restored: bool = False) -> None:
        """Updates the number of finished rounds."""
        self._now = time.monotonic()
        self.done, self.text = done, texts.printable(text)
        # Rounds from a checkpoint do not count, nor, once there are others, those of
        # the first segment, which waited for the compiler.
        if is_restored or done == 0:
            self._since = (self._now, done)
            return
        start, rounds = self._since
        if done > rounds:
            self.rate = (done - rounds) / max(self._now - start, 1e-9)
        if not self._is_compiled:
            self._since, self._is_compiled = (self._now, done), True

    @property
    def elapsed(self) -> float:
        """Seconds until the last finished round."""
        return self._now - self._start

    def left(self, now: float | None = None) -> float | None:
        """Seconds left when the rounds were done, or at a later time of the clock."""
        if self.rate is None:
            return None
        waited = 0.0 if now is None else now - self._now
        return max((self.num_rounds - self.done) / self.rate - waited, 0.0)

    def parts(self) -> tuple[str, ...]:
        """Returns the parts of a line: rounds, time, rate, time left, text."""
        parts = [f"{self.done}/{self.num_rounds} rounds", duration(self.elapsed)]
        left = self.left()
        if self.rate is not None and left is not None:
            parts += [f"{self.rate:.3g} rounds/s", f"{duration(left)} left"]
        return (*parts, self.text)


def duration(seconds: float) -> str:
    """Formats text, for example `0:01:23`."""
    return str(datetime.timedelta(seconds=round(seconds)))


def title(group: int, num_groups: int, algorithm: str, num_points: int) -> str:
    """Formats text, for example `1/3 Flame x 4`, of a group's number from 0."""
    return f"{group + 1}/{num_groups} {algorithm} x {num_points}"

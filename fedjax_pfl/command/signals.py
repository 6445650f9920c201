"""SIGINT and SIGTERM: the first lets running rounds end, the second ends at once."""

import signal
import sys
import threading
from types import FrameType

__all__ = ["Signals"]

_CAUGHT = (signal.SIGINT, signal.SIGTERM)


class Signals:
    """A context in which signals are remembered instead of ending the process."""

    def __init__(self):
        self.number: int | None = None
        self._before = {}

    def __enter__(self) -> "Signals":
        if threading.current_thread() is threading.main_thread():
            self._before = {n: signal.signal(n, self._remember) for n in _CAUGHT}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _remember(self, number: int, frame: FrameType | None) -> None:
        del frame
        if self.number is not None:
            raise KeyboardInterrupt
        self.number = number
        print(
            "Ending after the rounds that are running; once more ends at once.",
            file=sys.stderr,
        )

    def asked(self) -> str | None:
        """Returns the signal that came, as a reason to end, or None."""
        if self.number is None:
            return None
        return f"Interrupted by {signal.Signals(self.number).name}"

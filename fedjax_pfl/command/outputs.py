"""Standard output and error that may be closed, or whose reader may have gone.

A command that only prints ends as programs in pipes do, by SIGPIPE. One whose product
is a folder goes on without a word.
"""

import io
import os
import signal
import sys
from typing import Any, TextIO

from fedjax_pfl.core import texts

__all__ = ["go_on", "install", "say"]


class _Unread(io.FileIO):
    """A stream that throws away what cannot be written."""

    def write(self, data: Any) -> int | None:
        """Writes, or turns the descriptor into that of a file that takes everything."""
        try:
            return super().write(data)
        except OSError:
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, self.fileno())
            os.close(null)
            return len(data)


def install() -> None:
    """Opens what is closed, so that no file gets its number; SIGPIPE ends the process.

    Acts before anything else is opened.
    """
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest number that is free
    for name, descriptor in (("stdout", 1), ("stderr", 2)):
        if getattr(sys, name) is None:
            setattr(sys, name, open(descriptor, "w", closefd=False))
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)


def say(text: object, *, error: bool = False) -> None:
    """Prints a text, whose control characters a terminal shows."""
    print(texts.printable(text), file=sys.stderr if error else None, flush=True)


def go_on() -> None:
    """Keeps the command going where nobody reads what it prints."""
    if signal.getsignal(signal.SIGPIPE) != signal.SIG_DFL:
        return  # a caller's process, where `install` was not called
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    sys.stdout, sys.stderr = _unread(sys.stdout), _unread(sys.stderr)


def _unread(stream: TextIO) -> TextIO:
    """Returns a stream like another that throws away what cannot be written."""
    try:
        descriptor = stream.fileno()
    except (OSError, ValueError):
        return stream  # of a program that calls the command, and reads what it prints
    stream.flush()
    raw = _Unread(descriptor, "w", closefd=False)
    return io.TextIOWrapper(
        io.BufferedWriter(raw),
        encoding=stream.encoding,
        errors=stream.errors,
        line_buffering=True,
    )

"""Standard output and error that may be closed, or lose their reader."""

import io
import os
import signal
import sys
from typing import Any, TextIO

from fedjax_pfl.core import texts

__all__ = ["go_on", "install", "say"]


class _Unread(io.FileIO):
    """A stream that drops output after its reader has gone."""

    def write(self, data: Any) -> int | None:
        """Writes, or redirects the descriptor to the null device."""
        try:
            return super().write(data)
        except OSError:
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, self.fileno())
            os.close(null)
            return len(data)


def install() -> None:
    """Opens closed streams and restores SIGPIPE; call it before any file is opened."""
    # Else a file would get the number of a stream, and everything that is printed.
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest free number
    for name, descriptor in (("stdout", 1), ("stderr", 2)):
        if getattr(sys, name) is None:
            setattr(sys, name, open(descriptor, "w", closefd=False))
    # A command that only prints ends by SIGPIPE, like other programs in pipes. One that
    # makes a folder continues silently, see `go_on`.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)


def say(text: object, *, error: bool = False) -> None:
    """Prints a text, with control characters made visible."""
    print(texts.printable(text), file=sys.stderr if error else None, flush=True)


def go_on() -> None:
    """Keeps the command running without a reader of its output."""
    if signal.getsignal(signal.SIGPIPE) != signal.SIG_DFL:
        return  # a caller's process, where `install` was not called
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    sys.stdout, sys.stderr = _unread(sys.stdout), _unread(sys.stderr)


def _unread(stream: TextIO) -> TextIO:
    """Returns a copy of a stream that drops output without a reader."""
    try:
        descriptor = stream.fileno()
    except (OSError, ValueError):
        return stream  # replaced by a program that calls the command
    stream.flush()
    raw = _Unread(descriptor, "w", closefd=False)
    return io.TextIOWrapper(
        io.BufferedWriter(raw),
        encoding=stream.encoding,
        errors=stream.errors,
        line_buffering=True,
    )

"""SIGINT, SIGTERM and SIGHUP, from a command's first line to the end of its process.

The first signal ends the process at once, with a sentence and 128 plus its number, or
at the end of a block of `held`. The second signal ends the process at any point.
"""

import atexit
import contextlib
import functools
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType

from fedjax_pfl.command import CAUGHT

__all__ = [
    "asking",
    "carried",
    "forward",
    "held",
    "install",
    "leave",
    "leave_after",
    "number",
    "resumable",
]

_SHOW_CURSOR = "\x1b[?25h"  # which progress bars hide


class _State:
    """Signals of this process, and the blocks that hold them."""

    number: int | None = None  # the first signal
    holding: int = 0  # open blocks of `held`
    pipe: int | None = None  # for the numbers of signals
    marks: int = 0  # zeros read from the pipe
    hint: str | None = None  # how to continue, if there is a folder
    delay: float | None = None  # seconds before `leave` ends the process


_state = _State()


def install() -> None:
    """Catches the signals until the process ends, except ignored ones."""
    # A signal's number goes into a pipe, and a thread reads it: the main thread may be
    # inside the compiler, or inside a callback that swallows exceptions.
    signal.pthread_sigmask(signal.SIG_BLOCK, CAUGHT)  # in the thread forever
    reading, _state.pipe = os.pipe()
    os.set_blocking(_state.pipe, False)
    signal.set_wakeup_fd(_state.pipe, warn_on_full_buffer=False)
    threading.Thread(target=_watch, args=(reading,), daemon=True).start()
    _handle(_wait)
    # Signals that `carried` or the command's first line blocked arrive now.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, CAUGHT)
    # The work is done then, and Python would restore the default handlers.
    atexit.register(_handle, signal.SIG_IGN)


def number() -> int | None:
    """Returns the signal that came, or None."""
    return _state.number


@contextlib.contextmanager
def held() -> Iterator[None]:
    """Keeps the first signal until the block has ended."""
    _state.holding += 1
    try:
        yield
    finally:
        _state.holding -= 1
    # Not after an error in the block, which prints its own sentence.
    if _state.number is not None and not _state.holding:
        _end_with_sentence()


@contextlib.contextmanager
def carried() -> Iterator[None]:
    """Passes signals to the command that the block becomes or starts."""
    # They stay blocked while a program starts, until its own `install`.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, CAUGHT)
    try:
        if _state.pipe is not None:
            _wait()  # for earlier signals
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


@contextlib.contextmanager
def asking() -> Iterator[Callable[[], str | None]]:
    """Yields a function that returns a signal as a reason to end, or None."""
    with contextlib.ExitStack() as stack:
        # A signal is held from the first call on. Before that no work can be lost, so
        # it need not wait for the compiler.
        hold = functools.cache(lambda: stack.enter_context(held()))

        def ask() -> str | None:
            hold()
            if _state.number is None:
                return None
            return f"Interrupted by {signal.Signals(_state.number).name}"

        yield ask


@contextlib.contextmanager
def resumable(hint: str) -> Iterator[None]:
    """Adds a hint to the sentence of a signal; the outermost block counts."""
    outer_hint = _state.hint
    _state.hint = outer_hint or hint
    try:
        yield
    finally:
        _state.hint = outer_hint


def forward(send: Callable[[int], None]) -> None:
    """Forwards later signals to a process that acts on them in place of this one."""
    signal.set_wakeup_fd(-1)
    _handle(lambda number, frame: send(number))


def leave_after(seconds: float) -> None:
    """Makes `leave` end the process some time after its sentence was printed."""
    # At a normal exit JAX would wait for processes that may be gone.
    _state.delay = seconds


def leave(status: int) -> None:
    """Ends the process if a signal came, though threads may still be compiling."""
    if _state.number is not None or _state.delay is not None:
        time.sleep(_state.delay or 0.0)
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        os._exit(status)


def _handle(action: Callable[[int, FrameType | None], None] | signal.Handlers) -> None:
    """Sets the handler of all signals that are not ignored."""
    for number in CAUGHT:
        # `nohup` ignores SIGHUP, and a shell SIGINT for processes in the background.
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, action)


def _wait(number: int = 0, frame: FrameType | None = None) -> None:
    """Waits until the thread has acted on all signals, or ended the process."""
    # Without locks, since a signal may come while one is held.
    marks = _state.marks
    assert _state.pipe is not None
    os.write(_state.pipe, bytes(1))
    while _state.marks == marks:
        time.sleep(0.001)


def _watch(reading: int) -> None:
    """Acts on signals, one after the other."""
    while True:
        for number in os.read(reading, 16):
            if number in CAUGHT:  # others may have handlers that packages made
                _come(number)
            _state.marks += number == 0


def _come(number: int) -> None:
    """Acts on a signal."""
    if _state.number is not None:
        _end(number)
    _state.number = number
    if not _state.holding:
        _end_with_sentence()
    _say(
        "Ending after the current rounds, or their compilation; a second signal ends at"
        " once.\n"
    )


def _end_with_sentence() -> None:
    """Ends the process at a point where no file is half written."""
    hint = "." if _state.hint is None else f"; {_state.hint}"
    _end(_state.number or signal.SIGINT, f"Interrupted{hint}\n")


def _end(number: int, sentence: str = "") -> None:
    """Ends the process, after restoring the terminal and the directories."""
    if (module := sys.modules.get("fedjax_pfl.core.temporaries")) is not None:
        module.remove_all()
    _say((_SHOW_CURSOR if os.isatty(2) else "") + sentence)
    os._exit(128 + number)


def _say(text: str) -> None:
    """Writes to standard error directly, since a print may hold the stream's lock."""
    with contextlib.suppress(OSError):
        if select.select([], [2], [], 0)[1]:
            os.write(2, text.encode())

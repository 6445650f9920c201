"""A parent of a process that JAX's runtime may abort if other processes are gone."""

import os
import re
import signal
import subprocess
import sys
import threading
from typing import IO, TextIO

from fedjax_pfl.command import signals

__all__ = ["LOST", "STATUS", "start"]

LOST = (
    "Another process of this training has ended, never came or cannot be reached; start"
    " all of them again, with --resume if the folder exists."
)
STATUS = 4
"""Exit status of a process after another one of its training was lost."""
_VARIABLE = "FEDJAX_PFL_WATCHED"
_FATAL = re.compile(rb"F\d{4} \d\d:\d\d:\d\d")
_NOISE = re.compile(rb"[EWI]\d{4} \d\d:\d\d:\d\d|\[Gloo\]")  # failures raise errors


def start() -> None:
    """Starts this command again as a child, and ends like it; returns in the child."""
    if os.environ.get(_VARIABLE) == str(os.getppid()):
        # A killed parent must not leave a training behind.
        threading.Thread(target=_end_with_parent, daemon=True).start()
        return
    # JAX's C++ part prints a trace and aborts. The parent passes on all other output,
    # and explains the abort in one sentence.
    with signals.carried():
        child = subprocess.Popen(
            [sys.executable, *sys.orig_argv[1:]],
            env=os.environ | {_VARIABLE: str(os.getpid())},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,  # a terminal's signals come through the parent only
        )
        signals.forward(child.send_signal)
    streams = ((child.stdout, sys.stdout), (child.stderr, sys.stderr))
    pumps = [threading.Thread(target=_pass_on, args=pair) for pair in streams]
    for pump in pumps:
        pump.start()
    status = child.wait()
    for pump in pumps:
        pump.join()
    if status in (-signal.SIGABRT, STATUS):
        print(LOST, file=sys.stderr, flush=True)
        status = STATUS
    os._exit(status if status >= 0 else 128 - status)


def _end_with_parent() -> None:
    """Ends this process when the parent's end of the pipe is closed."""
    while os.read(0, 1):
        pass
    os._exit(STATUS)


def _pass_on(source: IO[bytes], target: TextIO) -> None:
    """Prints the child's output, without the trace of an abort."""
    is_trace = False
    for line in source:
        # The trace is the last output of a process, so everything after it is dropped.
        is_trace = is_trace or _FATAL.match(line) is not None
        is_said = line.startswith(LOST.encode())  # the parent prints it at the end
        if not (is_trace or is_said or _NOISE.match(line)):
            target.write(line.decode(errors="replace"))
            target.flush()

"""Settings of glibc's allocator under which large buffers keep their memory."""

import os
import sys

from fedjax_pfl.command import signals

__all__ = ["VARIABLE", "VARIABLES", "allow", "is_allowed", "settle"]

VARIABLE = "FEDJAX_PFL_ALLOCATOR"
"""`huge-pages` once the settings are in force, or `system` to do without."""
# XLA takes a new buffer for every large result. By default malloc gets it from the
# system, which clears every page, and returns it after use; with these settings it
# keeps its memory, in huge pages. They are read when a process starts.
VARIABLES = {
    "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": str(2**36),
    "MALLOC_TOP_PAD_": str(2**28),
}
_is_own = False  # whether this is the process of a command


def allow() -> None:
    """Allows `settle` to restart the process: it belongs to a command."""
    global _is_own
    _is_own = True


def is_allowed() -> bool:
    """Returns whether `settle` may restart the process."""
    return _is_own


def settle() -> None:
    """Restarts a command's process under the settings, once; it keeps its number."""
    # Not if the process has done more than start a command, if the variable is set, if
    # the user has settings of the allocator or another allocator, or without glibc.
    is_new = _is_own and "jax" not in sys.modules
    names = {VARIABLE, "LD_PRELOAD", *VARIABLES}
    if not is_new or names & os.environ.keys() or not _is_glibc():
        return
    sys.stdout.flush()
    sys.stderr.flush()
    marked = os.environ | VARIABLES | {VARIABLE: "huge-pages"}
    words = [sys.executable, *sys.orig_argv[1:]]
    with signals.carried():
        os.execve(sys.executable, words, marked)


def _is_glibc() -> bool:
    """Returns whether the C library is glibc, on Linux."""
    if sys.platform != "linux":
        return False
    try:
        return (os.confstr("CS_GNU_LIBC_VERSION") or "").startswith("glibc")
    except (OSError, ValueError):
        return False

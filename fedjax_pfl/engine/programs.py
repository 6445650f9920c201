"""Programs of one group, compiled in other threads while the caller goes on."""

import collections
import concurrent.futures
import ctypes
import functools
import gc
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax

from fedjax_pfl.engine import cost, kept_programs

__all__ = ["Name", "Programs", "forget_if_needed", "give_memory_back", "options"]

Name = tuple[str, ...]
"""Name of a program; an evaluation's is followed by the data."""
_COMPILERS = 4
"""Programs that are compiled at once."""
_GRAPHS = "xla_gpu_enable_command_buffer"
_LOOPS: dict[str, str | bool] = {
    _GRAPHS: "FUSION,CUBLAS,CUBLASLT,CUDNN,CUSTOM_CALL,DYNAMIC_SLICE_FUSION"
    ",CONDITIONAL,WHILE",
    "xla_gpu_graph_min_graph_size": "1",
}
"""Options under which XLA launches a loop of many small kernels as one CUDA graph."""
_MEASURED = (0, 11, 2)  # the first JAX that they were checked with; early ones crash
_GROWTH = 1.25  # of the memory between two times that programs are dropped for it
_SPARE = 512 * 2**20
"""Growth of the resident memory after which what is free of it is given back."""
_trimmed: collections.deque[int] = collections.deque([0], maxlen=1)
"""Resident memory after it was last given back."""
_left: collections.deque[int] = collections.deque([0], maxlen=1)
"""Resident memory after programs were last dropped."""
_LIMIT = Path("/proc/sys/vm/max_map_count")


class Programs:
    """Programs by name, each compiled once; seconds and growth of memory so far."""

    def __init__(self, program: Callable[[Name], kept_programs.Program]):
        self._program = functools.cache(program)
        self.seconds, self.compiler_bytes = 0.0, 0
        self._compiling: dict[Name, concurrent.futures.Future] = {}
        self._compilers = concurrent.futures.ThreadPoolExecutor(_COMPILERS, "compile")

    def shapes(self, name: Name) -> Any:
        """Returns the shapes of a program's results."""
        return self._program(name).shapes()

    def begin(self, name: Name) -> None:
        """Lowers a program and starts to compile it, unless that was done before."""
        if name in self._compiling:
            return
        done = self._clock()
        # Lowered in the caller's thread, which has JAX's settings, and compiled in
        # others.
        lowered = self._program(name).lowered()
        self._compiling[name] = self._compilers.submit(lowered.compile, options())
        done()

    def __getitem__(self, name: Name) -> jax.stages.Compiled:
        """Returns a program once it is compiled."""
        self.begin(name)
        if self._compiling[name].done():
            return self._compiling[name].result()
        done = self._clock()
        program = self._compiling[name].result()
        done()
        return program

    def close(self) -> None:
        """Ends the compiler's threads once they are done."""
        self._compilers.shutdown(wait=False)

    def _clock(self) -> Callable[[], None]:
        """Returns a function that adds the time and the memory since this call."""
        import psutil  # only where a training begins

        process = psutil.Process()
        started, before = time.perf_counter(), process.memory_info().rss

        def done() -> None:
            self.seconds += time.perf_counter() - started
            self.compiler_bytes += max(process.memory_info().rss - before, 0)

        return done


def options() -> dict[str, str | bool] | None:
    """Returns options of the compiler for this machine, or None for its own."""
    # On one NVIDIA GPU the loop over a client's steps, of about ten small kernels each,
    # is launched as a whole. Flags of a user about graphs take precedence.
    flags = os.environ.get("XLA_FLAGS", "")
    is_checked = jax.__version_info__ >= _MEASURED and _GRAPHS not in flags
    if not is_checked or jax.default_backend() != "gpu":
        return None
    try:
        num_devices = len(jax.devices("cuda"))
    except RuntimeError:  # a GPU of another maker
        return None
    return _LOOPS if num_devices == 1 else None


def forget_if_needed() -> None:
    """Drops all compiled programs if they use half of the maps or of the memory."""
    # On a CPU each program maps memory hundreds of times, and a process may have some
    # 65,000 maps: without this, XLA kills a process of about 50 groups. JAX also keeps
    # up to hundreds of megabytes of a group.
    if _has_many_maps() or _has_half_of_memory():
        jax.clear_caches()
        gc.collect()
        _shrink()
        _left.append(_trimmed[-1])


def give_memory_back() -> None:
    """Returns free memory of the heap to the system, if the heap has grown by much."""
    # Deleted arrays of up to 32 MB stay in the heap, in pieces between others: after
    # some groups they are more than those in use, and other processes lack them.
    if _resident_bytes() > _trimmed[-1] + _SPARE:
        _shrink()


def _shrink() -> None:
    """Returns what is free in the heap, and keeps what the process has then."""
    _trim()(0)
    _trimmed.append(_resident_bytes())


@functools.cache
def _trim() -> Callable[[int], int]:
    """Returns glibc's `malloc_trim`, elsewhere a function that does nothing."""
    try:
        return ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError, TypeError):  # another library, another system
        return lambda _: 0


def _has_many_maps() -> bool:
    """Returns whether the process has half of the maps that Linux allows."""
    try:
        allowed = int(_LIMIT.read_text())
        with open("/proc/self/maps", "rb") as maps:
            return 2 * sum(1 for _ in maps) > allowed
    except OSError:  # another system, without the limit
        return False


def _has_half_of_memory() -> bool:
    """Returns whether the process has more of the host's memory than is left."""
    left, used = cost.available_bytes(host=True), _resident_bytes()
    # What was free after the last time is used again before the system gets it back.
    return left is not None and used > left and used > _GROWTH * _left[-1]


def _resident_bytes() -> int:
    """Returns the resident memory of this process."""
    import psutil  # only where a training begins

    return psutil.Process().memory_info().rss

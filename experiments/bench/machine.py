"""The machine: its CPUs, versions of libraries, and its rates of products."""

import contextlib
import datetime
import importlib.metadata
import math
import os
import platform
import re
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from fedjax_pfl.command import allocator
from fedjax_pfl.results import provenance

__all__ = [
    "UnavailableError",
    "copy",
    "cpus",
    "describe",
    "environment",
    "lines",
    "matmul",
    "output",
    "peak_bytes",
    "pin",
    "resident_bytes",
    "resident_peak",
    "restrict",
    "update",
]

_ROOT = Path(__file__).parents[2]
_SIZE = 1536
_COPIED = 2**26  # bytes: far more than the caches hold
_SIZE_ON_ACCELERATOR, _COPIED_ON_ACCELERATOR = 8192, 2**30
_PACKAGES = ("fedjax_pfl", "jax", "jaxlib", "numpy")
_PACKAGES += ("torch", "pfl", "flwr", "byzfl", "geom-median")


class UnavailableError(Exception):
    """Work that cannot be done here, with the reason."""


def cpus() -> tuple[int, ...]:
    """Returns the numbers of the CPUs that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return tuple(sorted(os.sched_getaffinity(0)))
    return tuple(range(os.cpu_count() or 1))


def pin(threads: int) -> None:
    """Restricts this process and its children to the first CPUs that it has."""
    # To be called before JAX or PyTorch start their threads.
    _use(cpus()[:threads])


def restrict(process: int, count: int) -> None:
    """Restricts this process, one of several, to its part of the CPUs."""
    # To be called before JAX starts its threads. More processes than CPUs share them.
    numbers = cpus()
    _use(numbers[process::count] or (numbers[process % len(numbers)],))


def _use(numbers: tuple[int, ...]) -> None:
    """Restricts this process and its children to some CPUs, if the system can."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, numbers)


def environment(settings: Mapping[str, Any]) -> dict[str, str]:
    """Returns the environment of a process that times, by fields of `describe`."""
    threads, devices = str(settings["threads"]), settings["devices"]
    flag = f"--xla_force_host_platform_device_count={devices}"
    flags = os.environ.get("XLA_FLAGS", "")
    pages = allocator.VARIABLES if settings["huge_pages"] else {}
    return os.environ | {
        **pages,
        "XLA_FLAGS": f"{flags} {flag}".strip() if devices > 1 else flags,
        "OMP_NUM_THREADS": threads,
        "OPENBLAS_NUM_THREADS": threads,
        "MKL_NUM_THREADS": threads,
        "JAX_ENABLE_COMPILATION_CACHE": "false",  # compile time is reported
    }


def output(
    module: str,
    *arguments: str,
    environment: Mapping[str, str] | None = None,
    advance: Callable[[], None] = lambda: None,
) -> str:
    """Runs a module; returns its last line, and calls `advance` for dots."""
    last = ""
    full = f"experiments.bench.{module}"
    for line in lines(full, *arguments, environment=environment):
        if line.strip() == ".":
            advance()
        else:
            last = line
    return last


def lines(
    module: str,
    *arguments: str,
    environment: Mapping[str, str] | None = None,
    seconds: Callable[[], float] = lambda: math.inf,
) -> Iterator[str]:
    """Yields the lines of a module's process; kills it `seconds()` after a line."""
    command = [sys.executable, "-m", module, *arguments]
    # A file, since a full pipe of errors would stop the process.
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as errors:
        with subprocess.Popen(
            command,
            cwd=_ROOT,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        ) as process:
            try:
                yield from _in_time(process, seconds)
            except GeneratorExit:
                process.kill()
                raise
        errors.seek(0)
        error_lines = errors.read().strip().splitlines() or ["the process said nothing"]
    if process.returncode:
        # The last line of a traceback is its message.
        raise UnavailableError(error_lines[-1].strip())


def _in_time(
    process: subprocess.Popen[str], seconds: Callable[[], float]
) -> Iterator[str]:
    """Yields the lines of a process, which is killed if one takes too long."""
    lines = iter(process.stdout or ())
    while True:
        start, limit = time.monotonic(), max(seconds(), 0)
        timer = threading.Timer(min(limit, threading.TIMEOUT_MAX), process.kill)
        timer.start()
        try:
            line = next(lines, None)
        finally:
            timer.cancel()
        if line is not None:
            yield line
        elif time.monotonic() - start >= limit:
            raise UnavailableError(f"it took more than {limit:.0f} s")
        else:
            return


def _versions() -> dict[str, str]:
    """Returns the versions of the installed packages that may take part."""
    versions = {"python": platform.python_version()}
    for name in _PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = importlib.metadata.version(name)
    return versions


def describe(threads: int, devices: int, huge_pages: bool) -> dict[str, Any]:
    """Describes the machine and versions for readers of the numbers."""
    return {
        "processor": provenance.processor(),
        "cpus": os.cpu_count(),
        "threads": threads,
        "devices": devices,
        "huge_pages": huge_pages,
        "load_at_start": list(os.getloadavg()),
        "platform": platform.platform(),
        "versions": _versions(),
        "started": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }


def peak_bytes() -> int:
    """Returns the most memory used so far: on the accelerator, or else resident."""
    import jax

    if jax.default_backend() != "cpu":
        statistics = jax.local_devices()[0].memory_stats() or {}
        if "peak_bytes_in_use" in statistics:
            return statistics["peak_bytes_in_use"]
    return resident_peak()


def resident_peak() -> int:
    """Returns the most resident memory that this process has had, in bytes."""
    try:  # unlike getrusage's, this starts anew with every program
        text = Path("/proc/self/status").read_text("utf-8")
        line = re.search(r"^VmHWM:\s*(\d+) kB$", text, re.MULTILINE)
    except OSError:
        line = None
    return 1024 * int(line[1]) if line else resident_bytes(resource.RUSAGE_SELF)


def resident_bytes(scope: int) -> int:
    """Returns the most resident memory by `getrusage`, in bytes."""
    unit = 1 if sys.platform == "darwin" else 1024
    return unit * resource.getrusage(scope).ru_maxrss


def matmul(dtype: str = "float32") -> tuple[Callable[[], None], int]:
    """Returns a large product, compiled like those of trainings, and its operations."""
    import jax
    import jax.numpy as jnp

    # It is larger on an accelerator.
    size = _SIZE if jax.default_backend() == "cpu" else _SIZE_ON_ACCELERATOR
    key = jax.random.key(0, impl="threefry2x32")
    x = jax.random.normal(key, (size, size), dtype)
    return _compiled(jnp.matmul, x, x), 2 * size**3


def copy(dtype: str = "float32") -> tuple[Callable[[], None], int]:
    """Returns a read and a write of an array that no cache holds, and their bytes."""
    import jax
    import jax.numpy as jnp

    size = _COPIED if jax.default_backend() == "cpu" else _COPIED_ON_ACCELERATOR
    x = jnp.ones(size // jnp.dtype(dtype).itemsize, dtype)
    return _compiled(lambda x: x + 1, x), 2 * size


def update() -> tuple[Callable[[], None], int]:
    """Returns a read and a write of an array in place, and their bytes."""
    import jax
    import jax.numpy as jnp

    size = _COPIED if jax.default_backend() == "cpu" else _COPIED_ON_ACCELERATOR
    compiled = jax.jit(lambda x: x + 1, donate_argnums=0)
    buffers = [compiled(jnp.ones(size // 4))]

    def call() -> None:
        buffers[0] = compiled(buffers[0]).block_until_ready()

    return call, 2 * size


def _compiled(function: Callable[..., Any], *arguments: Any) -> Callable[[], None]:
    """Returns a call of a compiled function, which was called once."""
    import jax

    compiled = jax.jit(function)

    def call() -> None:
        compiled(*arguments).block_until_ready()

    call()
    return call

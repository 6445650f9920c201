"""The machine: its CPUs, versions of what is compared, and how fast it multiplies."""

import datetime
import importlib.metadata
import os
import platform
import re
import resource
import sys
from pathlib import Path
from typing import Any

__all__ = [
    "MATMUL_FLOPS",
    "Copy",
    "Matmul",
    "cpus",
    "describe",
    "environment",
    "peak_bytes",
    "pin",
    "resident_peak",
]

_SIZE = 1536
MATMUL_FLOPS = 2 * _SIZE**3
_COPIED = 2**26  # bytes: far more than the caches hold
_PACKAGES = (
    "fedjax_pfl",
    "jax",
    "jaxlib",
    "numpy",
    "torch",
    "pfl",
    "flwr",
    "byzfl",
    "geom-median",
)


def cpus() -> tuple[int, ...]:
    """Returns the numbers of the CPUs that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return tuple(sorted(os.sched_getaffinity(0)))
    return tuple(range(os.cpu_count() or 1))


def pin(threads: int) -> None:
    """Restricts this process and its children to the first CPUs that it has.

    To be called before JAX or PyTorch start their threads.
    """
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, cpus()[:threads])


def environment(threads: int, devices: int) -> dict[str, str]:
    """Returns the variables of a process that times a workload.

    Args:
      threads: of libraries that count them themselves.
      devices: that JAX splits the CPU into.

    Returns:
      The variables, on top of this process's own.
    """
    flag = f"--xla_force_host_platform_device_count={devices}"
    flags = os.environ.get("XLA_FLAGS", "")
    return os.environ | {
        "XLA_FLAGS": f"{flags} {flag}".strip() if devices > 1 else flags,
        "OMP_NUM_THREADS": str(threads),
        "OPENBLAS_NUM_THREADS": str(threads),
        "MKL_NUM_THREADS": str(threads),
        "JAX_ENABLE_COMPILATION_CACHE": "false",  # compile time is reported
    }


def _processor() -> str:
    """Returns the name of the CPU."""
    try:
        text = Path("/proc/cpuinfo").read_text("utf-8")
    except OSError:
        return platform.processor()
    line = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return line[1] if line else platform.processor()


def _versions() -> dict[str, str]:
    """Returns the versions of the installed packages that may take part."""
    versions = {"python": platform.python_version()}
    for name in _PACKAGES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions


def describe(threads: int, devices: int) -> dict[str, Any]:
    """Describes the machine and versions for readers of the numbers."""
    return {
        "processor": _processor(),
        "cpus": os.cpu_count(),
        "threads": threads,
        "devices": devices,
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
    if line:
        return 1024 * int(line[1])
    unit = 1 if sys.platform == "darwin" else 1024
    return unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


class Matmul:
    """A large float32 product, compiled as those of trainings are."""

    def __init__(self):
        import jax
        import jax.numpy as jnp

        key = jax.random.key(0, impl="threefry2x32")
        self._x = jax.random.normal(key, (_SIZE, _SIZE), jnp.float32)
        self._product = jax.jit(jnp.matmul)
        self.run()

    def run(self) -> None:
        """Multiplies once."""
        self._product(self._x, self._x).block_until_ready()


class Copy:
    """A pass over an array that no cache holds: one read and one write."""

    def __init__(self):
        import jax
        import jax.numpy as jnp

        self.bytes = 2 * _COPIED
        self._x = jnp.ones(_COPIED // 4, jnp.float32)
        self._copied = jax.jit(lambda x: x + 1)
        self.run()

    def run(self) -> None:
        """Copies once."""
        self._copied(self._x).block_until_ready()

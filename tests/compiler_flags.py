"""Options of XLA with which tests compile quickly."""

import os
import subprocess
import sys

_FASTER = (
    "--xla_cpu_use_fusion_emitters=false",
    "--xla_cpu_parallel_codegen_split_count=1",
)


def fast(flags):
    """The flags, with XLA's older emitters, which take half as long as its newer ones.

    And with one library per program: they are tiny, and each library maps memory. The
    flags as they are where this jaxlib has no such options: it ends a process that
    names one.
    """
    faster = f"{flags} {' '.join(_FASTER)}"
    command = [sys.executable, "-c", "import jax; jax.devices()"]
    environment = {**os.environ, "XLA_FLAGS": faster}
    tried = subprocess.run(command, env=environment, capture_output=True)
    return flags if tried.returncode else faster

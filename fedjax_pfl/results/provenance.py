"""The origin of a result: versions, device, commit."""

import datetime
import platform
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Any

import jax
import numpy as np

__all__ = ["collect"]


def collect() -> dict[str, Any]:
    """Returns versions, device and commit of this run."""
    try:
        commit = subprocess.run(
            ["git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"],
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        commit = None
    return {
        "fedjax_pfl": metadata.version("fedjax_pfl"),
        "jax": jax.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "backend": jax.default_backend(),
        "device": jax.devices()[0].device_kind,
        "num_devices": jax.device_count(),
        "commit": commit,
        "started": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }

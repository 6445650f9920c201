"""Names of commands in printed texts."""

import shlex
import sys
from pathlib import Path

__all__ = ["of"]


def of(command: str, *words: str | Path) -> str:
    """Returns the call of a command: as installed, or from a clone if this one is."""
    # Presets of the papers exist in commands of the clone only.
    is_clone = "experiments" in sys.modules
    start = f"python -m experiments.{command}" if is_clone else f"fedjax-pfl {command}"
    return " ".join([start, *(shlex.quote(str(word)) for word in words)])

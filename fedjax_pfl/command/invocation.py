"""Names by which commands call each other in what they print."""

import sys

__all__ = ["of"]


def of(command: str) -> str:
    """Returns how a command is called: as installed, or from a clone if this one is."""
    is_clone = "experiments" in sys.modules
    return f"python -m experiments.{command}" if is_clone else f"fedjax-pfl {command}"

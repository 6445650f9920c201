"""What commands say of each other, and their end before the work is done."""

import sys

__all__ = ["StoppedError", "named"]


class StoppedError(Exception):
    """A command ends before its work is done, with a sentence and a status."""

    def __init__(self, sentence: str, status: int):
        super().__init__(sentence)
        self.status = status


def named(command: str) -> str:
    """Returns how a command is called: as installed, or from a clone if this one is."""
    is_clone = "experiments" in sys.modules
    return f"python -m experiments.{command}" if is_clone else f"fedjax-pfl {command}"

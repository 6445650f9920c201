"""Cases of the wide lane beside those that every run has."""

from collections.abc import Collection, Iterable
from typing import Any

import pytest


def wide(*values: Any) -> Any:
    """Returns the values of a case that only runs with `--all-algorithms`."""
    return pytest.param(*values, marks=pytest.mark.wide)


def few(kept: Collection[str], names: Iterable[str]) -> list[Any]:
    """Returns all names, of which only some are in every run.

    Raises:
      ValueError: if one that is kept is no name.
    """
    names = list(names)
    if unknown := set(kept) - set(names):
        raise ValueError(f"Expected cases of {names}, got {sorted(unknown)}.")
    return [name if name in kept else wide(name) for name in names]

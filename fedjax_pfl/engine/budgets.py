"""Budgets: the effort that a search may take, in rounds, gradients or minutes."""

import dataclasses
import re
from collections.abc import Callable
from typing import ClassVar

from fedjax_pfl.core import checks, struct

__all__ = ["Budget", "Gradients", "Minutes", "Rounds", "most_settings", "parse"]

MAX_SETTINGS = 10_000
"""Most settings of a search."""


@dataclasses.dataclass(frozen=True)
class Rounds:
    """Rounds of all trainings of a search: settings times rounds times seeds.

    Attributes:
      count: rounds, > 0.

    Raises:
      InputError: if `count` is not a finite number above 0.
    """

    count: float = struct.static_field(above=0)
    unit: ClassVar[str] = "rounds"

    __post_init__ = struct.check_fields


@dataclasses.dataclass(frozen=True)
class Gradients:
    """Gradients of single examples in all trainings of a search.

    A loss alone, as line searches evaluate it, counts as a third of a gradient, whose
    backward pass takes about as long as two forward ones. Gradients are counted in the
    first round of the first seed, so that the number of settings is known before the
    search. If cohorts are drawn from clients of different sizes, other rounds have a
    few more or less. Gradients of evaluations, such as fine-tuning, are not counted.

    Attributes:
      count: gradients, > 0.

    Raises:
      InputError: if `count` is not a finite number above 0.
    """

    count: float = struct.static_field(above=0)
    unit: ClassVar[str] = "gradients"

    __post_init__ = struct.check_fields


@dataclasses.dataclass(frozen=True)
class Minutes:
    """Minutes that a search takes, not counting its compiling.

    The number of trainings depends on the machine.

    Attributes:
      count: minutes, > 0.

    Raises:
      InputError: if `count` is not a finite number above 0.
    """

    count: float = struct.static_field(above=0)
    unit: ClassVar[str] = "minutes"

    __post_init__ = struct.check_fields


Budget = Rounds | Gradients | Minutes

_UNITS = {"rounds": Rounds, "gradients": Gradients, "min": Minutes}
_TEXT = re.compile(r"(\d{1,15}(?:\.\d{1,9})?(?:e\d{1,2})?)\s*([a-z]+)")


def parse(text: str) -> Budget:
    """Reads a budget such as `3000rounds`, `2e6gradients` or `10min`."""
    match = _TEXT.fullmatch(text.strip())
    if match is None or match[2] not in _UNITS or float(match[1]) == 0:
        raise checks.InputError(
            "Expected a budget such as 3000rounds, 2e6gradients or 10min, got"
            f" {text!r}."
        )
    return _UNITS[match[2]](float(match[1]))


def most_settings(
    budget: Rounds | Gradients, cost: Callable[[int], float], least: int
) -> int:
    """Returns the most settings that a budget pays for, at most `MAX_SETTINGS`."""
    if (needed := cost(least)) > budget.count:
        raise checks.InputError(
            f"Expected a budget of at least {needed:,.0f} {budget.unit}, the cost of"
            f" the smallest search, got {budget.count:,.0f}."
        )
    # Bisection, since costs grow with the number of settings.
    low, high = least, MAX_SETTINGS + 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if cost(middle) <= budget.count else (low, middle)
    return low

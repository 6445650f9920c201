"""Small programs of the kinds that trainings are made of, compared with NumPy.

They need JAX and NumPy only; bounds on errors follow from precision and terms.
"""

import dataclasses
from collections.abc import Callable, Iterator

import numpy as np

from fedjax_pfl.testing import battery_operations as operations
from fedjax_pfl.testing import battery_products as products
from fedjax_pfl.testing.battery_inputs import Comparison

__all__ = ["CASES", "NOT_NEEDED", "Outcome", "run"]


@dataclasses.dataclass(frozen=True)
class Outcome:
    """Outcome of one case; `problem` is None without an error."""

    name: str
    problem: str | None

    def __str__(self) -> str:
        return f"{self.name}: {self.problem or 'right'}"


def run(cases: dict[str, Callable[[], Iterator[Comparison]]] | None = None):
    """Runs cases by name, or all of `CASES`; yields an `Outcome` of each."""
    for name, case in (CASES if cases is None else cases).items():
        try:
            problem = _problem(case())
        except Exception as error:  # whatever goes wrong is a finding
            lines = str(error).splitlines() or [""]
            problem = f"{type(error).__name__}: {lines[0][:200]}"
        yield Outcome(name=name, problem=problem)


def _problem(comparisons: Iterator[Comparison]) -> str | None:
    """Describes the first comparison that fails."""
    for label, value, right, bound in comparisons:
        value, right = np.asarray(value), np.asarray(right)
        if value.shape != right.shape:
            return f"{label}: shape {value.shape} in place of {right.shape}"
        wrong = value != right
        # A bound of the error is in float64; NaN counts as right if it is expected.
        if np.issubdtype(right.dtype, np.floating):
            value, right = value.astype(np.float64), right.astype(np.float64)
            same = (value == right) | (np.isnan(value) & np.isnan(right))
            with np.errstate(invalid="ignore"):
                wrong = ~same & ~(np.abs(value - right) <= bound)
        if wrong.any():
            return f"{label}: {wrong.sum():,} of {wrong.size:,} values are wrong"
    return None


CASES: dict[str, Callable[[], Iterator[Comparison]]] = {
    name.replace("_", " "): getattr(module, name)
    for module in (products, operations)
    for name in module.__all__
}
"""Cases by name."""

NOT_NEEDED = ("extremes of nan",)
"""Cases on which nothing here relies, since many releases have them wrong."""

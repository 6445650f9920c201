"""Rows that compare theory and simulation, and their figures."""

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from fedjax_pfl.figures import drawing

__all__ = ["MEASURED", "Findings", "Options", "Part", "Row", "Rows", "table"]

MAX_Z = 4.0
"""Standard errors that a mean may differ by; 1 in 16,000 differs more by chance."""
MEASURED = ("theory", "relation", "simulation", "standard_error", "z", "holds")
"""Columns of a table after the settings."""


@dataclasses.dataclass(frozen=True)
class Options:
    """Amount of simulation."""

    seeds: int  # repetitions of every simulation
    quick: bool  # fewer settings and shorter runs


@dataclasses.dataclass(frozen=True)
class Row:
    """A predicted number and its simulation."""

    quantity: str  # name of the number
    settings: dict[str, Any]  # settings of the measurement by name
    theory: float  # the prediction
    simulation: float  # the measurement
    # Claim about the simulation: `=` (within `MAX_Z` standard errors, or within
    # `tolerance` for deterministic measurements), `<=`, `>=`, or empty for a comparison
    # without a claim.
    relation: str = "="
    tolerance: float = 0.0  # largest allowed difference of deterministic measurements
    standard_error: float = math.nan  # NaN for deterministic measurements

    @property
    def z(self) -> float:
        """Returns the difference in standard errors; NaN without them."""
        if self.relation != "=" or not self.standard_error > 0:
            return math.nan
        return (self.simulation - self.theory) / self.standard_error

    @property
    def holds(self) -> str:
        """Returns `yes`, `no`, or an empty text without a claim."""
        if not self.relation:
            return ""
        if not math.isnan(self.z):
            return "yes" if abs(self.z) < MAX_Z else "no"
        # Signed towards breaking the claim.
        difference = self.simulation - self.theory
        size = {"=": abs(difference), "<=": difference, ">=": -difference}
        return "yes" if size[self.relation] <= self.tolerance else "no"


class Rows(list[Row]):
    """Rows that are added by their values."""

    def add(
        self,
        quantity: str,
        settings: dict[str, Any],
        theory: float,
        simulation: float | np.ndarray,
        relation: str = "=",
        tolerance: float = 0.0,
    ) -> Row:
        """Adds a row and returns it; arrays are independent draws, and are averaged."""
        values, error = np.asarray(simulation), math.nan
        if values.size > 1:
            error = values.std(ddof=1) / math.sqrt(values.size) or math.nan
        row = Row(quantity, settings, theory, values.mean(), relation, tolerance, error)
        self.append(row)
        return row


class Findings:
    """Rows and the figure of one part of a page."""

    def __init__(self, name: str, count: int = 1, *, shared: bool = True):
        """Creates a figure of `count` panels, on shared or separate scales."""
        figure, self.panels = drawing.panels(count)
        if not shared:
            figure.clear()
            self.panels = list(figure.subplots(1, count, squeeze=False)[0])
        for axes in self.panels:
            axes.grid(alpha=0.3)
            axes.tick_params(labelsize=8)
            axes.xaxis.label.set_size(9)
            axes.yaxis.label.set_size(9)
        self.figures, self.rows = {name: figure}, Rows()
        self.add = self.rows.add

    @property
    def axes(self) -> Axes:
        """Returns the first panel."""
        return self.panels[0]

    def titled(self, title: str) -> "Findings":
        """Adds a titled legend to the figure, at the end."""
        (figure,) = self.figures.values()
        drawing.legend(figure, title)
        return self


Part = Callable[[Options], Findings]


def table(pairs: Sequence[tuple[str, Row]]) -> pd.DataFrame:
    """Tabulates pairs of page and row, with one column per setting."""
    empty_settings = {name: "" for _, row in pairs for name in row.settings}
    return pd.DataFrame(
        {"page": page, "quantity": row.quantity}
        | empty_settings
        | row.settings
        | {name: getattr(row, name) for name in MEASURED}
        for page, row in pairs
    )

"""What a page reports: rows of theory against simulation, and figures."""

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fedjax_pfl.figures import drawing

__all__ = ["Findings", "Options", "Part", "Row", "mean_row", "panels", "table"]

MAX_Z = 4.0
"""Standard errors that a mean may be off; 1 in 16,000 is further by chance."""


@dataclasses.dataclass(frozen=True)
class Options:
    """How much is simulated.

    Attributes:
      seeds: repetitions of every simulation.
      quick: fewer settings and shorter runs.
    """

    seeds: int
    quick: bool


@dataclasses.dataclass(frozen=True, kw_only=True)
class Row:
    """One number of theory with its simulation.

    Attributes:
      quantity: what it is.
      settings: by name, where it was measured.
      theory: the predicted number.
      simulation: the measured one.
      standard_error: of the measured one; NaN where nothing is drawn.
      relation: what the theory says of the simulation: `=` (within `MAX_Z` standard
        errors, or within `tolerance` where nothing is drawn), `<=`, `>=`, or empty
        where the two are only shown side by side.
      tolerance: largest difference allowed where nothing is drawn.
    """

    quantity: str
    settings: dict[str, Any]
    theory: float
    simulation: float
    standard_error: float = math.nan
    relation: str = "="
    tolerance: float = 0.0

    @property
    def z(self) -> float:
        """Difference in standard errors; NaN where there are none."""
        if self.relation != "=" or not self.standard_error > 0:
            return math.nan
        return (self.simulation - self.theory) / self.standard_error

    @property
    def holds(self) -> str:
        """`yes`, `no`, or empty where nothing is claimed."""
        if not self.relation:
            return ""
        if not math.isnan(self.z):
            return "yes" if abs(self.z) < MAX_Z else "no"
        difference = self.simulation - self.theory
        size = {"=": abs(difference), "<=": difference, ">=": -difference}
        return "yes" if size[self.relation] <= self.tolerance else "no"


@dataclasses.dataclass(frozen=True)
class Findings:
    """What one part of a page found.

    Attributes:
      rows: numbers.
      figures: by file name without ending.
    """

    rows: Sequence[Row]
    figures: dict[str, Figure]


Part = Callable[[Options], Findings]


def mean_row(
    quantity: str, settings: dict[str, Any], theory: float, values: np.ndarray
) -> Row:
    """A row for the mean of independent values, with its standard error."""
    spread = values.std(ddof=1) / math.sqrt(len(values)) if len(values) > 1 else 0.0
    return Row(
        quantity=quantity,
        settings=settings,
        theory=float(theory),
        simulation=float(values.mean()),
        standard_error=float(spread) or math.nan,
    )


def panels(count: int) -> tuple[Figure, list[Axes]]:
    """Like `drawing.panels`, with a vertical scale of its own for every panel."""
    figure = Figure(layout="constrained")
    figure.set_size_inches(drawing.WIDTH, drawing.HEIGHT)
    made = figure.subplots(1, count, squeeze=False)[0]
    for axes in made:
        axes.grid(alpha=0.3)
        axes.tick_params(labelsize=8)
    return figure, list(made)


def table(found: dict[str, Sequence[Row]]) -> pd.DataFrame:
    """All rows of several pages, one column per setting.

    Args:
      found: rows by page.

    Returns:
      Columns page, quantity, the settings, theory, relation, simulation,
      standard_error, z, holds.
    """
    everything = [(page, row) for page, rows in found.items() for row in rows]
    settings = dict.fromkeys(name for _, row in everything for name in row.settings)
    columns = {
        "page": [page for page, _ in everything],
        "quantity": [row.quantity for _, row in everything],
        **{n: [row.settings.get(n, "") for _, row in everything] for n in settings},
    }
    for name in ("theory", "relation", "simulation", "standard_error", "z", "holds"):
        columns[name] = [getattr(row, name) for _, row in everything]
    return pd.DataFrame(columns)

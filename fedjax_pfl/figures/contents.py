"""Contents of figures, before they are drawn."""

import dataclasses
from typing import Generic, TypeVar

import numpy as np

__all__ = [
    "Box",
    "Boxes",
    "Gap",
    "Gaps",
    "Heat",
    "Heats",
    "Line",
    "Lines",
    "Panel",
    "Spot",
    "Spots",
]

_Mark = TypeVar("_Mark")


@dataclasses.dataclass(frozen=True)
class Panel(Generic[_Mark]):
    """Axes with lines, boxes or points of one environment."""

    title: str
    marks: tuple[_Mark, ...]


@dataclasses.dataclass(frozen=True)
class _Shown:
    """Line, box or point of one setting and model.

    Attributes:
      setting: name of the setting in a legend.
      algorithm: its algorithm; may be empty.
      model: model of the metric; may be empty.
      color: number of the setting's color, the same in all panels.
    """

    setting: str
    algorithm: str
    model: str
    color: int

    @property
    def label(self) -> str:
        """Setting and model for a legend."""
        return f"{self.setting}, {self.model}" if self.model else self.setting


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Panels(Generic[_Mark]):
    """A figure of panels with the same axes.

    Attributes:
      panels: at least one.
      xlabel: label of all panels.
      ylabel: label of all panels.
      data: evaluation data; may be empty.
      left_out: description of the selection if lines or panels are left out, else `""`.
    """

    panels: tuple[Panel[_Mark], ...]
    xlabel: str
    ylabel: str = ""
    data: str = ""
    left_out: str = ""

    @property
    def marks(self) -> list[_Mark]:
        """Union over all panels."""
        return [mark for panel in self.panels for mark in panel.marks]


@dataclasses.dataclass(frozen=True)
class Line(_Shown):
    """A mean over seeds, with a band around it.

    Attributes:
      population: population of clients; may be empty.
      x: `[X]` ascending.
      y: `[X]` means.
      low: `[X]` lower end of the band; NaN without a band.
      high: `[X]` upper end of the band; NaN without a band.
      is_level: whether it is constant, because it does not depend on `x`.
    """

    population: str
    x: np.ndarray
    y: np.ndarray
    low: np.ndarray
    high: np.ndarray
    is_level: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class Lines(_Panels[Line]):
    """A figure of lines.

    Attributes:
      spread: description of bands or bars, `""` for one seed.
      around: name of the range from `low` to `high`.
      log_x: whether x is logarithmic.
      log_y: whether y is logarithmic.
      bars: whether `low` and `high` are bars at points, not a band.
      zooms: whether first rounds may lie outside of the axes if they would flatten the
        later ones.
      is_loss: whether y is a loss, which can also have a logarithmic axis.
      is_best: whether every point of a line has the best settings on validation data,
        without naming them.
    """

    spread: str
    around: str = "min to max"
    log_x: bool = False
    log_y: bool = False
    bars: bool = False
    zooms: bool = False
    is_loss: bool = False
    is_best: bool = False

    @property
    def names(self) -> str:
        """Data and clients of all lines; empty if there are no data."""
        return f"{self.data} data, {self.populations} clients" if self.data else ""

    @property
    def populations(self) -> str:
        """Populations of clients in all panels, as in `all or honest`."""
        names = dict.fromkeys(line.population for line in self.marks)
        return " or ".join(name for name in names if name)


@dataclasses.dataclass(frozen=True)
class Box(_Shown):
    """Values of single clients.

    Attributes:
      values: `[V]` one per client and seed.
      clients: V names of clients, or their numbers as texts.
      seeds: `int[V]` seed of the training.
      sizes: `int[V]` training examples of the client.
      rounds: `int[E]` evaluated rounds.
      histories: `[V, E]` values in these rounds; NaN without a value.
    """

    values: np.ndarray
    clients: tuple[str, ...]
    seeds: np.ndarray
    sizes: np.ndarray
    rounds: np.ndarray
    histories: np.ndarray


class Boxes(_Panels[Box]):
    """A figure of distributions over clients."""

    @property
    def rows(self) -> dict[tuple[str, str], int]:
        """Rows of settings and models, the same in all panels."""
        names = dict.fromkeys((box.setting, box.model) for box in self.marks)
        return {name: row for row, name in enumerate(names)}


@dataclasses.dataclass(frozen=True)
class Gap(_Shown):
    """A row of a ranking minus the reference.

    Attributes:
      mean: mean difference over seeds.
      margin: half of its interval; not finite without an interval.
      is_reference: whether the row is the reference itself.
      value: mean of the row.
    """

    mean: float
    margin: float
    is_reference: bool
    value: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class Gaps(_Panels[Gap]):
    """A figure of differences.

    Attributes:
      decimals: decimals of the numbers.
    """

    decimals: int


@dataclasses.dataclass(frozen=True)
class Spot(_Shown):
    """A point of a plane: means over seeds with standard deviations.

    Only the best settings on validation data have a color.
    """

    x: float
    y: float
    x_std: float
    y_std: float
    is_best: bool = True


@dataclasses.dataclass(frozen=True, kw_only=True)
class Spots(_Panels[Spot]):
    """A figure of settings in a plane."""

    population: str


@dataclasses.dataclass(frozen=True)
class Heat:
    """A colored table.

    Attributes:
      title: title of the panel.
      algorithm: its algorithm; empty if it has several.
      columns: names of the X columns.
      rows: names of the Y rows.
      values: `[Y, X]`, NaN for empty fields.
      edges: positions of lines between rows and between columns.
    """

    title: str
    algorithm: str
    columns: tuple[str, ...]
    rows: tuple[str, ...]
    values: np.ndarray
    edges: tuple[float, ...] = ()


@dataclasses.dataclass(frozen=True)
class Heats:
    """A figure of colored tables.

    Attributes:
      panels: at least one.
      xlabel: label of columns.
      ylabel: label of rows.
      value: meaning of the colors.
      total: number of panels before the selection of the first ones.
      low: value of the first color, None for the least.
      high: value of the last color, None for the largest.
      labeled: whether numbers are written into the fields.
      is_one_scale: whether a color means the same value in all panels.
    """

    panels: tuple[Heat, ...]
    xlabel: str
    ylabel: str
    value: str
    total: int
    low: float | None = None
    high: float | None = None
    labeled: bool = True
    is_one_scale: bool = True

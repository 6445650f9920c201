"""Contents of figures, before they are drawn."""

import dataclasses
from typing import Generic, TypeVar

import numpy as np

__all__ = ["Box", "Boxes", "Heat", "Heats", "Line", "Lines", "Panel", "Spot", "Spots"]

_Mark = TypeVar("_Mark")


@dataclasses.dataclass(frozen=True)
class Panel(Generic[_Mark]):
    """Axes with lines, boxes or points of one environment."""

    title: str
    marks: tuple[_Mark, ...]


@dataclasses.dataclass(frozen=True)
class _Panels(Generic[_Mark]):
    """A figure of panels with the same axes.

    Attributes:
      panels: at least one.
    """

    panels: tuple[Panel[_Mark], ...]

    @property
    def marks(self) -> list[_Mark]:
        """Union over all panels."""
        return [mark for panel in self.panels for mark in panel.marks]


@dataclasses.dataclass(frozen=True)
class Line:
    """One setting and model: a mean over seeds, and what is around it.

    Attributes:
      setting: what a legend calls the setting.
      algorithm: its algorithm; may be empty.
      model: whose metric it is; may be empty.
      population: of clients; may be empty.
      color: number of the setting's color, the same in all panels.
      x: `[X]` ascending.
      y: `[X]` means.
      low: `[X]` lower end of the band; NaN where there is none.
      high: `[X]` upper end of the band; NaN where there is none.
      is_level: whether it is the same for all `x`, of which it knows nothing.
    """

    setting: str
    algorithm: str
    model: str
    population: str
    color: int
    x: np.ndarray
    y: np.ndarray
    low: np.ndarray
    high: np.ndarray
    is_level: bool = False


@dataclasses.dataclass(frozen=True)
class Lines(_Panels[Line]):
    """A figure of lines.

    Attributes:
      xlabel: of all panels.
      ylabel: of all panels.
      data: on which models are judged; may be empty.
      spread: what bands or bars show, `""` of one seed.
      left_out: which of more lines and panels are shown; `""` where all are.
      around: what is from `low` to `high`.
      log_x: whether x is logarithmic.
      log_y: whether y is logarithmic.
      bars: whether `low` and `high` are bars at points, not a band.
      zooms: whether first rounds may lie outside of the axes, where they would flatten
        the rest.
      is_loss: whether y is a loss, which may be shown on a logarithmic axis, too.
      is_best: whether every point of a line has the settings that are best on
        validation data, which its name does not say.
    """

    xlabel: str
    ylabel: str
    data: str
    spread: str
    left_out: str = ""
    around: str = "min to max"
    log_x: bool = False
    log_y: bool = False
    bars: bool = False
    zooms: bool = False
    is_loss: bool = False
    is_best: bool = False

    @property
    def names(self) -> str:
        """Data and clients of all lines; empty where there are no data."""
        return f"{self.data} data, {self.populations} clients" if self.data else ""

    @property
    def populations(self) -> str:
        """Of clients, in all panels, as in `all or honest`."""
        names = dict.fromkeys(line.population for line in self.marks)
        return " or ".join(name for name in names if name)


@dataclasses.dataclass(frozen=True)
class Box:
    """Values of single clients under one setting and model.

    Attributes:
      setting: what a legend calls the setting.
      algorithm: its algorithm.
      model: whose metric it is.
      color: number of the setting's color.
      values: `[V]` one per client and seed.
      clients: `int[V]` which client.
      seeds: `int[V]` which seed.
      sizes: `int[V]` training examples of the client.
      rounds: `int[E]` evaluated rounds.
      histories: `[V, E]` values in these rounds; NaN where there is none.
    """

    setting: str
    algorithm: str
    model: str
    color: int
    values: np.ndarray
    clients: np.ndarray
    seeds: np.ndarray
    sizes: np.ndarray
    rounds: np.ndarray
    histories: np.ndarray


@dataclasses.dataclass(frozen=True)
class Boxes(_Panels[Box]):
    """A figure of distributions over clients; as `Lines`."""

    xlabel: str
    left_out: str = ""

    @property
    def rows(self) -> dict[tuple[str, str], int]:
        """Rows of settings and models, the same in all panels."""
        names = dict.fromkeys((box.setting, box.model) for box in self.marks)
        return {name: row for row, name in enumerate(names)}


@dataclasses.dataclass(frozen=True)
class Spot:
    """One setting in a plane: means over seeds with standard deviations.

    Only the best settings on validation data have a color.
    """

    setting: str
    algorithm: str
    model: str
    color: int
    x: float
    y: float
    x_std: float
    y_std: float
    is_best: bool = True


@dataclasses.dataclass(frozen=True)
class Spots(_Panels[Spot]):
    """A figure of settings in a plane; as `Lines`."""

    xlabel: str
    ylabel: str
    population: str
    data: str
    left_out: str = ""


@dataclasses.dataclass(frozen=True)
class Heat:
    """A colored table.

    Attributes:
      title: of the panel.
      algorithm: what it is about; empty where that is several.
      columns: names of the X columns.
      rows: names of the Y rows.
      values: `[Y, X]`, NaN where there is nothing.
      edges: between which rows, and columns, lines are drawn.
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
      xlabel: of columns.
      ylabel: of rows.
      value: what the colors show.
      total: panels that there would be, of which the first are shown.
      low: value of the first color, None for the least.
      high: value of the last color, None for the largest.
      labeled: whether numbers are written into the fields.
      is_one_scale: whether a color is the same value in all panels.
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

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
class Lines:
    """A figure of lines.

    Attributes:
      panels: at least one, with the same axes.
      xlabel: of all panels.
      ylabel: of all panels.
      data: on which models are judged; may be empty.
      spread: what bands or bars show, `""` of one seed.
      names: what the legend's names are; may be empty.
      left_out: which of more lines and panels are shown; `""` where all are.
      around: what is from `low` to `high`.
      log_x: whether x is logarithmic.
      log_y: whether y is logarithmic.
      bars: whether `low` and `high` are bars at points, not a band.
      zooms: whether first rounds may lie outside of the axes, where they would flatten
        the rest.
      is_best: whether every point of a line has the settings that are best on
        validation data, which its name does not say.
    """

    panels: tuple[Panel[Line], ...]
    xlabel: str
    ylabel: str
    data: str
    spread: str
    names: str = ""
    left_out: str = ""
    around: str = "min to max"
    log_x: bool = False
    log_y: bool = False
    bars: bool = False
    zooms: bool = False
    is_best: bool = False

    @property
    def populations(self) -> str:
        """Of clients, in all panels, as in `all or honest`."""
        found = [line.population for panel in self.panels for line in panel.marks]
        return " or ".join(dict.fromkeys(name for name in found if name))


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
    """

    setting: str
    algorithm: str
    model: str
    color: int
    values: np.ndarray
    clients: np.ndarray
    seeds: np.ndarray
    sizes: np.ndarray


@dataclasses.dataclass(frozen=True)
class Boxes:
    """A figure of distributions over clients; as `Lines`."""

    panels: tuple[Panel[Box], ...]
    xlabel: str
    left_out: str = ""

    @property
    def boxes(self) -> list[Box]:
        """Union over all panels."""
        return [box for panel in self.panels for box in panel.marks]

    @property
    def rows(self) -> dict[tuple[str, str], int]:
        """Rows of settings and models, the same in all panels."""
        names = dict.fromkeys((box.setting, box.model) for box in self.boxes)
        return {name: row for row, name in enumerate(names)}


@dataclasses.dataclass(frozen=True)
class Spot:
    """One setting in a plane: means over seeds with standard deviations."""

    setting: str
    algorithm: str
    model: str
    color: int
    x: float
    y: float
    x_std: float
    y_std: float


@dataclasses.dataclass(frozen=True)
class Spots:
    """A figure of settings in a plane; as `Lines`."""

    panels: tuple[Panel[Spot], ...]
    xlabel: str
    ylabel: str
    population: str
    data: str
    left_out: str = ""

    @property
    def spots(self) -> list[Spot]:
        """Points of all panels."""
        return [spot for panel in self.panels for spot in panel.marks]


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

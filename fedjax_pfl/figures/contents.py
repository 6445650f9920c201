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
    """Line, box or point of one setting and model."""

    setting: str  # its name in a legend
    algorithm: str  # may be empty
    model: str  # may be empty
    color: int  # number of the setting's color, the same in all panels

    @property
    def label(self) -> str:
        """Setting and model for a legend."""
        return f"{self.setting}, {self.model}" if self.model else self.setting


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Panels(Generic[_Mark]):
    """A figure of panels with the same axes."""

    panels: tuple[Panel[_Mark], ...]  # at least one
    xlabel: str
    ylabel: str = ""
    data: str = ""  # evaluation data; may be empty
    left_out: str = ""  # description of the selection if marks are left out

    @property
    def marks(self) -> list[_Mark]:
        """Union over all panels."""
        return [mark for panel in self.panels for mark in panel.marks]


@dataclasses.dataclass(frozen=True)
class Line(_Shown):
    """A mean over seeds, with a band around it."""

    population: str  # may be empty
    x: np.ndarray  # `[X]` ascending
    y: np.ndarray  # `[X]` means
    low: np.ndarray  # `[X]` end of the band; NaN without a band
    high: np.ndarray  # `[X]` other end
    is_level: bool = False  # constant, because it does not depend on `x`


@dataclasses.dataclass(frozen=True, kw_only=True)
class Lines(_Panels[Line]):
    """A figure of lines."""

    spread: str  # description of bands or bars, empty for one seed
    around: str = "min to max"  # name of the range from `low` to `high`
    log_x: bool = False
    log_y: bool = False
    bars: bool = False  # `low` and `high` are bars at points, not a band
    # First rounds may lie outside, if they would flatten later ones.
    zooms: bool = False
    is_loss: bool = False  # y is a loss, which can also have a logarithmic axis
    is_best: bool = False  # every point has the best settings on validation data

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
    """Values of single clients."""

    values: np.ndarray  # `[V]` one per client and seed
    clients: tuple[str, ...]  # V names
    seeds: np.ndarray  # `int[V]`
    sizes: np.ndarray  # `int[V]` training examples
    rounds: np.ndarray  # `int[E]` evaluated
    histories: np.ndarray  # `[V, E]` values in these rounds; NaN without a value


class Boxes(_Panels[Box]):
    """A figure of distributions over clients."""

    @property
    def rows(self) -> dict[tuple[str, str], int]:
        """Rows of settings and models, the same in all panels."""
        names = dict.fromkeys((box.setting, box.model) for box in self.marks)
        return {name: row for row, name in enumerate(names)}


@dataclasses.dataclass(frozen=True)
class Gap(_Shown):
    """A row of a ranking minus the reference."""

    mean: float  # over seeds
    margin: float  # half of the interval; not finite without one
    is_reference: bool
    value: float  # mean of the row


@dataclasses.dataclass(frozen=True, kw_only=True)
class Gaps(_Panels[Gap]):
    """A figure of differences."""

    decimals: int  # of the numbers


@dataclasses.dataclass(frozen=True)
class Spot(_Shown):
    """A point of a plane: means over seeds with standard deviations."""

    x: float
    y: float
    x_std: float
    y_std: float
    is_best: bool = True  # on validation data; only these have a color


@dataclasses.dataclass(frozen=True, kw_only=True)
class Spots(_Panels[Spot]):
    """A figure of settings in a plane."""

    population: str


@dataclasses.dataclass(frozen=True)
class Heat:
    """A colored table."""

    title: str  # of the panel
    algorithm: str  # empty if it has several
    columns: tuple[str, ...]  # X names
    rows: tuple[str, ...]  # Y names
    values: np.ndarray  # `[Y, X]`, NaN for empty fields
    edges: tuple[float, ...] = ()  # positions of lines between rows and between columns


@dataclasses.dataclass(frozen=True)
class Heats:
    """A figure of colored tables."""

    panels: tuple[Heat, ...]  # at least one
    xlabel: str  # of columns
    ylabel: str  # of rows
    value: str  # meaning of the colors
    total: int  # number of panels before the selection of the first ones
    low: float | None = None  # value of the first color; None for the least
    high: float | None = None  # value of the last color; None for the largest
    labeled: bool = True  # numbers are written into the fields
    is_one_scale: bool = True  # a color means the same value in all panels

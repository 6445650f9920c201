"""Contents of figures, before they are drawn."""

import dataclasses

import pandas as pd

__all__ = ["Chart", "Heat", "Heats", "Lines", "Mark", "Panel"]


@dataclasses.dataclass(frozen=True)
class Mark:
    """Line, box or point of one setting and model."""

    setting: str  # its name in a legend
    algorithm: str  # may be empty
    model: str  # may be empty
    color: int  # number of the setting's color, the same in all panels
    # A row per point; of a line with `x`, `y`, and the band's ends `low` and `high`.
    points: pd.DataFrame
    population: str = ""  # of clients; may be empty
    is_level: bool = False  # a constant line: it does not depend on `x`

    @property
    def label(self) -> str:
        """Setting and model for a legend."""
        return f"{self.setting}, {self.model}" if self.model else self.setting


@dataclasses.dataclass(frozen=True)
class Panel:
    """Axes with the marks of one environment."""

    title: str
    marks: tuple[Mark, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Chart:
    """A figure of panels with the same axes."""

    panels: tuple[Panel, ...]  # at least one
    xlabel: str
    ylabel: str = ""
    data: str = ""  # evaluation data; may be empty
    left_out: str = ""  # description of the selection if marks are left out
    decimals: int = 3  # of written numbers

    @property
    def marks(self) -> list[Mark]:
        """Union over all panels."""
        return [mark for panel in self.panels for mark in panel.marks]

    @property
    def populations(self) -> str:
        """Populations of clients in all panels, as in `all or honest`."""
        names = dict.fromkeys(mark.population for mark in self.marks)
        return " or ".join(name for name in names if name)

    @property
    def limits(self) -> str:
        """Sentence for a caption if marks are left out, after a space; else empty."""
        return f" This figure shows {self.left_out}." if self.left_out else ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Lines(Chart):
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
    def seeds(self) -> str:
        """Description of bands or bars, also of one seed."""
        return self.spread or "one seed"


@dataclasses.dataclass(frozen=True)
class Heat:
    """A colored table."""

    title: str  # of the panel
    algorithm: str  # empty if it has several
    values: pd.DataFrame  # with names of columns and rows; NaN for empty fields
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

    @property
    def limits(self) -> str:
        """Sentence for a caption if panels are left out, after a space; else empty."""
        count = len(self.panels)
        return f" The first {count} of {self.total} tables." * (count < self.total)

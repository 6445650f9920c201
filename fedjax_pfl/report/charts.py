"""Charts of plotly, which a page draws.

Colors are those of a light page; the page replaces them by `DARK` on a dark one.
Texts go through `safe`, because plotly reads a part of HTML in them.
"""

import dataclasses
import html
import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go

from fedjax_pfl.figures import drawing

__all__ = [
    "DARK",
    "Chart",
    "Entry",
    "Panel",
    "band",
    "figure",
    "height",
    "safe",
    "span",
    "symbol",
]

_ON_DARK = {"#0072B2": "#7B93FF", "#000000": "#F2F2F2", "#882255": "#B3DE69"}
_SYMBOLS = {"personal": "circle", "global": "diamond", "fine-tuned": "square"}
_OTHER_SYMBOL = "x"
_FEW = 3  # panels that are as high as one


@dataclasses.dataclass(frozen=True)
class Entry:
    """One button of a legend: it hides what has its key.

    Attributes:
      key: in the `meta` of traces.
      name: what it is.
      method: its algorithm, with which it is hidden, too; may be empty.
      color: of its mark.
      dash: of its mark, or empty.
      is_hollow: whether its mark is, as another one has the same color.
    """

    key: str
    name: str
    method: str
    color: str
    dash: str = ""
    is_hollow: bool = False

    def marker(self, symbol: str, size: int) -> dict[str, Any]:
        """Marks of points as plotly has them."""
        name = f"{symbol}-open" if self.is_hollow else symbol
        return {"color": self.color, "symbol": name, "size": size}


@dataclasses.dataclass(frozen=True)
class Panel:
    """One drawing; `figure` has `data` and `layout` as plotly.js takes them."""

    title: str
    figure: dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Chart:
    """Panels that share a legend."""

    panels: tuple[Panel, ...]
    legend: tuple[Entry, ...] = ()


def band(color: str, opacity: float = 0.18) -> str:
    """Returns a color that lets others through."""
    red, green, blue = (int(color[k : k + 2], 16) for k in (1, 3, 5))
    return f"rgba({red},{green},{blue},{opacity})"


def _dark() -> dict[str, str]:
    """Colors of a light page, and what they are on a dark one."""
    found = dict(_ON_DARK)
    for color in drawing.COLORS:
        found[band(color)] = band(_ON_DARK.get(color, color), 0.28)
    return found


DARK = _dark()


def symbol(model: str) -> str:
    """Returns the mark of a model's points."""
    return _SYMBOLS.get(model, _OTHER_SYMBOL)


def figure(traces: Sequence[Any], layout: dict[str, Any]) -> dict[str, Any]:
    """Returns a figure checked by plotly, without its template: the page has one."""
    common = {
        "height": 360,
        "showlegend": False,
        "hovermode": "closest",
        "margin": {"l": 62, "r": 14, "t": 12, "b": 52},
    }
    merged = common | layout | {"margin": common["margin"] | layout.get("margin", {})}
    made = json.loads(str(go.Figure(list(traces), merged).to_json()))
    made["layout"].pop("template", None)
    return made


def height(panels: int) -> int:
    """Pixels of one of so many panels."""
    return 360 if panels <= _FEW else 250


def span(values: Sequence[np.ndarray], *, is_log: bool = False) -> list[float] | None:
    """Returns the ends of an axis that panels share, a bit beyond all values."""
    found = np.concatenate([np.asarray(v, float) for v in values])
    found = found[np.isfinite(found) & ((found > 0) | (not is_log))]
    if not len(found):
        return None
    found = np.log10(found) if is_log else found
    margin = 0.05 * (found.max() - found.min()) or 0.5
    return [float(found.min() - margin), float(found.max() + margin)]


def safe(text: str) -> str:
    """Text that plotly shows as it is."""
    return html.escape(text, quote=False).replace("%{", "%&#123;").replace("\n", "<br>")

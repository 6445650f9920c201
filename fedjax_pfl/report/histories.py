"""Histories of single clients, packed for the page, which draws those asked for."""

import base64
import json

import numpy as np
import pandas as pd

from fedjax_pfl.figures import contents, drawing
from fedjax_pfl.report import svg

__all__ = ["MAX_VALUES", "packed"]

MAX_VALUES = 60_000
"""Values of a page, 2 bytes each: with more, rounds are left out evenly."""
_STEPS = 2**16 - 2  # of a value from low to high
_NOTHING = 2**16 - 1
_DASHES = {"solid": "", "dash": "5 2", "dot": "1.5 1.5"}


def packed(boxes: contents.Boxes) -> str:
    """Packs the histories of all clients of a figure.

    Returns:
      JSON, a record per box: what it is, rounds, clients and seeds, and values as
      base64 of 16-bit numbers between `low` and `high`, a row per client. Empty where
      there are so many clients that two rounds of each would be too much.
    """
    points = sum(len(box.values) for box in boxes.marks)
    kept = MAX_VALUES // points
    if kept < 2:
        return ""
    records = [
        _record(box, panel, kept)
        for panel, shown in enumerate(boxes.panels)
        for box in shown.marks
    ]
    return json.dumps(records, separators=(",", ":")).replace("<", "\\u003c")


def _record(box: contents.Box, panel: int, kept: int) -> dict[str, object]:
    """Packs one box with at most so many rounds, the first and the last among them."""
    last = len(box.rounds) - 1
    at = np.unique(np.linspace(0, last, min(kept, last + 1)).round().astype(int))
    values = box.histories[:, at]
    finite = values[np.isfinite(values)]
    low, high = (finite.min(), finite.max()) if finite.size else (0, 0)
    scaled = (values - low) / (high - low or 1) * _STEPS
    numbers = np.where(np.isfinite(values), scaled.round(), _NOTHING).astype("<u2")
    return {
        "label": box.label,
        "method": box.algorithm,
        "color": svg.page_color(drawing.color(box.color)),
        "dash": _DASHES[drawing.dash(box.model)],
        "panel": panel,
        "rounds": box.rounds[at].tolist(),
        "clients": box.clients,
        "seeds": [None if pd.isna(seed) else int(seed) for seed in box.seeds],
        "low": float(low),
        "high": float(high),
        "values": base64.b64encode(numbers.tobytes()).decode(),
    }

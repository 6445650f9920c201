"""Histories of single clients, packed for the page, which draws them on request."""

import base64
import json

import numpy as np
import pandas as pd

from fedjax_pfl.figures import contents, drawing
from fedjax_pfl.report import svg

__all__ = ["MAX_VALUES", "packed"]

MAX_VALUES = 60_000
"""Most values of a page, 2 bytes each: above it, rounds are left out evenly."""
_STEPS = 2**16 - 2  # of a value from low to high
_NOTHING = 2**16 - 1
_DASHES = {"solid": "", "dashed": "5 2", "dotted": "1.5 1.5"}


def packed(boxes: contents.Chart) -> str:
    """Returns JSON, a record per box; empty if even two rounds are too much."""
    # Values are base64 of 16-bit numbers from `low` to `high`, a row per client.
    points = sum(len(box.points) for box in boxes.marks)
    size = MAX_VALUES // points
    if size < 2:
        return ""
    records = [
        _record(box, panel, size)
        for panel, chart in enumerate(boxes.panels)
        for box in chart.marks
    ]
    # A `<` could end the script of the page.
    return json.dumps(records, separators=(",", ":")).replace("<", "\\u003c")


def _record(box: contents.Mark, panel: int, size: int) -> dict[str, object]:
    """Packs one box with at most that many rounds, including the first and the last."""
    rounds = np.unique(np.concatenate(list(box.points["rounds"])))
    histories = np.full((len(box.points), len(rounds)), np.nan)
    for row, client in zip(histories, box.points.itertuples(), strict=True):
        # Seeds may end in different rounds, and evaluate different clients.
        row[np.searchsorted(rounds, np.asarray(client.rounds))] = client.history
    end = len(rounds) - 1
    at = np.unique(np.linspace(0, end, min(size, end + 1)).round().astype(int))
    values = histories[:, at]
    finite = values[np.isfinite(values)]
    low, high = (finite.min(), finite.max()) if finite.size else (0, 0)
    # Clients with equal values have no range to divide by.
    scaled = (values - low) / (high - low or 1) * _STEPS
    numbers = np.where(np.isfinite(values), scaled.round(), _NOTHING).astype("<u2")
    return {
        "label": box.label,
        "method": box.algorithm,
        "color": svg.page_color(drawing.color(box.color)),
        "dash": _DASHES[drawing.dash(box.model)],
        "panel": panel,
        "rounds": rounds[at].tolist(),
        "clients": box.points["name"].tolist(),
        "seeds": [None if pd.isna(s) else int(s) for s in box.points["seed"]],
        "low": float(low),
        "high": float(high),
        "values": base64.b64encode(numbers.tobytes()).decode(),
    }

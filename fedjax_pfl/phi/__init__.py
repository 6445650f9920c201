"""Convex functions that couple models to a center."""

from typing import Any

from fedjax_pfl.phi.functions import (
    L1,
    L2,
    Diagonal,
    Indicator,
    Phi,
    Squared,
    Zero,
)
from fedjax_pfl.phi.layerwise import FUNCTIONS, LayerWise

__all__ = [
    "L1",
    "L2",
    "PHIS",
    "Diagonal",
    "Indicator",
    "LayerWise",
    "Phi",
    "Squared",
    "Zero",
]

PHIS: dict[str, Any] = {**FUNCTIONS, "layer_wise": LayerWise}

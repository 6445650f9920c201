"""Convex functions that couple models to a center."""

from typing import TYPE_CHECKING

from fedjax_pfl.core import lazy

if TYPE_CHECKING:
    from fedjax_pfl.algorithms.phi.functions import (
        L1,
        L2,
        Diagonal,
        Indicator,
        Phi,
        Squared,
        Zero,
    )
    from fedjax_pfl.algorithms.phi.layerwise import LayerWise
else:
    __getattr__, __dir__ = lazy.attach(__name__)

__all__ = [
    "L1",
    "L2",
    "Diagonal",
    "Indicator",
    "LayerWise",
    "Phi",
    "Squared",
    "Zero",
]

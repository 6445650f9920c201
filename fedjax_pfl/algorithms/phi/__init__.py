"""Convex functions that couple models to a center."""

from typing import TYPE_CHECKING

from fedjax_pfl.core import lazy

if TYPE_CHECKING:
    from fedjax_pfl.algorithms.phi.functions import L1 as L1
    from fedjax_pfl.algorithms.phi.functions import L2 as L2
    from fedjax_pfl.algorithms.phi.functions import Diagonal as Diagonal
    from fedjax_pfl.algorithms.phi.functions import Indicator as Indicator
    from fedjax_pfl.algorithms.phi.functions import Phi as Phi
    from fedjax_pfl.algorithms.phi.functions import Squared as Squared
    from fedjax_pfl.algorithms.phi.functions import Zero as Zero
    from fedjax_pfl.algorithms.phi.layerwise import LayerWise as LayerWise
else:
    __getattr__, __dir__ = lazy.attach(__name__)

"""Derivatives of whole trainings, and hyperparameters learned with them."""

from typing import TYPE_CHECKING

from fedjax_pfl.core import lazy

if TYPE_CHECKING:
    from fedjax_pfl.engine.derivatives.forward import (
        Hypergradients,
        hypergradients,
    )
    from fedjax_pfl.engine.derivatives.learning import Learned, learn
    from fedjax_pfl.engine.derivatives.objective import Objective
else:
    __getattr__, __dir__ = lazy.attach(__name__)

__all__ = ["Hypergradients", "Learned", "Objective", "hypergradients", "learn"]

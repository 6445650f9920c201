"""Derivatives of whole trainings, and hyperparameters learned with them.

`learning.learn` moves `values.Values`: of all clients in a `learner.Learner`, while it
trains; of clients and layers in a `descent.Descent`, a step per training.
"""

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

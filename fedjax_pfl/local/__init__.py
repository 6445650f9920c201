"""Local work of one client: who takes part, how much, and by which solver."""

from typing import TYPE_CHECKING

from fedjax_pfl.core import lazy

if TYPE_CHECKING:
    from fedjax_pfl.local.minibatch_scan import (
        LocalInfo,
        full_value,
        full_value_and_gradient,
        local_scan,
    )
    from fedjax_pfl.local.objectives import DataLoss, Objective
    from fedjax_pfl.local.participation import (
        AllClients,
        ClientBudgets,
        FullWork,
        Stragglers,
        UniformCohort,
    )
    from fedjax_pfl.local.solvers import SGD, Optax, ToTolerance
else:
    __getattr__, __dir__ = lazy.attach(__name__)

__all__ = [
    "SGD",
    "AllClients",
    "ClientBudgets",
    "DataLoss",
    "FullWork",
    "LocalInfo",
    "Objective",
    "Optax",
    "Stragglers",
    "ToTolerance",
    "UniformCohort",
    "full_value",
    "full_value_and_gradient",
    "local_scan",
]

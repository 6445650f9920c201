"""Local work of one client."""

from fedjax_pfl.local.minibatch_scan import (
    LocalInfo,
    full_value,
    full_value_and_gradient,
    local_scan,
)
from fedjax_pfl.local.objectives import DataLoss, Objective
from fedjax_pfl.local.solvers import SGD, Optax, ToTolerance

__all__ = [
    "SGD",
    "DataLoss",
    "LocalInfo",
    "Objective",
    "Optax",
    "ToTolerance",
    "full_value",
    "full_value_and_gradient",
    "local_scan",
]

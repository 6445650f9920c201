"""Local work of clients: participation, budgets and solvers."""

from typing import TYPE_CHECKING

from fedjax_pfl.core import lazy

if TYPE_CHECKING:
    from fedjax_pfl.local.devices import Devices as Devices
    from fedjax_pfl.local.minibatch_scan import LocalInfo as LocalInfo
    from fedjax_pfl.local.minibatch_scan import full_value as full_value
    from fedjax_pfl.local.minibatch_scan import (
        full_value_and_gradient as full_value_and_gradient,
    )
    from fedjax_pfl.local.minibatch_scan import local_scan as local_scan
    from fedjax_pfl.local.minibatch_scan import passed_statistics as passed_statistics
    from fedjax_pfl.local.objectives import DataLoss as DataLoss
    from fedjax_pfl.local.objectives import Joint as Joint
    from fedjax_pfl.local.objectives import Objective as Objective
    from fedjax_pfl.local.objectives import StatefulLoss as StatefulLoss
    from fedjax_pfl.local.participation import AllClients as AllClients
    from fedjax_pfl.local.participation import ClientBudgets as ClientBudgets
    from fedjax_pfl.local.participation import FullWork as FullWork
    from fedjax_pfl.local.participation import Stragglers as Stragglers
    from fedjax_pfl.local.participation import UniformCohort as UniformCohort
    from fedjax_pfl.local.private_cohorts import CyclicCohorts as CyclicCohorts
    from fedjax_pfl.local.private_cohorts import PoissonCohort as PoissonCohort
    from fedjax_pfl.local.private_sgd import PrivateSGD as PrivateSGD
    from fedjax_pfl.local.solvers import SGD as SGD
    from fedjax_pfl.local.solvers import Optax as Optax
    from fedjax_pfl.local.solvers import ToTolerance as ToTolerance
    from fedjax_pfl.local.solvers import whole as whole
    from fedjax_pfl.local.virtual_time import Buffered as Buffered
    from fedjax_pfl.local.virtual_time import Synchronous as Synchronous
else:
    __getattr__, __dir__ = lazy.attach(__name__)

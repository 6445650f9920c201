"""Algorithms: one file each, by command-line name in `ALGORITHMS`."""

from typing import TYPE_CHECKING

from fedjax_pfl.core import lazy

if TYPE_CHECKING:
    from fedjax_pfl.algorithms.apfl import APFL
    from fedjax_pfl.algorithms.base import SingleExchange
    from fedjax_pfl.algorithms.common_descent import Armijo
    from fedjax_pfl.algorithms.ditto import Ditto
    from fedjax_pfl.algorithms.fedacs import FedACS
    from fedjax_pfl.algorithms.fedadmm import FedADMM
    from fedjax_pfl.algorithms.fedamp import FedAMP, HeurFedAMP
    from fedjax_pfl.algorithms.fedavg import Centralized, FedAvg, Local
    from fedjax_pfl.algorithms.fedfomo import FedFomo
    from fedjax_pfl.algorithms.fedfv import FedFV
    from fedjax_pfl.algorithms.fedmgda import FedMGDA
    from fedjax_pfl.algorithms.fedper import FedPer
    from fedjax_pfl.algorithms.fedpg import FedPG
    from fedjax_pfl.algorithms.fedplus import FedPlus
    from fedjax_pfl.algorithms.fedprox import FedProx
    from fedjax_pfl.algorithms.fedrep import FedRep
    from fedjax_pfl.algorithms.fedrod import FedROD
    from fedjax_pfl.algorithms.flame import Flame
    from fedjax_pfl.algorithms.lp_proj import LpProj
    from fedjax_pfl.algorithms.majority import Majority
    from fedjax_pfl.algorithms.multi_krum import MultiKrum
    from fedjax_pfl.algorithms.per_fedavg import PerFedAvg
    from fedjax_pfl.algorithms.pfedme import PFedMe
    from fedjax_pfl.algorithms.phi import LayerWise
    from fedjax_pfl.algorithms.registry import (
        AGGREGATORS,
        ALGORITHMS,
        ATTACKS,
        LOCAL_SOLVERS,
        MODELS,
        PARTICIPATIONS,
        PHIS,
        SERVER_OPTIMIZERS,
        STEP_SEARCHES,
        WORK,
    )
    from fedjax_pfl.algorithms.scaffold import Scaffold
    from fedjax_pfl.algorithms.splitgp import SplitGP
    from fedjax_pfl.core.exchange import ClientView, Link
else:
    __getattr__, __dir__ = lazy.attach(__name__)

__all__ = [
    "WORK",
    "STEP_SEARCHES",
    "SERVER_OPTIMIZERS",
    "PHIS",
    "PARTICIPATIONS",
    "MODELS",
    "LOCAL_SOLVERS",
    "ATTACKS",
    "ALGORITHMS",
    "AGGREGATORS",
    "LayerWise",
    "Armijo",
    "APFL",
    "Centralized",
    "ClientView",
    "Ditto",
    "FedACS",
    "FedADMM",
    "FedAMP",
    "FedAvg",
    "FedPG",
    "FedMGDA",
    "FedFV",
    "FedFomo",
    "FedPer",
    "FedPlus",
    "FedProx",
    "FedROD",
    "FedRep",
    "Flame",
    "HeurFedAMP",
    "Link",
    "Local",
    "LpProj",
    "Majority",
    "MultiKrum",
    "PFedMe",
    "PerFedAvg",
    "Scaffold",
    "SingleExchange",
    "SplitGP",
]

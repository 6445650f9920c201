"""Algorithms: one file each, by command-line name in `ALGORITHMS`."""

from typing import TYPE_CHECKING

from fedjax_pfl.core import lazy

if TYPE_CHECKING:
    from fedjax_pfl.algorithms.apfl import APFL as APFL
    from fedjax_pfl.algorithms.base import SingleExchange as SingleExchange
    from fedjax_pfl.algorithms.common_descent import Armijo as Armijo
    from fedjax_pfl.algorithms.ditto import Ditto as Ditto
    from fedjax_pfl.algorithms.fedacs import FedACS as FedACS
    from fedjax_pfl.algorithms.fedadmm import FedADMM as FedADMM
    from fedjax_pfl.algorithms.fedala import FedALA as FedALA
    from fedjax_pfl.algorithms.fedamp import FedAMP as FedAMP
    from fedjax_pfl.algorithms.fedamp import HeurFedAMP as HeurFedAMP
    from fedjax_pfl.algorithms.fedavg import Centralized as Centralized
    from fedjax_pfl.algorithms.fedavg import FedAvg as FedAvg
    from fedjax_pfl.algorithms.fedavg import Local as Local
    from fedjax_pfl.algorithms.fedbabu import FedBABU as FedBABU
    from fedjax_pfl.algorithms.feddyn import FedDyn as FedDyn
    from fedjax_pfl.algorithms.fedfomo import FedFomo as FedFomo
    from fedjax_pfl.algorithms.fedfv import FedFV as FedFV
    from fedjax_pfl.algorithms.fedmgda import FedMGDA as FedMGDA
    from fedjax_pfl.algorithms.fednova import FedNova as FedNova
    from fedjax_pfl.algorithms.fedper import FedPer as FedPer
    from fedjax_pfl.algorithms.fedpg import FedPG as FedPG
    from fedjax_pfl.algorithms.fedplus import FedPlus as FedPlus
    from fedjax_pfl.algorithms.fedproto import FedProto as FedProto
    from fedjax_pfl.algorithms.fedprox import FedProx as FedProx
    from fedjax_pfl.algorithms.fedrep import FedRep as FedRep
    from fedjax_pfl.algorithms.fedrod import FedROD as FedROD
    from fedjax_pfl.algorithms.fedsam import FedSAM as FedSAM
    from fedjax_pfl.algorithms.flame import Flame as Flame
    from fedjax_pfl.algorithms.knn_per import KNNPer as KNNPer
    from fedjax_pfl.algorithms.lp_proj import LpProj as LpProj
    from fedjax_pfl.algorithms.majority import Majority as Majority
    from fedjax_pfl.algorithms.moon import MOON as MOON
    from fedjax_pfl.algorithms.multi_krum import MultiKrum as MultiKrum
    from fedjax_pfl.algorithms.per_fedavg import PerFedAvg as PerFedAvg
    from fedjax_pfl.algorithms.pfedme import PFedMe as PFedMe
    from fedjax_pfl.algorithms.phi import LayerWise as LayerWise
    from fedjax_pfl.algorithms.registry import AGGREGATORS as AGGREGATORS
    from fedjax_pfl.algorithms.registry import ALGORITHMS as ALGORITHMS
    from fedjax_pfl.algorithms.registry import ATTACKS as ATTACKS
    from fedjax_pfl.algorithms.registry import LOCAL_SOLVERS as LOCAL_SOLVERS
    from fedjax_pfl.algorithms.registry import MODELS as MODELS
    from fedjax_pfl.algorithms.registry import PARTICIPATIONS as PARTICIPATIONS
    from fedjax_pfl.algorithms.registry import PHIS as PHIS
    from fedjax_pfl.algorithms.registry import SERVER_OPTIMIZERS as SERVER_OPTIMIZERS
    from fedjax_pfl.algorithms.registry import STEP_SEARCHES as STEP_SEARCHES
    from fedjax_pfl.algorithms.registry import TRANSFORMS as TRANSFORMS
    from fedjax_pfl.algorithms.registry import WORK as WORK
    from fedjax_pfl.algorithms.scaffold import Scaffold as Scaffold
    from fedjax_pfl.algorithms.splitgp import SplitGP as SplitGP
else:
    __getattr__, __dir__ = lazy.attach(__name__)

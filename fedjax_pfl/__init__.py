"""A JAX-first, vectorized simulator of personalized federated learning."""

from fedjax_pfl.core import lazy, platforms

TYPE_CHECKING = False  # importing it takes as long as the rest of a command's start

platforms.check_python()
platforms.watch_forks()

if TYPE_CHECKING:
    from fedjax_pfl import aggregators as aggregators
    from fedjax_pfl import algorithms as algorithms
    from fedjax_pfl import attacks as attacks
    from fedjax_pfl import core as core
    from fedjax_pfl import data as data
    from fedjax_pfl import engine as engine
    from fedjax_pfl import figures as figures
    from fedjax_pfl import local as local
    from fedjax_pfl import messages as messages
    from fedjax_pfl import models as models
    from fedjax_pfl import numerics as numerics
    from fedjax_pfl import portfolio as portfolio
    from fedjax_pfl import results as results
    from fedjax_pfl import round as round
    from fedjax_pfl.aggregators import CoordinateMedian as CoordinateMedian
    from fedjax_pfl.aggregators import GeometricMedian as GeometricMedian
    from fedjax_pfl.aggregators import Krum as Krum
    from fedjax_pfl.aggregators import TrimmedMean as TrimmedMean
    from fedjax_pfl.algorithms import APFL as APFL
    from fedjax_pfl.algorithms import MOON as MOON
    from fedjax_pfl.algorithms import Centralized as Centralized
    from fedjax_pfl.algorithms import Ditto as Ditto
    from fedjax_pfl.algorithms import FedACS as FedACS
    from fedjax_pfl.algorithms import FedADMM as FedADMM
    from fedjax_pfl.algorithms import FedALA as FedALA
    from fedjax_pfl.algorithms import FedAMP as FedAMP
    from fedjax_pfl.algorithms import FedAvg as FedAvg
    from fedjax_pfl.algorithms import FedBABU as FedBABU
    from fedjax_pfl.algorithms import FedDyn as FedDyn
    from fedjax_pfl.algorithms import FedFomo as FedFomo
    from fedjax_pfl.algorithms import FedFV as FedFV
    from fedjax_pfl.algorithms import FedMGDA as FedMGDA
    from fedjax_pfl.algorithms import FedNova as FedNova
    from fedjax_pfl.algorithms import FedPer as FedPer
    from fedjax_pfl.algorithms import FedPG as FedPG
    from fedjax_pfl.algorithms import FedPlus as FedPlus
    from fedjax_pfl.algorithms import FedProto as FedProto
    from fedjax_pfl.algorithms import FedProx as FedProx
    from fedjax_pfl.algorithms import FedRep as FedRep
    from fedjax_pfl.algorithms import FedROD as FedROD
    from fedjax_pfl.algorithms import FedSAM as FedSAM
    from fedjax_pfl.algorithms import Flame as Flame
    from fedjax_pfl.algorithms import HeurFedAMP as HeurFedAMP
    from fedjax_pfl.algorithms import KNNPer as KNNPer
    from fedjax_pfl.algorithms import Local as Local
    from fedjax_pfl.algorithms import LpProj as LpProj
    from fedjax_pfl.algorithms import Majority as Majority
    from fedjax_pfl.algorithms import MultiKrum as MultiKrum
    from fedjax_pfl.algorithms import PerFedAvg as PerFedAvg
    from fedjax_pfl.algorithms import PFedMe as PFedMe
    from fedjax_pfl.algorithms import Scaffold as Scaffold
    from fedjax_pfl.algorithms import SingleExchange as SingleExchange
    from fedjax_pfl.algorithms import SplitGP as SplitGP
    from fedjax_pfl.attacks import ALIE as ALIE
    from fedjax_pfl.attacks import SignFlip as SignFlip
    from fedjax_pfl.core import ClientView as ClientView
    from fedjax_pfl.core import Downlink as Downlink
    from fedjax_pfl.core import Upload as Upload
    from fedjax_pfl.core.checks import InputError as InputError
    from fedjax_pfl.core.struct import pytree_dataclass as pytree_dataclass
    from fedjax_pfl.core.struct import static_field as static_field
    from fedjax_pfl.core.struct import traced_field as traced_field
    from fedjax_pfl.data import IID as IID
    from fedjax_pfl.data import ByClient as ByClient
    from fedjax_pfl.data import DirichletLabels as DirichletLabels
    from fedjax_pfl.data import Federation as Federation
    from fedjax_pfl.data import FederationSpec as FederationSpec
    from fedjax_pfl.data import LabelShards as LabelShards
    from fedjax_pfl.data import load_federation as load_federation
    from fedjax_pfl.engine.callbacks import Callback as Callback
    from fedjax_pfl.engine.derivatives import hypergradients as hypergradients
    from fedjax_pfl.engine.derivatives import learn as learn
    from fedjax_pfl.engine.simulation import grid as grid
    from fedjax_pfl.engine.simulation import simulate as simulate
    from fedjax_pfl.engine.stopping import StopWhen as StopWhen
    from fedjax_pfl.engine.streaming import simulate_streamed as simulate_streamed
    from fedjax_pfl.engine.trainer import Interrupted as Interrupted
    from fedjax_pfl.engine.tuning import Range as Range
    from fedjax_pfl.engine.tuning import tune as tune
    from fedjax_pfl.figures import plot as plot
    from fedjax_pfl.local import SGD as SGD
    from fedjax_pfl.local import Optax as Optax
    from fedjax_pfl.local.devices import Devices as Devices
    from fedjax_pfl.local.participation import AllClients as AllClients
    from fedjax_pfl.local.participation import Stragglers as Stragglers
    from fedjax_pfl.local.participation import UniformCohort as UniformCohort
    from fedjax_pfl.local.virtual_time import Buffered as Buffered
    from fedjax_pfl.local.virtual_time import Synchronous as Synchronous
    from fedjax_pfl.messages import QSGD as QSGD
    from fedjax_pfl.messages import ClipNorm as ClipNorm
    from fedjax_pfl.messages import GaussianNoise as GaussianNoise
    from fedjax_pfl.messages import TopK as TopK
    from fedjax_pfl.models import CNN as CNN
    from fedjax_pfl.models import MLP as MLP
    from fedjax_pfl.models import LogisticRegression as LogisticRegression
    from fedjax_pfl.models import ParameterRoles as ParameterRoles
    from fedjax_pfl.models import from_flax as from_flax
    from fedjax_pfl.models import from_functions as from_functions
    from fedjax_pfl.models import lora as lora
    from fedjax_pfl.results import Result as Result
    from fedjax_pfl.results.checkpoint import Checkpoints as Checkpoints
    from fedjax_pfl.results.model_files import load_models as load_models
    from fedjax_pfl.results.model_files import load_params as load_params
    from fedjax_pfl.round.process import FederatedProcess as FederatedProcess
else:
    __getattr__, __dir__ = lazy.attach(__name__)

__version__ = "0.1.0"

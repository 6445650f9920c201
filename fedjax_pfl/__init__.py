"""A JAX-first, vectorized simulator of personalized federated learning."""

from typing import TYPE_CHECKING

from fedjax_pfl.core import lazy, platforms

platforms.check_python()

if TYPE_CHECKING:
    from fedjax_pfl.aggregators import (
        CoordinateMedian,
        GeometricMedian,
        Krum,
        TrimmedMean,
    )
    from fedjax_pfl.algorithms import (
        APFL,
        Centralized,
        Ditto,
        FedACS,
        FedADMM,
        FedAMP,
        FedAvg,
        FedFomo,
        FedFV,
        FedMGDA,
        FedPer,
        FedPG,
        FedPlus,
        FedProx,
        FedRep,
        FedROD,
        Flame,
        HeurFedAMP,
        Local,
        LpProj,
        Majority,
        MultiKrum,
        PerFedAvg,
        PFedMe,
        Scaffold,
        SingleExchange,
        SplitGP,
    )
    from fedjax_pfl.attacks import ALIE, SignFlip
    from fedjax_pfl.core import ClientView, Downlink, Upload
    from fedjax_pfl.core.checks import InputError
    from fedjax_pfl.core.struct import pytree_dataclass, static_field, traced_field
    from fedjax_pfl.data import (
        IID,
        ByClient,
        DirichletLabels,
        Federation,
        FederationSpec,
        LabelShards,
        load_federation,
    )
    from fedjax_pfl.engine.callbacks import Callback
    from fedjax_pfl.engine.process import FederatedProcess
    from fedjax_pfl.engine.simulation import grid, simulate
    from fedjax_pfl.engine.stopping import StopWhen
    from fedjax_pfl.engine.streaming import simulate_streamed
    from fedjax_pfl.engine.trainer import Interrupted
    from fedjax_pfl.engine.tuning import Range, tune
    from fedjax_pfl.figures import plot
    from fedjax_pfl.local import SGD, Optax
    from fedjax_pfl.local.participation import AllClients, Stragglers, UniformCohort
    from fedjax_pfl.models import (
        CNN,
        MLP,
        LogisticRegression,
        from_flax,
        from_functions,
    )
    from fedjax_pfl.results import Result
    from fedjax_pfl.results.checkpoint import Checkpoints
    from fedjax_pfl.results.trained_models import load_models
else:
    __getattr__, __dir__ = lazy.attach(__name__)

__version__ = "0.1.0"

__all__ = [
    "ALIE",
    "APFL",
    "AllClients",
    "ByClient",
    "CNN",
    "Callback",
    "Centralized",
    "Checkpoints",
    "ClientView",
    "CoordinateMedian",
    "DirichletLabels",
    "Ditto",
    "Downlink",
    "FedACS",
    "FedADMM",
    "FedAMP",
    "FedAvg",
    "FedFV",
    "FedFomo",
    "FedMGDA",
    "FedPG",
    "FedPer",
    "FedPlus",
    "FedProx",
    "FedROD",
    "FedRep",
    "FederatedProcess",
    "Federation",
    "FederationSpec",
    "Flame",
    "GeometricMedian",
    "HeurFedAMP",
    "IID",
    "InputError",
    "Interrupted",
    "Krum",
    "LabelShards",
    "Local",
    "LogisticRegression",
    "LpProj",
    "MLP",
    "Majority",
    "MultiKrum",
    "Optax",
    "PFedMe",
    "PerFedAvg",
    "Range",
    "Result",
    "SGD",
    "Scaffold",
    "SignFlip",
    "SingleExchange",
    "SplitGP",
    "StopWhen",
    "Stragglers",
    "TrimmedMean",
    "UniformCohort",
    "Upload",
    "from_flax",
    "from_functions",
    "grid",
    "load_federation",
    "load_models",
    "plot",
    "pytree_dataclass",
    "simulate",
    "simulate_streamed",
    "static_field",
    "traced_field",
    "tune",
]

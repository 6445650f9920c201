"""A JAX-first, vectorized simulator of personalized federated learning."""

from fedjax_pfl.aggregators import (
    AGGREGATORS,
    CoordinateMedian,
    GeometricMedian,
    Mean,
    WeightedMean,
)
from fedjax_pfl.algorithms import (
    ALGORITHMS,
    Centralized,
    FedAvg,
    Flame,
    Local,
    SingleExchange,
)
from fedjax_pfl.attacks import ATTACKS, Gaussian, SignFlip
from fedjax_pfl.checks import InputError
from fedjax_pfl.clients import Execution
from fedjax_pfl.data import (
    DATASETS,
    IID,
    PARTITIONS,
    ByClient,
    Dataset,
    DirichletLabels,
    FederationSpec,
    LabelShards,
    Partition,
    load_federation,
)
from fedjax_pfl.history import History
from fedjax_pfl.local import LOCAL_SOLVERS, SGD, Optax, ToTolerance
from fedjax_pfl.models import (
    MLP,
    MODELS,
    LinearRegression,
    LogisticRegression,
    Quadratic,
)
from fedjax_pfl.participation import (
    PARTICIPATIONS,
    WORK,
    AllClients,
    FullWork,
    Stragglers,
    UniformCohort,
)
from fedjax_pfl.process import FederatedProcess
from fedjax_pfl.results import Result
from fedjax_pfl.struct import pytree_dataclass, static_field
from fedjax_pfl.training import grid, simulate
from fedjax_pfl.types import (
    Batch,
    Budget,
    ClientData,
    Downlink,
    Federation,
    State,
    Upload,
)

__all__ = [
    "AGGREGATORS",
    "ALGORITHMS",
    "ATTACKS",
    "DATASETS",
    "IID",
    "LOCAL_SOLVERS",
    "MLP",
    "MODELS",
    "PARTICIPATIONS",
    "PARTITIONS",
    "SGD",
    "WORK",
    "AllClients",
    "Batch",
    "Budget",
    "ByClient",
    "Centralized",
    "ClientData",
    "CoordinateMedian",
    "Dataset",
    "DirichletLabels",
    "Downlink",
    "Execution",
    "FedAvg",
    "FederatedProcess",
    "Federation",
    "FederationSpec",
    "Flame",
    "FullWork",
    "Gaussian",
    "GeometricMedian",
    "History",
    "InputError",
    "LabelShards",
    "LinearRegression",
    "Local",
    "LogisticRegression",
    "Mean",
    "Optax",
    "Partition",
    "Quadratic",
    "Result",
    "SignFlip",
    "SingleExchange",
    "State",
    "Stragglers",
    "ToTolerance",
    "UniformCohort",
    "Upload",
    "WeightedMean",
    "grid",
    "load_federation",
    "pytree_dataclass",
    "simulate",
    "static_field",
]

"""Names of commands and files, available without JAX, and their classes."""

import collections
import importlib
from typing import Any

__all__ = [
    "AGGREGATORS",
    "ALGORITHMS",
    "ATTACKS",
    "LOCAL_SOLVERS",
    "MODELS",
    "PARTICIPATIONS",
    "PHIS",
    "SERVER_OPTIMIZERS",
    "STEP_SEARCHES",
    "TRANSFORMS",
    "WORK",
    "Registry",
]


class Registry(collections.UserDict[str, Any]):
    """Classes of a room by their names in commands; importing waits for `[name]`."""

    def __init__(self, room: str, **classes: str):
        super().__init__(classes)
        self._room = room

    def __getitem__(self, name: str) -> Any:
        """Returns the class of a name."""
        room, _, attribute = self.data[name].rpartition(".")
        module = importlib.import_module(f"fedjax_pfl.{room or self._room}")
        return getattr(module, attribute)


AGGREGATORS = Registry(
    "aggregators",
    mean="Mean",
    weighted_mean="WeightedMean",
    modular_mean="ModularMean",
    product_mean="ProductMean",
    coordinate_median="CoordinateMedian",
    geometric_median="GeometricMedian",
    krum="Krum",
    trimmed_mean="TrimmedMean",
    meamed="MeaMed",
    bulyan="Bulyan",
    centered_clipping="CenteredClipping",
    norm_clipping="NormClipping",
    nearest_neighbor_mixing="NearestNeighborMixing",
    bucketing="Bucketing",
)
ALGORITHMS = Registry(
    "algorithms",
    apfl="APFL",
    centralized="Centralized",
    ditto="Ditto",
    fedacs="FedACS",
    fedadmm="FedADMM",
    fedala="FedALA",
    fedamp="FedAMP",
    fedavg="FedAvg",
    fedbabu="FedBABU",
    feddyn="FedDyn",
    fedfomo="FedFomo",
    fedfv="FedFV",
    fedmgda="FedMGDA",
    fednova="FedNova",
    fedper="FedPer",
    fedpg="FedPG",
    fedplus="FedPlus",
    fedproto="FedProto",
    fedprox="FedProx",
    fedrep="FedRep",
    fedrod="FedROD",
    fedsam="FedSAM",
    flame="Flame",
    heur_fedamp="HeurFedAMP",
    knn_per="KNNPer",
    local="Local",
    lp_proj="LpProj",
    majority="Majority",
    moon="MOON",
    multi_krum="MultiKrum",
    per_fedavg="PerFedAvg",
    pfedme="PFedMe",
    scaffold="Scaffold",
    splitgp="SplitGP",
)
ATTACKS = Registry(
    "attacks",
    sign_flip="SignFlip",
    gaussian="Gaussian",
    same_value="SameValue",
    scaling="Scaling",
    ipm="IPM",
    alie="ALIE",
    min_max="MinMax",
    min_sum="MinSum",
    mimic="Mimic",
)
LOCAL_SOLVERS = Registry(
    "local",
    sgd="SGD",
    optax="Optax",
    private_sgd="PrivateSGD",
    to_tolerance="ToTolerance",
)
MODELS = Registry(
    "models",
    cifar_cnn="CifarCNN",
    cnn="CNN",
    cnn1="CNN1",
    cnn2="CNN2",
    eiie="portfolio.EIIE",
    fedacs_cnn="FedAcsCNN",
    small_cnn="SmallCNN",
    lenet5="LeNet5",
    linear_regression="LinearRegression",
    logistic_regression="LogisticRegression",
    lstm="LSTM",
    mlp="MLP",
    nf_resnet18="NFResNet18",
    quadratic="Quadratic",
    text_encoder="TextEncoder",
    vision_transformer="VisionTransformer",
)
PARTICIPATIONS = Registry(
    "local",
    all="AllClients",
    buffered="Buffered",
    cyclic="CyclicCohorts",
    poisson="PoissonCohort",
    synchronous="Synchronous",
    uniform="UniformCohort",
)
PHIS = Registry(
    "algorithms.phi",
    diagonal="Diagonal",
    indicator="Indicator",
    l1="L1",
    l2="L2",
    sq="Squared",
    zero="Zero",
    layer_wise="LayerWise",
)
SERVER_OPTIMIZERS = Registry(
    "aggregators.server_optimizers",
    momentum="ServerMomentum",
    adam="ServerAdam",
)
STEP_SEARCHES = Registry("algorithms.common_descent", armijo="Armijo")
TRANSFORMS = Registry(
    "messages",
    clip_norm="ClipNorm",
    adaptive_clip="AdaptiveClip",
    gaussian_noise="GaussianNoise",
    tree_noise="TreeNoise",
    banded_noise="BandedNoise",
    top_k="TopK",
    random_k="RandomK",
    qsgd="QSGD",
    sign_scale="SignScale",
    low_rank="LowRank",
)
WORK = Registry(
    "local.participation",
    full="FullWork",
    per_client="ClientBudgets",
    stragglers="Stragglers",
)

"""Data sets, partitions over clients, and federations."""

from fedjax_pfl.data.dataset import Dataset, Source
from fedjax_pfl.data.federation import FederationSpec, from_dataset, load_federation
from fedjax_pfl.data.partition import (
    IID,
    PARTITIONS,
    ByClient,
    DirichletLabels,
    LabelShards,
    Partition,
    Partitioner,
)
from fedjax_pfl.data.sources import (
    DATASETS,
    Digits,
    FashionMnist,
    Mnist,
    load_dataset,
)
from fedjax_pfl.data.synthetic import GaussianClasses, LinearRegression, Quadratic

__all__ = [
    "DATASETS",
    "IID",
    "PARTITIONS",
    "ByClient",
    "Dataset",
    "Digits",
    "DirichletLabels",
    "FashionMnist",
    "FederationSpec",
    "GaussianClasses",
    "LabelShards",
    "LinearRegression",
    "Mnist",
    "Partition",
    "Partitioner",
    "Quadratic",
    "Source",
    "from_dataset",
    "load_dataset",
    "load_federation",
]

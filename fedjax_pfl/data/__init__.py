"""Data sets, partitions over clients, corruption, and federations."""

from typing import TYPE_CHECKING

from fedjax_pfl.core import lazy

if TYPE_CHECKING:
    from fedjax_pfl.data.corruption import (
        FEATURE_NOISES,
        LABEL_POISONINGS,
        FeatureNoise,
        FlippedLabels,
        PairwiseLabels,
        UniformLabels,
    )
    from fedjax_pfl.data.dataset import Dataset, Source
    from fedjax_pfl.data.federation import (
        Federation,
        FederationSpec,
        from_dataset,
        load_federation,
    )
    from fedjax_pfl.data.partition import (
        IID,
        PARTITIONS,
        ByClient,
        ClassWindows,
        DirichletLabels,
        FeatureSkew,
        HybridSkew,
        LabelShards,
        LeakyDirichletLabels,
        LeakyHybridSkew,
        LeakyQuantitySkew,
        Partition,
        Partitioner,
        PathologicalBlocks,
        PowerLaw,
        QualitySkew,
        QuantitySkew,
    )
    from fedjax_pfl.data.sources import (
        DATASETS,
        Cifar10,
        Cifar100,
        Csv,
        Digits,
        FashionMnist,
        Femnist,
        ImageFolder,
        LeafJson,
        MedicalMnist,
        MissingFilesError,
        Mnist,
        Npz,
        Sent140,
        Shakespeare,
        Stocks,
        load_dataset,
    )
    from fedjax_pfl.data.sources.user import source_for
    from fedjax_pfl.data.statistics import PartitionStatistics, describe
    from fedjax_pfl.data.synthetic import (
        ClusteredClasses,
        GaussianClasses,
        LinearRegression,
        Quadratic,
    )
    from fedjax_pfl.data.synthetic_logistic import Synthetic
    from fedjax_pfl.data.synthetic_text import SyntheticSentiment
else:
    __getattr__, __dir__ = lazy.attach(__name__)

__all__ = [
    "Cifar10",
    "Cifar100",
    "ClusteredClasses",
    "Csv",
    "Digits",
    "FashionMnist",
    "Femnist",
    "ImageFolder",
    "LeafJson",
    "MedicalMnist",
    "MissingFilesError",
    "Mnist",
    "Npz",
    "Sent140",
    "Shakespeare",
    "Stocks",
    "DATASETS",
    "FEATURE_NOISES",
    "IID",
    "LABEL_POISONINGS",
    "PARTITIONS",
    "ByClient",
    "ClassWindows",
    "Dataset",
    "DirichletLabels",
    "FeatureNoise",
    "FeatureSkew",
    "Federation",
    "FederationSpec",
    "FlippedLabels",
    "GaussianClasses",
    "HybridSkew",
    "LabelShards",
    "LeakyDirichletLabels",
    "LeakyHybridSkew",
    "LeakyQuantitySkew",
    "LinearRegression",
    "PairwiseLabels",
    "Partition",
    "PartitionStatistics",
    "Partitioner",
    "PathologicalBlocks",
    "PowerLaw",
    "Quadratic",
    "QualitySkew",
    "QuantitySkew",
    "Source",
    "Synthetic",
    "SyntheticSentiment",
    "UniformLabels",
    "describe",
    "from_dataset",
    "load_dataset",
    "load_federation",
    "source_for",
]

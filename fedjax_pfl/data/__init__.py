"""Data sets, partitions over clients, corruption, and federations."""

from typing import TYPE_CHECKING

from fedjax_pfl.core import lazy

if TYPE_CHECKING:
    from fedjax_pfl.data.corruption import FEATURE_NOISES as FEATURE_NOISES
    from fedjax_pfl.data.corruption import LABEL_POISONINGS as LABEL_POISONINGS
    from fedjax_pfl.data.corruption import FeatureNoise as FeatureNoise
    from fedjax_pfl.data.corruption import FlippedLabels as FlippedLabels
    from fedjax_pfl.data.corruption import PairwiseLabels as PairwiseLabels
    from fedjax_pfl.data.corruption import UniformLabels as UniformLabels
    from fedjax_pfl.data.dataset import Dataset as Dataset
    from fedjax_pfl.data.dataset import Source as Source
    from fedjax_pfl.data.dataset import forget as forget
    from fedjax_pfl.data.federation import Federation as Federation
    from fedjax_pfl.data.federation import FederationSpec as FederationSpec
    from fedjax_pfl.data.federation import from_dataset as from_dataset
    from fedjax_pfl.data.federation import load_federation as load_federation
    from fedjax_pfl.data.partition import IID as IID
    from fedjax_pfl.data.partition import PARTITIONS as PARTITIONS
    from fedjax_pfl.data.partition import ByClient as ByClient
    from fedjax_pfl.data.partition import ClassWindows as ClassWindows
    from fedjax_pfl.data.partition import DirichletLabels as DirichletLabels
    from fedjax_pfl.data.partition import FeatureSkew as FeatureSkew
    from fedjax_pfl.data.partition import HybridSkew as HybridSkew
    from fedjax_pfl.data.partition import LabelShards as LabelShards
    from fedjax_pfl.data.partition import LeakyDirichletLabels as LeakyDirichletLabels
    from fedjax_pfl.data.partition import LeakyHybridSkew as LeakyHybridSkew
    from fedjax_pfl.data.partition import LeakyQuantitySkew as LeakyQuantitySkew
    from fedjax_pfl.data.partition import Partition as Partition
    from fedjax_pfl.data.partition import Partitioner as Partitioner
    from fedjax_pfl.data.partition import PathologicalBlocks as PathologicalBlocks
    from fedjax_pfl.data.partition import PowerLaw as PowerLaw
    from fedjax_pfl.data.partition import QualitySkew as QualitySkew
    from fedjax_pfl.data.partition import QuantitySkew as QuantitySkew
    from fedjax_pfl.data.preparation import Preparation as Preparation
    from fedjax_pfl.data.published import minilm as minilm
    from fedjax_pfl.data.sources import DATASETS as DATASETS
    from fedjax_pfl.data.sources import Cifar10 as Cifar10
    from fedjax_pfl.data.sources import Cifar100 as Cifar100
    from fedjax_pfl.data.sources import Csv as Csv
    from fedjax_pfl.data.sources import Digits as Digits
    from fedjax_pfl.data.sources import FashionMnist as FashionMnist
    from fedjax_pfl.data.sources import Femnist as Femnist
    from fedjax_pfl.data.sources import ImageFolder as ImageFolder
    from fedjax_pfl.data.sources import LeafJson as LeafJson
    from fedjax_pfl.data.sources import MedicalMnist as MedicalMnist
    from fedjax_pfl.data.sources import MissingFilesError as MissingFilesError
    from fedjax_pfl.data.sources import Mnist as Mnist
    from fedjax_pfl.data.sources import Npz as Npz
    from fedjax_pfl.data.sources import Sent140 as Sent140
    from fedjax_pfl.data.sources import Shakespeare as Shakespeare
    from fedjax_pfl.data.sources import Stocks as Stocks
    from fedjax_pfl.data.sources import load_dataset as load_dataset
    from fedjax_pfl.data.sources.fetching import fetch as fetch
    from fedjax_pfl.data.sources.user import source_for as source_for
    from fedjax_pfl.data.statistics import PartitionStatistics as PartitionStatistics
    from fedjax_pfl.data.statistics import describe as describe
    from fedjax_pfl.data.synthetic import ClusteredClasses as ClusteredClasses
    from fedjax_pfl.data.synthetic import GaussianClasses as GaussianClasses
    from fedjax_pfl.data.synthetic import LinearRegression as LinearRegression
    from fedjax_pfl.data.synthetic import Quadratic as Quadratic
    from fedjax_pfl.data.synthetic_logistic import Synthetic as Synthetic
    from fedjax_pfl.data.synthetic_text import SyntheticSentiment as SyntheticSentiment
else:
    __getattr__, __dir__ = lazy.attach(__name__)

"""Rules that combine the messages of a round into one."""

from fedjax_pfl.aggregators.blockwise import Blockwise
from fedjax_pfl.aggregators.coordinate_median import (
    CoordinateMedian,
    CoordinateMedianInfo,
)
from fedjax_pfl.aggregators.geometric_median import GeometricMedian, GeometricMedianInfo
from fedjax_pfl.aggregators.krum import Krum, KrumInfo
from fedjax_pfl.aggregators.mean import Mean, WeightedMean

__all__ = [
    "AGGREGATORS",
    "Blockwise",
    "CoordinateMedian",
    "CoordinateMedianInfo",
    "GeometricMedian",
    "GeometricMedianInfo",
    "Krum",
    "KrumInfo",
    "Mean",
    "WeightedMean",
]

AGGREGATORS = {
    "mean": Mean,
    "weighted_mean": WeightedMean,
    "coordinate_median": CoordinateMedian,
    "geometric_median": GeometricMedian,
    "krum": Krum,
}

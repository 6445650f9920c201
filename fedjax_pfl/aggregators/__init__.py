"""Rules that combine the messages of a round into one."""

from typing import TYPE_CHECKING

from fedjax_pfl.core import lazy

if TYPE_CHECKING:
    from fedjax_pfl.aggregators.blockwise import Blockwise
    from fedjax_pfl.aggregators.bulyan import Bulyan, BulyanInfo
    from fedjax_pfl.aggregators.clipping import (
        CenteredClipping,
        ClippingInfo,
        NormClipping,
    )
    from fedjax_pfl.aggregators.coordinate_median import (
        CoordinateMedian,
        CoordinateMedianInfo,
    )
    from fedjax_pfl.aggregators.geometric_median import (
        GeometricMedian,
        GeometricMedianInfo,
    )
    from fedjax_pfl.aggregators.krum import Krum, KrumInfo
    from fedjax_pfl.aggregators.mean import Mean, WeightedMean
    from fedjax_pfl.aggregators.min_norm import CommonDescent, CommonDescentInfo
    from fedjax_pfl.aggregators.mixing import Bucketing, NearestNeighborMixing
    from fedjax_pfl.aggregators.server_optimizers import ServerAdam, ServerMomentum
    from fedjax_pfl.aggregators.trimmed import MeaMed, TrimmedMean
else:
    __getattr__, __dir__ = lazy.attach(__name__)

__all__ = [
    "ServerMomentum",
    "ServerAdam",
    "Blockwise",
    "Bucketing",
    "Bulyan",
    "BulyanInfo",
    "CenteredClipping",
    "ClippingInfo",
    "CommonDescent",
    "CommonDescentInfo",
    "CoordinateMedian",
    "CoordinateMedianInfo",
    "GeometricMedian",
    "GeometricMedianInfo",
    "Krum",
    "KrumInfo",
    "MeaMed",
    "Mean",
    "NearestNeighborMixing",
    "NormClipping",
    "TrimmedMean",
    "WeightedMean",
]

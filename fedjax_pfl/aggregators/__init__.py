"""Rules that combine the messages of a round into one."""

from typing import TYPE_CHECKING

from fedjax_pfl.core import lazy

if TYPE_CHECKING:
    from fedjax_pfl.aggregators.blockwise import Blockwise as Blockwise
    from fedjax_pfl.aggregators.bulyan import Bulyan as Bulyan
    from fedjax_pfl.aggregators.bulyan import BulyanInfo as BulyanInfo
    from fedjax_pfl.aggregators.clipping import CenteredClipping as CenteredClipping
    from fedjax_pfl.aggregators.clipping import ClippingInfo as ClippingInfo
    from fedjax_pfl.aggregators.clipping import NormClipping as NormClipping
    from fedjax_pfl.aggregators.coordinate_median import (
        CoordinateMedian as CoordinateMedian,
    )
    from fedjax_pfl.aggregators.coordinate_median import (
        CoordinateMedianInfo as CoordinateMedianInfo,
    )
    from fedjax_pfl.aggregators.geometric_median import (
        GeometricMedian as GeometricMedian,
    )
    from fedjax_pfl.aggregators.geometric_median import (
        GeometricMedianInfo as GeometricMedianInfo,
    )
    from fedjax_pfl.aggregators.krum import Krum as Krum
    from fedjax_pfl.aggregators.krum import KrumInfo as KrumInfo
    from fedjax_pfl.aggregators.mean import Mean as Mean
    from fedjax_pfl.aggregators.mean import WeightedMean as WeightedMean
    from fedjax_pfl.aggregators.min_norm import CommonDescent as CommonDescent
    from fedjax_pfl.aggregators.min_norm import CommonDescentInfo as CommonDescentInfo
    from fedjax_pfl.aggregators.mixing import Bucketing as Bucketing
    from fedjax_pfl.aggregators.mixing import (
        NearestNeighborMixing as NearestNeighborMixing,
    )
    from fedjax_pfl.aggregators.modular_mean import ModularInfo as ModularInfo
    from fedjax_pfl.aggregators.modular_mean import ModularMean as ModularMean
    from fedjax_pfl.aggregators.product_mean import ProductMean as ProductMean
    from fedjax_pfl.aggregators.product_mean import ProductMeanInfo as ProductMeanInfo
    from fedjax_pfl.aggregators.server_optimizers import ServerAdam as ServerAdam
    from fedjax_pfl.aggregators.server_optimizers import (
        ServerMomentum as ServerMomentum,
    )
    from fedjax_pfl.aggregators.trimmed import MeaMed as MeaMed
    from fedjax_pfl.aggregators.trimmed import TrimmedMean as TrimmedMean
else:
    __getattr__, __dir__ = lazy.attach(__name__)

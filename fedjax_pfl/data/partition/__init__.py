"""Partitions of a data set over clients: seeded and always terminating.

A partition object is a frozen dataclass, called with a generator, a `Dataset` and the
number of clients. Clients are disjoint, except in partitions named `leaky_...`, which
repeat published code, and in `class_windows` if a class has too few examples.
`PARTITIONS` maps command-line names to the classes.
"""

from typing import Any

from fedjax_pfl.data.partition.base import Partition, Partitioner
from fedjax_pfl.data.partition.blocks import (
    ClassWindows,
    PathologicalBlocks,
    PowerLaw,
)
from fedjax_pfl.data.partition.labels import DirichletLabels, HybridSkew, LabelShards
from fedjax_pfl.data.partition.leaky import (
    LeakyDirichletLabels,
    LeakyHybridSkew,
    LeakyQuantitySkew,
)
from fedjax_pfl.data.partition.natural import ByClient, FeatureSkew
from fedjax_pfl.data.partition.sizes import IID, QualitySkew, QuantitySkew

# The classes of the partitions are the values of `PARTITIONS`.
__all__ = ["PARTITIONS", "Partition", "Partitioner"]

PARTITIONS: dict[str, Any] = {
    kind.name: kind
    for kind in (
        IID,
        DirichletLabels,
        LabelShards,
        PathologicalBlocks,
        QuantitySkew,
        PowerLaw,
        ClassWindows,
        QualitySkew,
        HybridSkew,
        ByClient,
        FeatureSkew,
        LeakyDirichletLabels,
        LeakyQuantitySkew,
        LeakyHybridSkew,
    )
}

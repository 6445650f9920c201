"""The pytrees that cross module borders and the protocols of every pluggable part.

Shape letters: `N` clients, `K` cohort, `S` samples in the pool, `M` padded samples per
client, `B` batch, `C` classes, `*P` the shape of a parameter leaf.
"""

from fedjax_pfl.types.examples import Batch, ClientData, Federation
from fedjax_pfl.types.predictors import Predictor
from fedjax_pfl.types.protocols import (
    Aggregator,
    Attack,
    Model,
    Params,
    Participation,
    SeriesModel,
    ServerOptimizer,
    Work,
)
from fedjax_pfl.types.randomness import (
    GENERATOR,
    Key,
    Stream,
    new_key,
    seed_key,
    stream_key,
)
from fedjax_pfl.types.rounds import (
    Budget,
    Downlink,
    Members,
    Population,
    RoundContext,
    RoundInfo,
    State,
    Upload,
)

__all__ = [
    "Aggregator",
    "Attack",
    "Batch",
    "Budget",
    "ClientData",
    "Downlink",
    "GENERATOR",
    "Members",
    "Population",
    "Federation",
    "Key",
    "Model",
    "Params",
    "Participation",
    "Predictor",
    "RoundContext",
    "RoundInfo",
    "SeriesModel",
    "ServerOptimizer",
    "State",
    "Stream",
    "Upload",
    "Work",
    "new_key",
    "seed_key",
    "stream_key",
]

"""The pytrees that cross module borders and the protocols of every pluggable part.

Shape letters: `N` clients, `K` cohort, `S` samples in the pool, `M` padded samples per
client, `B` batch, `C` classes, `*P` the shape of a parameter leaf.
"""

from typing import TYPE_CHECKING

from fedjax_pfl.core import lazy

if TYPE_CHECKING:
    from fedjax_pfl.core.checks import InputError
    from fedjax_pfl.core.exchange import ClientView, Link
    from fedjax_pfl.core.federation import Batch, ClientData, Federation
    from fedjax_pfl.core.predictor import Predictor
    from fedjax_pfl.core.protocols import (
        Aggregator,
        Attack,
        Model,
        Params,
        Participation,
        SequenceModel,
        ServerOptimizer,
        Specification,
        Work,
    )
    from fedjax_pfl.core.randomness import (
        GENERATOR,
        Key,
        Stream,
        new_key,
        seed_key,
        stream_key,
    )
    from fedjax_pfl.core.sharding import Execution
    from fedjax_pfl.core.state import (
        Budget,
        Downlink,
        Members,
        Population,
        Report,
        RoundContext,
        RoundInfo,
        State,
        Upload,
    )
    from fedjax_pfl.core.struct import pytree_dataclass, static_field
else:
    __getattr__, __dir__ = lazy.attach(__name__)

__all__ = [
    "Aggregator",
    "Attack",
    "Batch",
    "Budget",
    "ClientData",
    "ClientView",
    "Downlink",
    "Execution",
    "Federation",
    "GENERATOR",
    "InputError",
    "Key",
    "Link",
    "Members",
    "Model",
    "Params",
    "Participation",
    "Population",
    "Predictor",
    "Report",
    "RoundContext",
    "RoundInfo",
    "SequenceModel",
    "ServerOptimizer",
    "Specification",
    "State",
    "Stream",
    "Upload",
    "Work",
    "new_key",
    "pytree_dataclass",
    "seed_key",
    "static_field",
    "stream_key",
]

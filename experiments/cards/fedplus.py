"""Card of Fed+: its claims, and ours about it.

The numbers are those printed in Yu, Kundu, Wynter, Lim, "Fed+: A Unified Approach to
Robust Personalized Federated Learning".
"""

import dataclasses
import itertools

from experiments.cards import claims, pages
from experiments.cards.runs import Side

__all__ = [
    "CARD",
    "CO",
    "FEDAVG",
    "FEDPROX",
    "GEO",
    "LOCAL",
    "MEAN",
    "MEDIAN",
    "RFA",
]

_NONE = {"algorithm.rho_quantile": None}
MEAN = Side("FedPlus", "personal", {"algorithm.phi": "Squared"})
GEO = Side("FedPlus", "personal", {"algorithm.phi": "L2"} | _NONE)
CO = Side("FedPlus", "personal", {"algorithm.phi": "L1"} | _NONE)
_FREE = {"algorithm.rho_quantile": 0.5}
_GEO_FREE = Side("FedPlus", "personal", {"algorithm.phi": "L2"} | _FREE)
_CO_FREE = Side("FedPlus", "personal", {"algorithm.phi": "L1"} | _FREE)
LOCAL = Side("Local", "personal")
_MAJORITY = Side("Majority", "personal")
FEDAVG = Side("FedAvg", "global", {"aggregator": None})
RFA = Side("FedAvg", "global", {"aggregator": "GeometricMedian"})
MEDIAN = Side("FedAvg", "global", {"aggregator": "CoordinateMedian"})
FEDPROX = Side("FedProx", "global")

_BENCHMARKS = ("synthetic", "mnist", "femnist", "sentiment")
_PAIRS = (
    ("FedGeoMed+ is better than FedAvg", GEO, FEDAVG),
    ("FedGeoMed+ is better than FedProx", GEO, FEDPROX),
    ("FedGeoMed+ is better than RFA", GEO, RFA),
    ("FedGeoMed+ is better than the coordinate median", GEO, MEDIAN),
    ("FedAvg is better than RFA", FEDAVG, RFA),
    ("FedAvg is better than the coordinate median", FEDAVG, MEDIAN),
    ("ours: FedGeoMed+ is better than local training", GEO, LOCAL),
    ("ours: FedGeoMed+ is better than the majority class", GEO, _MAJORITY),
    ("ours: FedGeoMed+ is better scale-free", _GEO_FREE, GEO),
    ("ours: FedCoMed+ is better scale-free", _CO_FREE, CO),
)
_ABOVE_MEAN = (
    ("FedGeoMed+ is better than FedAvg+", GEO, MEAN),
    ("FedCoMed+ is better than FedAvg+", CO, MEAN),
)


def _benchmark_claims(data: str) -> list[claims.Claim]:
    """Returns the claims on one benchmark; runs have the names of presets."""
    pairs = [*_PAIRS, *(_ABOVE_MEAN if data in ("synthetic", "sentiment") else ())]
    return claims.of(f"fedplus_{data}", data, pairs)


def _with(side: Side, field: str, value: float) -> Side:
    """Returns the side with one more field."""
    return dataclasses.replace(side, where={**side.where, field: value})


def _party_claims() -> list[claims.Claim]:
    """Returns the claims that more parties help, over all of them."""
    # In this run the radius is the paper's everywhere.
    phi = {"FedAvg+": "Squared", "FedGeoMed+": "L2", "FedCoMed+": "L1"}
    better = []
    for name, value in phi.items():
        side = Side("FedPlus", "personal", {"algorithm.phi": value})
        among = {n: _with(side, "participation.among", n) for n in (100, 500, 1000)}
        pairs = [
            (
                f"{more} parties in training are better than {fewer}",
                among[more],
                among[fewer],
            )
            for fewer, more in itertools.pairwise(among)
        ]
        better += claims.of("fedplus_parties", f"MNIST, {name}", pairs, across=True)
    return better


def _attack_claims() -> list[claims.Claim]:
    """Returns our claims on robustness; the paper has no attack."""
    geo = _with(GEO, "algorithm.lam", 0.0)
    mean, geo_free, co_free = (
        _with(side, "algorithm.lam", 0.5) for side in (MEAN, _GEO_FREE, _CO_FREE)
    )
    pairs = (
        ("FedGeoMed+ is better than FedAvg", geo, FEDAVG),
        ("RFA is better than FedAvg", RFA, FEDAVG),
        ("FedGeoMed+ is better than RFA", geo, RFA),
        ("FedGeoMed+ is better than local training", geo, LOCAL),
        ("lam = 0.5, scale-free: FedGeoMed+ is better than FedAvg+", geo_free, mean),
        ("lam = 0.5, scale-free: FedCoMed+ is better than FedAvg+", co_free, mean),
    )
    return claims.of("fedplus_attacks", "ours, sign flip", pairs)


CARD = pages.Card(
    method="fedplus",
    title="Fed+",
    text=pages.text_of("fedplus"),
    reference=LOCAL,
    claims=(
        *(claim for data in _BENCHMARKS for claim in _benchmark_claims(data)),
        *_party_claims(),
        *_attack_claims(),
    ),
)

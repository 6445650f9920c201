"""Card of Fed+: its claims, and our claims about it.

The numbers are printed in Yu, Kundu, Wynter, Lim, "Fed+: A Unified Approach to
Robust Personalized Federated Learning".
"""

import dataclasses
import itertools
from typing import Any

from experiments.cards import claims, headlines, pages, verdicts
from experiments.cards.runs import Side

__all__ = ["CARD", "SIDES"]


def _plus(phi: str, **fields: Any) -> Side:
    """Returns Fed+ with one of its centers."""
    where = {"phi": phi} | fields
    return Side("FedPlus", "personal", {f"algorithm.{n}": v for n, v in where.items()})


SIDES = {
    "FedAvg": Side("FedAvg", "global", {"aggregator": None}),
    "RFA": Side("FedAvg", "global", {"aggregator": "GeometricMedian"}),
    "Coordinate median": Side("FedAvg", "global", {"aggregator": "CoordinateMedian"}),
    "FedProx": Side("FedProx", "global"),
    "FedAvg+": _plus("Squared"),
    "FedGeoMed+": _plus("L2", rho_quantile=None),
    "FedCoMed+": _plus("L1", rho_quantile=None),
    "single party": Side("Local", "personal"),
}
"""Methods of the paper's comparisons, and training alone."""
_FEDAVG, _RFA, _MEDIAN, _FEDPROX, _MEAN, _GEO, _CO, _LOCAL = SIDES.values()
_GEO_FREE, _CO_FREE = (_plus(phi, rho_quantile=0.5) for phi in ("L2", "L1"))
_MAJORITY = Side("Majority", "personal")

_BENCHMARKS = ("synthetic", "mnist", "femnist", "sentiment")
_PAIRS = (
    ("FedGeoMed+ is better than FedAvg", _GEO, _FEDAVG),
    ("FedGeoMed+ is better than FedProx", _GEO, _FEDPROX),
    ("FedGeoMed+ is better than RFA", _GEO, _RFA),
    ("FedGeoMed+ is better than the coordinate median", _GEO, _MEDIAN),
    ("FedAvg is better than RFA", _FEDAVG, _RFA),
    ("FedAvg is better than the coordinate median", _FEDAVG, _MEDIAN),
    ("ours: FedGeoMed+ is better than local training", _GEO, _LOCAL),
    ("ours: FedGeoMed+ is better than the majority class", _GEO, _MAJORITY),
    ("ours: FedGeoMed+ is better scale-free", _GEO_FREE, _GEO),
    ("ours: FedCoMed+ is better scale-free", _CO_FREE, _CO),
)
_ABOVE_MEAN = (
    ("FedGeoMed+ is better than FedAvg+", _GEO, _MEAN),
    ("FedCoMed+ is better than FedAvg+", _CO, _MEAN),
)


def _benchmark_claims(data: str) -> list[claims.Claim]:
    """Returns the claims on one benchmark; runs have the names of presets."""
    pairs = [*_PAIRS, *(_ABOVE_MEAN if data in ("synthetic", "sentiment") else ())]
    return claims.of(f"fedplus_{data}", data, pairs)


def _with(side: Side, field: str, value: float) -> Side:
    """Returns the side with one more field."""
    return dataclasses.replace(side, where={**side.where, field: value})


def _party_claims() -> list[claims.Claim]:
    """Returns the claims that more parties help, measured on all parties."""
    # In this run the radius is the paper's everywhere.
    phi = {"FedAvg+": "Squared", "FedGeoMed+": "L2", "FedCoMed+": "L1"}
    parts = []
    for name, value in phi.items():
        side = _plus(value)
        among = {n: _with(side, "participation.among", n) for n in (100, 500, 1000)}
        pairs = [
            (
                f"{count} parties in training are better than {smaller_count}",
                among[count],
                among[smaller_count],
            )
            for smaller_count, count in itertools.pairwise(among)
        ]
        parts += claims.of("fedplus_parties", f"MNIST, {name}", pairs, across=True)
    return parts


def _attack_claims() -> list[claims.Claim]:
    """Returns our claims on robustness; the paper has no attacks."""
    geo = _with(_GEO, "algorithm.lam", 0.0)
    mean, geo_free, co_free = (
        _with(side, "algorithm.lam", 0.5) for side in (_MEAN, _GEO_FREE, _CO_FREE)
    )
    pairs = (
        ("FedGeoMed+ is better than FedAvg", geo, _FEDAVG),
        ("RFA is better than FedAvg", _RFA, _FEDAVG),
        ("FedGeoMed+ is better than RFA", geo, _RFA),
        ("FedGeoMed+ is better than local training", geo, _LOCAL),
        ("lam = 0.5, scale-free: FedGeoMed+ is better than FedAvg+", geo_free, mean),
        ("lam = 0.5, scale-free: FedCoMed+ is better than FedAvg+", co_free, mean),
    )
    return claims.of("fedplus_attacks", "ours, sign flip", pairs)


def _headlines() -> list[headlines.Headline]:
    """Returns the paper's headlines."""
    # One printed number per data set, compared with the mean of the four baselines.
    by_key = {n: claims.of(f"fedplus_{n}", n, _PAIRS[:4]) for n in _BENCHMARKS}
    above_fedprox = ("FedGeoMed+ is better than FedProx", _GEO, _FEDPROX)
    benchmark_claims = [c for data in _BENCHMARKS for c in _benchmark_claims(data)]
    by_key |= {
        "best_variant": [
            claim
            for data in _BENCHMARKS
            for claim in claims.of(f"fedplus_{data}", data, [above_fedprox])
        ],
        "robust_baselines": [
            c for c in benchmark_claims if "FedAvg is better than" in c.text
        ],
        "parties": _party_claims(),
    }
    return headlines.of("fedplus", by_key)


CARD = pages.Card(
    method="fedplus",
    title="Fed+",
    text=pages.text_of("fedplus"),
    reference=_LOCAL,
    rule=verdicts.Rule(delta=0.5, tolerance=0.5),
    headlines=_headlines(),
    sides=SIDES
    | {
        "Majority": _MAJORITY,
        "FedGeoMed+ scale-free": _GEO_FREE,
        "FedCoMed+ scale-free": _CO_FREE,
    },
    settings=("fedplus_mnist",),
    claims=(
        *(claim for data in _BENCHMARKS for claim in _benchmark_claims(data)),
        *_party_claims(),
        *_attack_claims(),
    ),
)

"""Privacy x attack x rule x method: `atlas_*`.

A thousand clients of sixty images, a tenth of whom take part in a round; a fifth of all
are malicious where there is an attack. Clients are protected as a whole: messages are
clipped, and the server adds noise to the mean, or to every message in front of a robust
rule. Training alone sends nothing, and is the same everywhere.
"""

from __future__ import annotations

from typing import Any

import fedjax_pfl as fp
from experiments.presets import flame
from fedjax_pfl import data
from fedjax_pfl.command.presets.experiment import Experiment, grids_of

__all__ = ["FRACTION", "MULTIPLIERS", "PRESETS"]

FRACTION = 0.2
"""Share of malicious clients."""

MULTIPLIERS = (2.0, 4.0, 8.0)
"""Noise in units of the clip."""

_CLIENTS, _COHORT, _ROUNDS = 1000, 100, 100
_CLIP, _DELTA = 0.5, 1e-4
_MULTIPLIER = "transforms.1.multiplier"


def _sgd(learning_rate: float = 0.03) -> fp.SGD:
    return fp.SGD(learning_rate=learning_rate, batch_size=10)


def _methods() -> list[Any]:
    """Returns a global model that clients may tune, and two with personal models."""
    sgd = _sgd()
    return [
        fp.FedAvg(local=sgd, fine_tune=sgd),
        fp.Ditto(lam=0.1, local=sgd, personal=sgd),
        fp.PFedMe(lam=1.0, inner=sgd),
    ]


def _rules() -> list[Any]:
    """Returns the mean, and two medians, which withstand some malicious messages."""
    return [
        fp.aggregators.Mean(),
        fp.CoordinateMedian(),
        fp.GeometricMedian(),
    ]


def _processes(attack: Any) -> list[tuple[fp.FederatedProcess, dict[str, Any]]]:
    """Returns every method with every rule, with and without noise."""
    clip = fp.ClipNorm(norm=_CLIP)
    noise = fp.GaussianNoise(multiplier=MULTIPLIERS[0], delta=_DELTA)
    pairs: list[tuple[Any, dict[str, Any]]] = []
    for method in _methods():
        for rule in _rules():
            for transforms in ((clip,), (clip, noise)):
                process = fp.FederatedProcess(
                    algorithm=method,
                    aggregator=rule,
                    participation=fp.UniformCohort(size=_COHORT),
                    attack=attack,
                    transforms=transforms,
                )
                axes = {_MULTIPLIER: MULTIPLIERS} if noise in transforms else {}
                pairs.append((process, axes))
    return pairs


def _atlas(name: str, source: Any, attacks: list[Any]) -> Experiment:
    """Returns the atlas of a data set with two labels per client.

    The same clients are malicious where they do nothing, so that honest ones are, too.
    """
    spec = fp.FederationSpec(
        source,
        fp.LabelShards(labels_per_client=2),
        num_clients=_CLIENTS,
        test_fraction=0.2,
        validation_fraction=0.0,
        malicious_fraction=FRACTION,
    )
    alone = fp.FederatedProcess(
        algorithm=fp.Local(local=_sgd()),
        participation=fp.UniformCohort(size=_COHORT),
    )
    pairs = [pair for attack in attacks for pair in _processes(attack)]
    grids = grids_of([(alone, {}), *pairs], fp.LogisticRegression(), spec)
    return flame.experiment(name, grids, seeds=flame.SEEDS, num_rounds=_ROUNDS)


def _fmnist(name: str) -> Experiment:
    source = data.FashionMnist(standardize="unit")
    return _atlas(name, source, [None, fp.SignFlip(), fp.ALIE()])


PRESETS = flame.named({"atlas_fmnist": (_fmnist,)})

"""FLAME under attack: the paper's four attacks, and what it leaves out.

Fifty clients. Multi-Krum is told how many of them are malicious.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import fedjax_pfl as fp
from experiments.presets import flame
from fedjax_pfl.command.presets.experiment import Experiment, grids_of

__all__ = ["PRESETS"]

_FRACTIONS = (0.2, 0.5, 0.8)
_FRACTION = "federation.malicious_fraction"


def _papers() -> dict[str, Any]:
    """Returns the paper's attacks, none among them; labels are poisoned in the data."""
    return {
        "none": None,
        "label_poisoning": None,
        "same_value": fp.attacks.SameValue(),
        "sign_flip": fp.SignFlip(std=0.1**0.5),
        "gaussian": fp.attacks.Gaussian(),
    }


def _poisoned(spec: fp.FederationSpec, kind: str) -> fp.FederationSpec:
    """Returns the federation, with poisoned labels where that is the attack."""
    poisoning = "uniform_labels" if kind == "label_poisoning" else None
    return dataclasses.replace(spec, label_poisoning=poisoning)


def _attacks(name: str, row: str, profile: str) -> Experiment:
    """Returns a row's methods and multi-Krum among 50 clients, under four attacks."""
    spec, model = flame.federation(row, profile)
    spec = dataclasses.replace(spec, num_clients=50)
    grids = []
    for kind, attack in _papers().items():
        if profile == "official" and attack is not None:
            attack = type(attack).official()
        fractions = (0.0,) if kind == "none" else _FRACTIONS
        methods = [(a, fractions) for a in flame.algorithms(profile)]
        # Multi-Krum is given the fraction of malicious clients, so each has an entry of
        # its own.
        methods += [(_multi_krum(profile, each), (each,)) for each in fractions]
        pairs = [
            (flame.process(algorithm, attack=attack), {_FRACTION: values})
            for algorithm, values in methods
        ]
        grids += grids_of(pairs, model, _poisoned(spec, kind))
    return flame.experiment(name, grids)


def _multi_krum(profile: str, fraction: float) -> fp.MultiKrum:
    """Returns multi-Krum that knows the fraction."""
    if profile == "official":
        return fp.MultiKrum.official(malicious_fraction=fraction, local=flame.sgd())
    return fp.MultiKrum(malicious_fraction=fraction, local=flame.sgd())


_ASSUMED = 0.2
_KAPPAS = (0.5, 1.0, 2.0, 4.0, 8.0)


def _rules() -> tuple[Any, ...]:
    """Returns rules that take a fifth of the messages for malicious, as there are."""
    krum = fp.Krum(malicious_fraction=_ASSUMED, num_selected=None)
    trimmed = fp.TrimmedMean(malicious_fraction=_ASSUMED)
    mixing = fp.aggregators.NearestNeighborMixing(
        rule=trimmed, malicious_fraction=_ASSUMED
    )
    return (fp.GeometricMedian(), fp.CoordinateMedian(), trimmed, krum, mixing)


def _zoo() -> dict[str, Any]:
    """Returns every attack, and none."""
    return _papers() | {
        "scaling": fp.attacks.Scaling(),
        "alie": fp.ALIE(),
        "ipm": fp.attacks.IPM(tau=10.0),
        "min_max": fp.attacks.MinMax(),
        "min_sum": fp.attacks.MinSum(),
        "mimic": fp.attacks.Mimic(),
    }


def _beyond(name: str, row: str) -> Experiment:
    """Returns FLAME with robust rules and other kappa, a fifth malicious."""
    # At most 200 training examples per client and 50 rounds, as trainings are many.
    spec, model = flame.federation(row, "fair")
    spec = dataclasses.replace(spec, num_clients=50, train_examples=200)
    method = fp.Flame(lam=1.0, kappa=1.0, local=flame.sgd())
    ditto = flame.ditto(flame.DITTO_RATE, "gradients")
    pairs = [
        (flame.process(method), {"algorithm.kappa": _KAPPAS}),
        *((flame.process(method, aggregator=rule), {}) for rule in _rules()),
        (flame.process(ditto), {}),
        (flame.process(_multi_krum("fair", _ASSUMED)), {}),
    ]
    grids, axes = [], {_FRACTION: (_ASSUMED,)}
    for kind, attack in _zoo().items():
        attacked = [(dataclasses.replace(p, attack=attack), own) for p, own in pairs]
        grids += grids_of(attacked, model, _poisoned(spec, kind), axes)
    return flame.experiment(name, grids, seeds=flame.SEEDS[:3], num_rounds=50)


def _presets() -> dict[str, Callable[[], Experiment]]:
    """Returns everything by name."""
    makers: dict[str, tuple[Any, ...]] = {}
    for row in flame.ROWS:
        if row != flame.WRITERS:
            for profile in flame.PROFILES:
                makers[f"flame_attacks_{profile}_{row}"] = (_attacks, row, profile)
            makers[f"flame_beyond_{row}"] = (_beyond, row)
    return flame.named(makers)


PRESETS = _presets()

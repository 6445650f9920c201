"""FLAME under attack: the paper's four attacks, and what it leaves out.

Fifty clients. Multi-Krum is told how many of them are malicious.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import fedjax_pfl as fp
from experiments.presets import flame as presets_flame
from fedjax_pfl.command.presets import experiment

__all__ = ["PRESETS"]

_FRACTIONS = (0.2, 0.5, 0.8)
_FRACTION = "federation.malicious_fraction"


def _papers() -> dict[str, tuple[Any, Any]]:
    """Returns poisonings and attacks, with strengths of text and release."""
    return {
        "label_poisoning": (None, None),
        "same_value": (fp.attacks.SameValue(), fp.attacks.SameValue.official()),
        "sign_flip": (fp.SignFlip(std=0.1**0.5), fp.SignFlip.official()),
        "gaussian": (fp.attacks.Gaussian(), fp.attacks.Gaussian.official()),
    }


def _under_attack(
    spec: fp.FederationSpec, poisoned: bool, attack: Any
) -> tuple[fp.FederationSpec, dict[str, Any]]:
    """Returns the federation and the fields of a process."""
    if poisoned:
        spec = dataclasses.replace(spec, label_poisoning="uniform_labels")
    return spec, {} if attack is None else {"attack": attack}


def _attacks(name: str, row: str, profile: str) -> experiment.Experiment:
    """Returns a row's methods and multi-Krum among 50 clients, attacked in four ways.

    Multi-Krum is told how many clients are malicious.
    """
    spec, model = presets_flame.federation(row, profile)
    spec = dataclasses.replace(spec, num_clients=50)
    official = profile == "official"
    kinds = [("none", None), *((n, a[official]) for n, a in _papers().items())]
    grids = []
    for kind, attack in kinds:
        fractions = (0.0,) if kind == "none" else _FRACTIONS
        attacked, fields = _under_attack(spec, kind == "label_poisoning", attack)
        for algorithm in presets_flame.algorithms(profile):
            process = presets_flame.process(algorithm, **fields)
            axes = {_FRACTION: fractions}
            grids.append(experiment.Grid(process, model, attacked, axes))
        for fraction in fractions:
            krum = _multi_krum(profile, fraction)
            process = fp.FederatedProcess(algorithm=krum, **fields)
            axes = {_FRACTION: (fraction,)}
            grids.append(experiment.Grid(process, model, attacked, axes))
    return presets_flame.experiment(name, grids)


def _multi_krum(profile: str, fraction: float) -> fp.MultiKrum:
    """Multi-Krum that knows the fraction."""
    if profile == "official":
        return fp.MultiKrum.official(
            malicious_fraction=fraction, local=presets_flame.sgd()
        )
    return fp.MultiKrum(malicious_fraction=fraction, local=presets_flame.sgd())


_ASSUMED = 0.2
_KAPPAS = (0.5, 1.0, 2.0, 4.0, 8.0)


def _rules() -> tuple[Any, ...]:
    """Rules for FLAME that take a fifth of messages for malicious, as there are."""
    krum = fp.Krum(malicious_fraction=_ASSUMED, num_selected=None)
    trimmed = fp.TrimmedMean(malicious_fraction=_ASSUMED)
    mixing = fp.aggregators.NearestNeighborMixing(
        rule=trimmed, malicious_fraction=_ASSUMED
    )
    return (fp.GeometricMedian(), fp.CoordinateMedian(), trimmed, krum, mixing)


def _zoo() -> dict[str, Any]:
    """Every attack, and none."""
    return {
        "none": None,
        "label_poisoning": None,
        "same_value": fp.attacks.SameValue(),
        "sign_flip": fp.SignFlip(std=0.1**0.5),
        "gaussian": fp.attacks.Gaussian(),
        "scaling": fp.attacks.Scaling(),
        "alie": fp.ALIE(),
        "ipm": fp.attacks.IPM(tau=10.0),
        "min_max": fp.attacks.MinMax(),
        "min_sum": fp.attacks.MinSum(),
        "mimic": fp.attacks.Mimic(),
    }


def _beyond(name: str, row: str) -> experiment.Experiment:
    """FLAME with robust rules and at other kappa, under every attack by a fifth.

    The same clients are malicious where they do nothing. At most 200 training examples
    per client and 50 rounds, since there are many trainings.
    """
    spec, model = presets_flame.federation(row, "fair")
    spec = dataclasses.replace(spec, num_clients=50, train_examples=200)
    flame = fp.Flame(lam=1.0, kappa=1.0, local=presets_flame.sgd())
    ditto = presets_flame.ditto(presets_flame.DITTO_RATE, "gradients")
    grids = []
    for kind, attack in _zoo().items():
        attacked, fields = _under_attack(spec, kind == "label_poisoning", attack)
        pairs = [
            (presets_flame.process(flame, **fields), {"algorithm.kappa": _KAPPAS}),
            *(
                (presets_flame.process(flame, aggregator=rule, **fields), {})
                for rule in _rules()
            ),
            (presets_flame.process(ditto, **fields), {}),
            (presets_flame.process(_multi_krum("fair", _ASSUMED), **fields), {}),
        ]
        axis = {_FRACTION: (_ASSUMED,)}
        grids += [experiment.Grid(p, model, attacked, axis | axes) for p, axes in pairs]
    few = {"seeds": presets_flame.SEEDS[:3], "num_rounds": 50}
    return presets_flame.experiment(name, grids, **few)


def _presets() -> dict[str, Callable[[], experiment.Experiment]]:
    """Returns everything by name."""
    made: list[tuple[Any, ...]] = []
    for row in presets_flame.ROWS:
        if row != presets_flame.WRITERS:
            profiles = presets_flame.PROFILES
            made += [(f"flame_attacks_{p}_{row}", _attacks, row, p) for p in profiles]
            made.append((f"flame_beyond_{row}", _beyond, row))
    return {name: presets_flame.named(name, m, *given) for name, m, *given in made}


PRESETS = _presets()

"""Privacy x attack x rule x method: `atlas_*`.

A thousand clients of sixty images, a tenth of whom take part in a round; a fifth of all
are malicious where there is an attack. Clients are protected as a whole: messages are
clipped, and the server adds noise to the mean, or to every message in front of a robust
rule. Training alone sends nothing, and is the same everywhere.

`atlas_silo`: forty silos that protect single examples by DP-SGD, all methods with the
same noise, to check the claim of arXiv 2206.07902. FLAME at kappa = 1 with the received
center is mean-regularized learning: `f_i(theta_i) + lam/2 |theta_i - mean|^2`, and the
personal model is the message.
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


def _processes(attack: Any) -> list[tuple[fp.FederatedProcess, dict[str, Any]]]:
    """Returns every method with every rule, with and without noise."""
    sgd = _sgd()
    methods = [  # a global model that clients may tune, and two with personal models
        fp.FedAvg(local=sgd, fine_tune=sgd),
        fp.Ditto(lam=0.1, local=sgd, personal=sgd),
        fp.PFedMe(lam=1.0, inner=sgd),
    ]
    # The medians withstand some malicious messages. The server adds noise to the sum
    # before a mean, and to every message before other rules, also before a mean as a
    # trimmed mean that trims nothing: the control that separates rule and mechanism.
    rules = (
        fp.aggregators.Mean(),
        fp.TrimmedMean(num_malicious=0),
        fp.CoordinateMedian(),
        fp.GeometricMedian(),
    )
    return [
        pair
        for method in methods
        for rule in rules
        for pair in _with_noises(method, rule, attack, MULTIPLIERS, {})
    ]


def _with_noises(
    method: Any,
    rule: Any,
    attack: Any,
    multipliers: tuple[float, ...],
    axes: dict[str, Any],
) -> list[tuple[fp.FederatedProcess, dict[str, Any]]]:
    """Returns a method with a rule and an attack, without noise and with noise."""
    clip = fp.ClipNorm(norm=_CLIP)
    noise = fp.GaussianNoise(multiplier=multipliers[0], delta=_DELTA)
    clean, noisy = (
        fp.FederatedProcess(
            algorithm=method,
            aggregator=rule,
            participation=fp.UniformCohort(size=_COHORT),
            attack=attack,
            transforms=transforms,
        )
        for transforms in ((clip,), (clip, noise))
    )
    return [(clean, axes), (noisy, axes | {_MULTIPLIER: multipliers})]


def _fashion() -> fp.FederationSpec:
    """Returns Fashion-MNIST with two labels per client."""
    return fp.FederationSpec(
        data.FashionMnist(standardize="unit"),
        fp.LabelShards(labels_per_client=2),
        num_clients=_CLIENTS,
        test_fraction=0.2,
        validation_fraction=0.0,
        # The same clients are marked without an attack, so that the honest ones agree.
        malicious_fraction=FRACTION,
    )


def _fmnist(name: str) -> Experiment:
    """Returns training alone, and all methods, rules, attacks and noises."""
    alone = fp.FederatedProcess(
        algorithm=fp.Local(local=_sgd()),
        participation=fp.UniformCohort(size=_COHORT),
    )
    attacks = (None, fp.SignFlip(), fp.ALIE())
    pairs = [pair for attack in attacks for pair in _processes(attack)]
    grids = grids_of([(alone, {}), *pairs], fp.LogisticRegression(), _fashion())
    return flame.experiment(name, grids, seeds=flame.SEEDS, num_rounds=_ROUNDS)


def _flips(name: str) -> Experiment:
    """Returns flips of models and of updates, with and without noise on the mean."""
    method, rule = fp.FedAvg(local=_sgd()), fp.aggregators.Mean()
    axes = {"attack.about": ("message", "reference")}
    pairs = _with_noises(method, rule, fp.SignFlip(), MULTIPLIERS[:1], axes)
    grids = grids_of(pairs, fp.LogisticRegression(), _fashion())
    return flame.experiment(name, grids, seeds=flame.SEEDS, num_rounds=_ROUNDS)


_NOISES, _NO_NOISE = (4.0, 8.0, 16.0), (0.0,)
_RATES = (0.03125, 0.125, 0.5, 2.0, 8.0, 32.0, 128.0)
_LAMS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0)
# Without noise longer steps and weaker pulls are best: grids reach past the best ones.
_LONGER_RATES = (*_RATES, 512.0, 2048.0)
_WEAKER_LAMS = (0.001, 0.003, *_LAMS)


def _silo_axes(
    noises: tuple[float, ...],
    rates: tuple[float, ...],
    lams: tuple[float, ...] | None = None,
) -> dict[str, Any]:
    """Returns the axes of a method in silos."""
    axes: dict[str, Any] = {
        "algorithm.local.multiplier": noises,
        "algorithm.local.learning_rate": rates,
    }
    return axes if lams is None else axes | {"algorithm.lam": lams}


def _silo(name: str) -> Experiment:
    """Returns training alone, one model for all, and models near their mean."""
    solver = fp.local.PrivateSGD(norm=_CLIP, delta=_DELTA, num_steps=5, batch_size=64)
    spec = fp.FederationSpec(
        data.FashionMnist(standardize="unit"),
        fp.DirichletLabels(concentration=1.0),
        num_clients=40,
        test_fraction=0.2,
        validation_fraction=0.1,
    )
    # With kappa = 1 the message is the personal model: everything that a silo hands out
    # is covered.
    near = fp.Flame(kappa=1.0, center="received", local=solver)
    methods: list[tuple[Any, dict[str, Any]]] = [
        *(
            (method, _silo_axes(*axes))
            for method in (fp.Local(local=solver), fp.FedAvg(local=solver))
            for axes in ((_NO_NOISE, _LONGER_RATES), (_NOISES, _RATES))
        ),
        (near, _silo_axes(_NO_NOISE, _RATES, _WEAKER_LAMS)),
        (near, _silo_axes(_NOISES, _RATES, _LAMS)),
    ]
    pairs = [(flame.process(method), axes) for method, axes in methods]
    grids = grids_of(pairs, fp.LogisticRegression(), spec)
    return flame.experiment(
        name, grids, seeds=flame.SEEDS, num_rounds=20, eval_every=20
    )


PRESETS = flame.named(
    {"atlas_fmnist": (_fmnist,), "atlas_flips": (_flips,), "atlas_silo": (_silo,)}
)

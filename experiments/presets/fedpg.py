"""FedPG's tables and figures: pathological splits, judged on own and others' data.

The paper's protocol where it is known: train and test examples are merged, distributed
and cut again per client; two classes per client, dealt in order; every model is judged
on an even sample, as large as the client's own test set, of its own and half of the
other clients' test examples (S-acc) and of everybody's (G-acc). Its learning rates are
the best of three per method, which are not given: here one rate for all, and
`fedpg_rates_...` shows the three. Settings of the baselines that are not given either
are their papers'.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from typing import Any

import fedjax_pfl as fp
from experiments.presets import flame
from fedjax_pfl import data
from fedjax_pfl.command.presets import experiment

__all__ = ["CHANGES", "PRESETS", "fedpg"]

_DATASETS = {  # source, network, share of a client's test examples
    "fmnist": lambda: (
        data.FashionMnist(standardize="unit"),
        fp.MLP(widths=(200, 200)),
        1 / 7,
    ),
    "cifar10": lambda: (data.Cifar10(), fp.models.CifarCNN(), 1 / 6),
    # The fine classes of the whole set, or of what there is of it.
    "cifar100": lambda: (data.Cifar100(), fp.models.NFResNet18(), 1 / 6),
}
_RATE, _DECAY, _BATCH = 0.1, 0.999, 50
_ROUNDS, _SEEDS = 2000, (0, 1, 2, 3, 4)
_GAMMAS = (0.0, 0.3, 0.6, 1.0)


def _sgd(batch_size: int = _BATCH, epochs: int = 5) -> fp.SGD:
    rate = {"learning_rate": _RATE, "decay": _DECAY}
    return fp.SGD(**rate, epochs=epochs, batch_size=batch_size, remainder="full")


def fedpg(**fields: Any) -> fp.FedPG:
    """Returns FedPG as the tables have it: local epochs give the gradients."""
    exact = fp.SGD(learning_rate=_RATE, decay=_DECAY)
    solver = exact if fields.get("gradient") == "exact" else _sgd()
    return fp.FedPG(**({"local": solver, "gradient": "epochs"} | fields))


def _baselines() -> dict[str, Any]:
    """Returns the methods of Table 1 besides FedPG, by name."""
    sgd = _sgd()
    kept = {"local": sgd, "keeps_local": True}
    return {
        "local": fp.Local(local=sgd),
        "fedavg": fp.FedAvg(**kept),
        "fedprox": fp.FedProx(mu=0.01, **kept),
        "apfl": fp.APFL(local=sgd),
        "pfedme": fp.PFedMe(inner_learning_rate=0.09),
        "ditto": fp.Ditto(lam=1.0, local=sgd),
        "fedamp": fp.FedAMP(local=sgd),
        "fedfomo": fp.FedFomo(local=sgd),
        "fedrep": fp.FedRep(local=sgd, head_local=_sgd(epochs=10), send_heads=True),
        "fedrod": fp.FedROD(local=sgd),
        "splitgp": fp.SplitGP(local=sgd),
        "fedmgda": fp.FedMGDA(**kept),
    }


_ATTACKED = ("fedavg", "fedprox", "apfl", "pfedme", "ditto", "fedrep", "fedrod")
_ATTACKED += ("splitgp", "fedmgda")


def _experiment(
    name: str,
    dataset: str,
    algorithms: Iterable[Any],
    *,
    cohort: int | None = 10,
    num_clients: int = 100,
    model: Any = None,
    attack: Any = None,
) -> experiment.Experiment:
    """Builds an experiment of methods, or of pairs of a method and axes of its own."""
    source, network, test_fraction = _DATASETS[dataset]()
    spec = fp.FederationSpec(
        source,
        fp.data.PathologicalBlocks(labels_per_client=2),
        num_clients=num_clients,
        malicious_fraction=0.0 if attack is None else 0.1,
        # As in the paper, a client's examples are cut again, into two parts.
        validation_fraction=0.0,
        test_fraction=test_fraction,
        num_others="half",
        sample_tests=True,
    )
    model = network if model is None else model
    return experiment.Experiment(
        name=name,
        grids=experiment.grids_of(
            algorithms, model, spec, cohort=cohort, attack=attack
        ),
        num_rounds=_ROUNDS,
        seeds=_SEEDS,
        eval_every=100,
        evaluate_on=(("test", None), ("others", None), ("everybody", None)),
    )


def _table(name: str, dataset: str, cohort: int | None) -> experiment.Experiment:
    """Returns tables 1 and 2: all methods, FedPG for four gammas, and S-FedPG."""
    algorithms = [
        *_baselines().values(),
        (fedpg(), {"algorithm.gamma": _GAMMAS}),
        fedpg(search=fp.algorithms.Armijo()),
    ]
    return _experiment(name, dataset, algorithms, cohort=cohort)


def _attacked(name: str, dataset: str, kind: str) -> experiment.Experiment:
    """Returns table 3: one of ten clients sends noise, or 100 times its update."""
    attack = (
        fp.attacks.Gaussian(std=1.0, about="reference")
        if kind == "a1"
        else fp.attacks.Scaling()
    )
    methods = _baselines()
    algorithms = [*(methods[n] for n in _ATTACKED), fedpg(), fedpg(scale="mean")]
    return _experiment(name, dataset, algorithms, attack=attack)


def _rates(name: str, dataset: str) -> experiment.Experiment:
    """Returns the three learning rates of the paper, for methods that have one."""
    axes = {"algorithm.local.learning_rate": (0.01, 0.05, 0.1)}
    algorithms = [*_baselines().values(), fedpg(), fedpg(search=fp.algorithms.Armijo())]
    entries = [(a, axes) for a in algorithms if a.local is not None]
    return _experiment(name, dataset, entries)


def _steps(name: str, dataset: str) -> experiment.Experiment:
    """Returns figure 1: S-FedPG by the doublings of its largest step, all online."""
    searches = [fp.algorithms.Armijo(doublings=s) for s in (0, 1, 3, 5)]
    algorithms = [fedpg(), *(fedpg(search=search) for search in searches)]
    return _experiment(name, dataset, algorithms, cohort=None)


_TEN = {  # network, batch size
    "cnn50": ("cifar_cnn", 50),
    "cnn200": ("cifar_cnn", 200),
    "lenet200": ("lenet5", 200),
}


def _ten(name: str, kind: str) -> experiment.Experiment:
    """Returns figure 2: ten clients, all online, on CIFAR-10."""
    network, batch_size = _TEN[kind]
    sgd, methods = _sgd(batch_size), _baselines()
    algorithms = [
        dataclasses.replace(methods[n], local=sgd)
        for n in ("fedavg", "fedprox", "apfl", "ditto", "fedrod", "fedmgda")
    ]
    algorithms += [fedpg(local=sgd), fedpg(local=sgd, search=fp.algorithms.Armijo())]
    model = fp.algorithms.MODELS[network]()
    fields = {"cohort": None, "num_clients": 10, "model": model}
    return _experiment(name, "cifar10", algorithms, **fields)


CHANGES: tuple[dict[str, Any], ...] = (
    {"history": "none"},
    {"history": "last_round"},
    {"fair_row": False},
    {"guard": 0.0},
    {"scale": "mean"},
    {"fair_from": "raw"},
    {"layerwise": True},
    {"protection": "orthogonal"},
    {"personal_length": "mean"},
    {"personal": "refresh"},
    {"gradient": "exact"},
)
"""Fields of FedPG in the ablations."""


def _ablations(name: str, dataset: str) -> experiment.Experiment:
    """Builds the ablations of FedPG: as it is, and one change at a time."""
    return _experiment(name, dataset, [fedpg(**change) for change in ({}, *CHANGES)])


def _presets() -> dict[str, Callable[[], experiment.Experiment]]:
    """Returns everything by name."""
    makers: dict[str, tuple[Any, ...]] = {}
    for dataset in _DATASETS:
        for share, cohort in {"10": 10, "50": 50, "100": None}.items():
            makers[f"fedpg_{dataset}_{share}"] = (_table, dataset, cohort)
        for kind in ("a1", "a2"):
            makers[f"fedpg_{dataset}_{kind}"] = (_attacked, dataset, kind)
        makers[f"fedpg_rates_{dataset}"] = (_rates, dataset)
        makers[f"fedpg_steps_{dataset}"] = (_steps, dataset)
        makers[f"fedpg_ablations_{dataset}"] = (_ablations, dataset)
    makers |= {f"fedpg_ten_{kind}": (_ten, kind) for kind in _TEN}
    return flame.named(makers)


PRESETS = _presets()

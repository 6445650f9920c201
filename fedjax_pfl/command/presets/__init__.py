"""Presets of data sets; every number of a preset can be changed by `--set`.

Names are available without JAX, which is imported when an experiment is made.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Mapping
from typing import Any

import fedjax_pfl as fp
from fedjax_pfl import core, data
from fedjax_pfl.command import arguments
from fedjax_pfl.command.presets import benchmark, experiment
from fedjax_pfl.core import checks

__all__ = ["PRESETS", "add", "get", "is_pattern", "matching"]


def digits() -> experiment.Experiment:
    """The main job: global, personal and local models on digits, four labels each."""
    spec = fp.FederationSpec(
        "digits",
        fp.LabelShards(labels_per_client=4),
        num_clients=60,
        validation_fraction=0.2,
    )
    sgd = fp.SGD(learning_rate=0.1, epochs=2, batch_size=10)
    axes = {"algorithm.lam": (0.03, 0.1, 0.3, 1.0, 3.0)}
    flame, ditto = fp.Flame(kappa=1.0, local=sgd), fp.Ditto(local=sgd)
    tuned = fp.FedAvg(local=sgd, fine_tune=sgd)
    methods = ((flame, axes), (ditto, axes), tuned, fp.Local(local=sgd))
    return experiment.Experiment(
        name="digits",
        grids=experiment.grids_of(methods, fp.LogisticRegression(), spec),
        num_rounds=100,
        seeds=(0, 1, 2, 3, 4),
        eval_every=10,
    )


def own_data() -> experiment.Experiment:
    """Preset for a user's own data: which clients do personal models help?"""
    sgd = fp.SGD(learning_rate=0.1, epochs=1, batch_size=20)
    axes = {"algorithm.lam": (0.01, 0.1, 1.0)}
    methods = (
        (fp.Flame(kappa=1.0, local=sgd), axes),
        (fp.Ditto(local=sgd), axes),
        fp.FedACS(local=sgd),
        fp.FedAvg(local=sgd, fine_tune=sgd),
        fp.Local(local=sgd),
    )
    # Digits until the data replace them.
    spec = fp.FederationSpec("digits", fp.DirichletLabels(concentration=0.5))
    return experiment.Experiment(
        name="own_data",
        grids=experiment.grids_of(methods, fp.MLP(widths=(64,)), spec),
        num_rounds=50,
        seeds=(0, 1, 2),
        eval_every=5,
    )


def quadratic() -> experiment.Experiment:
    """Four quadratics with known minimizers; finished in seconds."""
    solver = fp.local.ToTolerance(learning_rate=0.5, tolerance=1e-10)
    flame = fp.Flame(lam=1.0, kappa=2.0, local=solver, eps_decay=0.0)
    spec = fp.FederationSpec("quadratic", "by_client", num_clients=4)
    return experiment.Experiment(
        name="quadratic",
        grids=experiment.grids_of([flame], fp.models.Quadratic(), spec),
        num_rounds=20,
    )


def mnist() -> experiment.Experiment:
    """MNIST by a power law: 1,000 clients of one digit each, 50 of them per round."""
    spec = fp.FederationSpec("mnist", fp.data.PowerLaw(), num_clients=1000)
    sgd = fp.SGD(learning_rate=0.03, epochs=1, batch_size=10)
    return _compare(spec, fp.LogisticRegression(), sgd, num_rounds=50, cohort=50)


def fashion_mnist() -> experiment.Experiment:
    """Fashion-MNIST with two classes per client, 100 clients, 10 of them per round."""
    spec = fp.FederationSpec(
        "fashion_mnist", fp.data.PathologicalBlocks(), num_clients=100
    )
    sgd = fp.SGD(learning_rate=0.05, epochs=1, batch_size=50)
    return _compare(spec, fp.MLP(widths=(200, 200)), sgd, num_rounds=50, cohort=10)


def cifar10() -> experiment.Experiment:
    """CIFAR-10 with Dirichlet(0.5) labels, 20 clients, and a small CNN."""
    spec = fp.FederationSpec("cifar10", num_clients=20)
    sgd = fp.SGD(learning_rate=0.05, epochs=1, batch_size=50)
    return _compare(spec, fp.CNN(), sgd, num_rounds=20, cohort=10)


def cifar100() -> experiment.Experiment:
    """CIFAR-100's coarse classes, Dirichlet(0.5) labels, 10 clients, LeNet-5."""
    spec = fp.FederationSpec(data.Cifar100(labels="coarse"), num_clients=10)
    sgd = fp.SGD(learning_rate=0.05, epochs=1, batch_size=20)
    return _compare(spec, fp.models.LeNet5(), sgd, num_rounds=30)


def medical_mnist() -> experiment.Experiment:
    """Medical MNIST with two labels per client, 10 clients."""
    spec = fp.FederationSpec(
        "medical_mnist", fp.LabelShards(labels_per_client=2), num_clients=10
    )
    sgd = fp.SGD(learning_rate=0.01, epochs=1, batch_size=100)
    return _compare(spec, fp.models.CNN1(), sgd, num_rounds=5)


def femnist() -> experiment.Experiment:
    """FEMNIST: every writer with 20 or more characters is a client."""
    spec = _natural("femnist", min_examples=20)
    sgd = fp.SGD(learning_rate=0.1, epochs=1, batch_size=20)
    return _compare(spec, fp.models.CNN2(), sgd, num_rounds=15)


def sent140() -> experiment.Experiment:
    """Sentiment of tweets: every account with five or more of them a client."""
    spec = _natural("sent140", min_examples=5)
    sgd = fp.SGD(learning_rate=0.3, epochs=1, batch_size=10)
    return _compare(spec, fp.models.LSTM(width=64), sgd, num_rounds=40)


def shakespeare() -> experiment.Experiment:
    """The next character of a play: speakers with 25 examples or more are clients."""
    spec = _natural(data.Shakespeare(stride=40), min_examples=25)
    sgd = fp.SGD(learning_rate=1.0, epochs=1, batch_size=20)
    return _compare(
        spec, fp.models.LSTM(width=64, num_layers=1), sgd, num_rounds=20, cohort=20
    )


def stocks() -> experiment.Experiment:
    """Whether a stock rises on the next day: every ticker a client."""
    spec = _natural("stocks")
    sgd = fp.SGD(learning_rate=0.01, epochs=1, batch_size=50)
    return _compare(spec, fp.LogisticRegression(), sgd, num_rounds=20)


def _natural(dataset: Any, **fields: Any) -> fp.FederationSpec:
    """Returns a federation of a data set's own clients."""
    return fp.FederationSpec(dataset, fp.ByClient(**fields), num_clients=None)


def _compare(
    spec: fp.FederationSpec,
    model: core.Model,
    sgd: fp.SGD,
    *,
    num_rounds: int,
    cohort: int | None = None,
) -> experiment.Experiment:
    """Compares FedAvg with fine-tuning, FLAME, and Local with one solver."""
    methods = (
        fp.FedAvg(local=sgd, fine_tune=sgd),
        fp.Flame(lam=1.0, kappa=1.0, local=sgd),
        fp.Local(local=sgd),
    )
    return experiment.Experiment(
        name=spec.dataset.name,
        grids=experiment.grids_of(methods, model, spec, cohort=cohort),
        num_rounds=num_rounds,
        eval_every=max(1, num_rounds // 5),
    )


PRESETS: dict[str, Callable[[], experiment.Experiment]] = {
    make.__name__: make
    for make in (
        digits,
        own_data,
        quadratic,
        mnist,
        fashion_mnist,
        cifar10,
        cifar100,
        medical_mnist,
        femnist,
        sent140,
        shakespeare,
        stocks,
    )
} | benchmark.PRESETS


def add(presets: Mapping[str, Callable[[], experiment.Experiment]]) -> None:
    """Adds presets from other modules, for example for the papers."""
    PRESETS.update(presets)


def is_pattern(name: str) -> bool:
    """Returns whether a name is a pattern, such as `flame_fair_mnist_*`."""
    return any(mark in name for mark in "*?[")


def matching(name: str) -> list[str]:
    """Returns the preset of a name, or all that match a pattern; at least one."""
    names = fnmatch.filter(PRESETS, name) if is_pattern(name) else [name]
    # A pattern without a match is refused like an unknown name.
    _check(names[0] if names else name)
    return names


def get(name: str) -> experiment.Experiment:
    """Returns the experiment of a preset's name."""
    _check(name)
    return PRESETS[name]()


def _check(name: str) -> None:
    """Refuses unknown presets; presets of the papers are in a clone only."""
    papers = any(preset.startswith(arguments.PAPERS) for preset in PRESETS)
    if not papers and name.startswith(arguments.PAPERS):
        raise checks.InputError(
            f"Expected a preset of the package, got {name!r}, which only a clone of the"
            " repository has, for python -m experiments.sweep and run."
        )
    checks.known(name, PRESETS, "preset")

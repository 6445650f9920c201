"""Data sets of the benchmark, each with every method of the registry that fits.

Local solvers are SGD with one epoch; the numbers of methods are what a search begins
with. Methods with loops of their own take about as many steps as an epoch has, but for
pFedMe, whose steps on a batch are several by definition.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import fedjax_pfl as fp
from fedjax_pfl import data
from fedjax_pfl.command.presets import experiment

__all__ = ["PRESETS", "methods"]

SEEDS = (10, 11, 12, 13, 14)
_FEW = ("Centralized", "Local", "FedAvg", "FedAvg fine-tuned", "Flame", "Ditto")
_FEW += ("PFedMe", "FedPer", "FedRep", "FedAMP")
"""The ten methods of data sets where all would take too long."""


def methods(batch_size: int, steps: int) -> list[fp.FederatedProcess]:
    """Returns all methods, references first.

    Args:
      batch_size: examples of a batch.
      steps: batches of a usual client's epoch.
    """
    sgd = fp.SGD(learning_rate=0.1, epochs=1, batch_size=batch_size)
    kinds = fp.algorithms
    solved = (
        *(kinds.Centralized, kinds.Local, kinds.FedAvg, kinds.FedProx),
        *(kinds.Scaffold, kinds.FedADMM, kinds.MultiKrum, kinds.FedMGDA, kinds.FedFV),
        *(kinds.Flame, kinds.Ditto, kinds.APFL, kinds.FedACS, kinds.FedAMP),
        *(kinds.HeurFedAMP, kinds.FedFomo, kinds.FedPer, kinds.FedRep, kinds.FedROD),
        kinds.SplitGP,
    )
    own = {"batch_size": batch_size}
    proximal = kinds.PFedMe(num_steps=max(1, steps // 2), inner_steps=5, **own)
    projected = kinds.LpProj(
        num_steps=max(1, steps // 5), inner_steps=5, local=sgd, **own
    )
    epochs = {"local": sgd, "gradient": "epochs"}
    algorithms = (
        kinds.Majority(),
        *(kind(local=sgd) for kind in solved),
        kinds.FedAvg(local=sgd, fine_tune=sgd),
        kinds.PerFedAvg(num_steps=steps, **own),
        proximal,
        projected,
        kinds.FedPG(**epochs),
        kinds.FedPG(**epochs, search=kinds.Armijo()),
    )
    processes = [fp.FederatedProcess(algorithm=a) for a in algorithms]
    plus = fp.algorithms.FedPlus(local=sgd)
    rules = (None, fp.GeometricMedian(), fp.CoordinateMedian())
    return processes + [
        fp.FederatedProcess(algorithm=plus, aggregator=rule) for rule in rules
    ]


def _make(
    name: str,
    spec: fp.FederationSpec,
    model: Any,
    *,
    num_rounds: int,
    batch_size: int,
    steps: int,
    only: Iterable[str] = (),
) -> Callable[[], experiment.Experiment]:
    """Returns the maker of a data set's experiment."""
    from fedjax_pfl.benchmark.training import name_of

    kept = [m for m in methods(batch_size, steps) if not only or name_of(m) in only]
    if spec.unseen_fraction:  # to whom SplitGP has nothing to give
        kept = [m for m in kept if not isinstance(m.algorithm, fp.algorithms.SplitGP)]
    return experiment.Experiment(
        name=name,
        grids=experiment.grids_of(kept, model, spec),
        num_rounds=num_rounds,
        seeds=SEEDS,
    )


def _spec(dataset: Any, partition: Any, **fields: Any) -> fp.FederationSpec:
    """Returns a federation with validation and test examples."""
    usual = {"num_clients": 20, "validation_fraction": 0.2, "test_fraction": 0.3}
    return fp.FederationSpec(dataset, partition, **(usual | fields))


def _digits(name: str) -> experiment.Experiment:
    spec = _spec(
        "digits",
        fp.LabelShards(labels_per_client=4),
        num_clients=25,
        unseen_fraction=0.2,
    )
    sizes = {"num_rounds": 100, "batch_size": 10, "steps": 4}
    return _make(name, spec, fp.MLP(widths=(32,)), **sizes)


def _clusters(name: str) -> experiment.Experiment:
    source = data.ClusteredClasses(num_classes=4, dim=10, examples_per_client=60)
    sizes = {"num_rounds": 100, "batch_size": 10, "steps": 3}
    return _make(name, _spec(source, fp.ByClient()), fp.MLP(widths=(32,)), **sizes)


def _fmnist_dir(name: str) -> experiment.Experiment:
    spec = _spec(
        "fashion_mnist", fp.DirichletLabels(concentration=0.1), train_examples=200
    )
    sizes = {"num_rounds": 100, "batch_size": 20, "steps": 10}
    return _make(name, spec, fp.MLP(widths=(64,)), **sizes)


def _fmnist_labels2(name: str) -> experiment.Experiment:
    partition = fp.LabelShards(labels_per_client=2)
    spec = _spec("fashion_mnist", partition, train_examples=200)
    sizes = {"num_rounds": 100, "batch_size": 20, "steps": 10}
    return _make(name, spec, fp.MLP(widths=(64,)), **sizes)


def _femnist(name: str) -> experiment.Experiment:
    spec = _spec(
        "femnist",
        fp.ByClient(min_examples=20),
        num_clients=None,
        unseen_fraction=0.1,
        train_examples=200,
    )
    sizes = {"num_rounds": 100, "batch_size": 20, "steps": 5}
    return _make(name, spec, fp.MLP(widths=(64,)), **sizes)


def _medical_mnist(name: str) -> experiment.Experiment:
    spec = _spec(
        "medical_mnist", fp.DirichletLabels(concentration=0.5), train_examples=100
    )
    sizes = {"num_rounds": 50, "batch_size": 20, "steps": 5}
    return _make(name, spec, fp.MLP(widths=(64,)), **sizes)


def _cifar10(name: str) -> experiment.Experiment:
    spec = _spec(
        "cifar10",
        fp.DirichletLabels(concentration=0.3),
        num_clients=10,
        train_examples=200,
    )
    sizes = {"num_rounds": 50, "batch_size": 20, "steps": 10}
    return _make(name, spec, fp.CNN(), only=_FEW, **sizes)


def _named(name: str, make: Callable[[str], Any]) -> tuple[str, Callable[[], Any]]:
    """Returns a preset by its full name."""
    full = f"benchmark_{name}"
    return full, lambda: make(full)


PRESETS = dict(
    _named(make.__name__.strip("_"), make)
    for make in (
        _digits,
        _clusters,
        _fmnist_dir,
        _fmnist_labels2,
        _femnist,
        _medical_mnist,
        _cifar10,
    )
)

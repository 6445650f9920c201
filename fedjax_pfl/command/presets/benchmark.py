"""Data sets of the benchmark, each with every method of the registry that fits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import fedjax_pfl as fp
from fedjax_pfl import core, data
from fedjax_pfl.command.presets import experiment

__all__ = ["PRESETS", "methods"]

SEEDS = (10, 11, 12, 13, 14)
_LEARNED = ("FedAvg", "Flame", "Ditto")
"""Methods also run with learned fields: global, local and both kinds of models."""


def methods(batch_size: int, steps: int) -> list[fp.FederatedProcess]:
    """Returns all methods, references first."""
    # A search begins with these numbers. Methods with their own loops take about as
    # many steps as an epoch has, except pFedMe, which by definition takes several per
    # batch.
    sgd = fp.SGD(learning_rate=0.1, epochs=1, batch_size=batch_size)
    kinds = fp.algorithms
    # Scaffold and FedMGDA have a learning rate of the server among their own fields.
    averaged = (
        kinds.FedAvg(local=sgd),
        kinds.FedAvg(local=sgd, fine_tune=sgd),
        kinds.FedProx(local=sgd),
    )
    rate = fp.aggregators.ServerMomentum(momentum=None)
    solved = (
        *(kinds.Centralized, kinds.Local, kinds.Scaffold, kinds.FedADMM, kinds.FedFV),
        *(kinds.FedMGDA, kinds.Flame, kinds.Ditto, kinds.APFL, kinds.FedACS),
        *(kinds.FedAMP, kinds.HeurFedAMP, kinds.FedFomo, kinds.FedPer, kinds.FedROD),
        *(kinds.SplitGP, kinds.FedNova, kinds.FedSAM, kinds.FedDyn, kinds.MOON),
        *(kinds.KNNPer, kinds.FedProto, kinds.FedALA),
    )
    batch: dict[str, Any] = {"batch_size": batch_size}
    epochs = {"local": sgd, "gradient": "epochs"}
    algorithms = (
        kinds.Majority(),
        *(kind(local=sgd) for kind in solved),
        kinds.MultiKrum(local=sgd, num_malicious=1),  # the least insurance
        kinds.FedRep(local=sgd, head_local=sgd),
        kinds.FedBABU(local=sgd, fine_tune=sgd),
        kinds.PerFedAvg(num_steps=steps, **batch),
        kinds.PFedMe(num_steps=max(1, steps // 2), inner_steps=5, **batch),
        kinds.LpProj(num_steps=max(1, steps // 5), inner_steps=5, dim=100, **batch),
        kinds.FedPG(**epochs),
        kinds.FedPG(**epochs, search=kinds.Armijo()),
        kinds.FedPlus.mean(local=sgd),
        kinds.FedPlus.geometric_median(local=sgd),
        kinds.FedPlus.coordinate_median(local=sgd),
    )
    return [
        *(fp.FederatedProcess(algorithm=a) for a in algorithms),
        *(fp.FederatedProcess(algorithm=a, server_optimizer=rate) for a in averaged),
    ]


def _task(
    name: str,
    spec: fp.FederationSpec,
    model: core.Model,
    *,
    num_rounds: int,
    batch_size: int,
    steps: int,
) -> experiment.Experiment:
    """Returns the experiment of a data set, with the methods that fit."""
    rows = methods(batch_size, steps)
    if spec.unseen_fraction:  # SplitGP has no model for unseen clients
        rows = [m for m in rows if not isinstance(m.algorithm, fp.algorithms.SplitGP)]
    return experiment.Experiment(
        name=f"benchmark_{name}",
        grids=experiment.grids_of(rows, model, spec),
        num_rounds=num_rounds,
        seeds=SEEDS,
        learned=_LEARNED,
    )


def _spec(dataset: Any, partition: Any, **fields: Any) -> fp.FederationSpec:
    """Returns a federation with the same test examples for all seeds."""
    usual: dict[str, Any] = {
        "num_clients": 20,
        "validation_fraction": 0.2,
        "test_fraction": 0.3,
        # Seeds that choose settings see no test example of seeds that are shown.
        "fixed_test_split": True,
    }
    return fp.FederationSpec(dataset, partition, **(usual | fields))


def digits() -> experiment.Experiment:
    """Digits, four labels each, and five clients that never train."""
    partition = fp.LabelShards(labels_per_client=4)
    spec = _spec("digits", partition, num_clients=25, unseen_fraction=0.2)
    sizes = {"num_rounds": 100, "batch_size": 10, "steps": 4}
    return _task("digits", spec, fp.MLP(widths=(32,)), **sizes)


def clusters() -> experiment.Experiment:
    """Clusters of clients that contradict each other."""
    source = data.ClusteredClasses(num_classes=4, dim=10, examples_per_client=60)
    sizes = {"num_rounds": 100, "batch_size": 10, "steps": 3}
    return _task(
        "clusters", _spec(source, fp.ByClient()), fp.MLP(widths=(32,)), **sizes
    )


def fmnist_dir() -> experiment.Experiment:
    """Fashion-MNIST, Dirichlet(0.1) labels."""
    return _fmnist("fmnist_dir", fp.DirichletLabels(concentration=0.1), width=64)


def fmnist_labels2() -> experiment.Experiment:
    """Fashion-MNIST, two labels each."""
    return _fmnist("fmnist_labels2", fp.LabelShards(labels_per_client=2), width=128)


def _fmnist(name: str, partition: Any, width: int) -> experiment.Experiment:
    """Returns the experiment of a distribution of Fashion-MNIST."""
    spec = _spec("fashion_mnist", partition, train_examples=200)
    sizes = {"num_rounds": 100, "batch_size": 20, "steps": 10}
    return _task(name, spec, fp.MLP(widths=(width,)), **sizes)


def femnist() -> experiment.Experiment:
    """FEMNIST by writers, fifty for each seed; a tenth never trains."""
    partition = fp.ByClient(min_examples=20)
    fields = {"num_clients": 50, "unseen_fraction": 0.1, "train_examples": 200}
    spec = _spec(data.Femnist(light_ink=True), partition, **fields)
    sizes = {"num_rounds": 200, "batch_size": 10, "steps": 10}
    return _task("femnist", spec, fp.MLP(widths=(64,)), **sizes)


def medical_mnist() -> experiment.Experiment:
    """Medical MNIST, Dirichlet(0.5) labels."""
    partition = fp.DirichletLabels(concentration=0.5)
    spec = _spec("medical_mnist", partition, train_examples=100)
    sizes = {"num_rounds": 50, "batch_size": 20, "steps": 5}
    return _task("medical_mnist", spec, fp.MLP(widths=(128,)), **sizes)


def cifar10() -> experiment.Experiment:
    """CIFAR-10, Dirichlet(0.3) labels and a small CNN."""
    partition = fp.DirichletLabels(concentration=0.3)
    few = {"validation_fraction": 0.05, "test_fraction": 0.1}  # of thousands of images
    spec = _spec("cifar10", partition, num_clients=10, train_examples=200, **few)
    sizes = {"num_rounds": 100, "batch_size": 20, "steps": 10}
    return _task("cifar10", spec, fp.models.SmallCNN(), **sizes)


PRESETS: dict[str, Callable[[], experiment.Experiment]] = {
    f"benchmark_{make.__name__}": make
    for make in (
        *(digits, clusters, fmnist_dir, fmnist_labels2),
        *(femnist, medical_mnist, cifar10),
    )
}

"""FedACS's comparisons: two data sets, its partitions, and few examples per client.

The paper does not give its network, rounds, step sizes or participation; these are ours
and the same for all methods. The network is a small perceptron instead of a CNN, and
CIFAR-10 has fewer rounds, at most 100 training examples per client, and with 500
clients a smaller network, so that five seeds of twelve methods fit a CPU and its
memory.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import fedjax_pfl as fp
from fedjax_pfl.command.presets import experiment

__all__ = ["PRESETS"]

_SETTINGS = {  # clients, cohort
    "pat2": (100, None),
    "dirichlet": (100, None),
    "small": (100, None),
    "many": (500, 50),
}
_SHORT = {"fmnist": "fashion_mnist", "cifar10": "cifar10"}
_CONCENTRATIONS = (0.1, 0.5, 1.0, 5.0, 10.0)
_WORK = {  # rounds; training examples per client, batch size, steps of about an epoch
    ("fmnist", "pat2"): (30, None, 50, 10),
    ("fmnist", "dirichlet"): (30, None, 50, 10),
    ("fmnist", "small"): (30, 50, 10, 5),
    ("fmnist", "many"): (30, None, 10, 10),
    ("cifar10", "pat2"): (20, 100, 10, 10),
    ("cifar10", "dirichlet"): (10, 100, 10, 10),
    ("cifar10", "small"): (10, 50, 10, 5),
    ("cifar10", "many"): (10, None, 10, 6),
}


def _experiment(dataset: str, setting: str) -> experiment.Experiment:
    """Returns all methods on one data set in one setting."""
    num_clients, cohort = _SETTINGS[setting]
    partition: Any = fp.DirichletLabels(concentration=0.5)
    if setting == "pat2":
        partition = fp.data.PathologicalBlocks(labels_per_client=2)
    num_rounds, train_examples, batch_size, steps = _WORK[dataset, setting]
    spec = fp.FederationSpec(
        _SHORT[dataset],
        partition,
        num_clients=num_clients,
        train_examples=train_examples,
    )
    sgd = fp.SGD(learning_rate=0.05, batch_size=batch_size, remainder="full")
    # Methods that count steps take about an epoch of them, as all others do.
    inner = {"inner_learning_rate": 0.05, "num_steps": steps, "batch_size": batch_size}
    algorithms = (
        fp.FedACS(pick_quantile=0.9, local=sgd),
        fp.FedACS(pick_quantile=0.9, similarity="update", local=sgd),
        fp.FedAMP(local=sgd),
        fp.HeurFedAMP(local=sgd),
        fp.APFL(local=sgd),
        fp.PerFedAvg(learning_rate=0.05, **inner),
        fp.FedPer(local=sgd),
        fp.Scaffold(local=sgd),
        fp.Ditto(local=sgd),
        fp.PFedMe(learning_rate=0.01, **inner),
        fp.FedAvg(local=sgd, fine_tune=sgd),
        fp.Local(local=sgd),
    )
    model = fp.MLP(widths=(16 if (dataset, setting) == ("cifar10", "many") else 64,))
    axes: dict[str, tuple[float, ...]] = {}
    if setting == "small":
        axes = {"federation.partition.concentration": _CONCENTRATIONS}
    return experiment.Experiment(
        name=f"fedacs_{dataset}_{setting}",
        grids=experiment.grids_of(algorithms, model, spec, axes, cohort=cohort),
        num_rounds=num_rounds,
        seeds=(0, 1, 2, 3, 4),
        eval_every=10,
    )


PRESETS: dict[str, Callable[[], experiment.Experiment]] = {
    f"fedacs_{dataset}_{setting}": functools.partial(_experiment, dataset, setting)
    for dataset in _SHORT
    for setting in _SETTINGS
}

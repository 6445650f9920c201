r"""Fine-tuning of a pretrained network: its head, adapters, or all of it.

FEMNIST by writers, and Sent140 in ten groups of users, which is smoke scale: of its
accounts 13 have ten tweets. The network is pretrained on a fifth of the users, whom the
federations leave out:

    python -m experiments.pretrain --preset finetune_femnist_whole --users 0.2 \
        --epochs 20 --out femnist.safetensors
    python -m experiments.sweep --preset 'finetune_femnist_*' \
        --init femnist.safetensors

Every seed draws twenty of the other writers. FedRep needs a body that clients share, so
that it is not among the methods where all but the head is frozen. Every method has the
same step sizes to choose from, on validation data.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import fedjax_pfl as fp
from fedjax_pfl.command.presets import experiment

__all__ = ["DATASETS", "PARTS", "PRESETS"]

PARTS = ("head", "adapters", "whole")
_HELD_OUT = 0.2
_RATES = {"algorithm.local.learning_rate": (0.02, 0.1, 0.5)}
_LAMS = {"algorithm.lam": (0.1, 1.0, 10.0)}


def _femnist() -> tuple[fp.FederationSpec, Any, str, str | None, fp.SGD]:
    """Returns data, network, kernels with adapters, what stays frozen, and solver."""
    spec = fp.FederationSpec(
        "femnist",
        fp.ByClient(min_examples=20),
        num_clients=20,
        held_out_users=_HELD_OUT,
    )
    solver = fp.SGD(epochs=1, batch_size=20)
    return spec, fp.CNN(), "^(conv|hidden)_", None, solver


def _sent140() -> tuple[fp.FederationSpec, Any, str, str | None, fp.SGD]:
    """Returns data, network, kernels with adapters, what stays frozen, and solver."""
    spec = fp.FederationSpec(
        "sent140",
        fp.data.FeatureSkew(),
        num_clients=10,
        train_examples=50,
        held_out_users=_HELD_OUT,
    )
    solver = fp.SGD(epochs=1, batch_size=10)
    network = fp.models.TextEncoder(width=64, mlp_width=256)
    return spec, network, "/(query|value)/", "^embeddings/", solver


_DATA = {"femnist": _femnist, "sent140": _sent140}
DATASETS = tuple(_DATA)


def _experiment(dataset: str, part: str) -> experiment.Experiment:
    """Returns the methods that fine-tune a part of a network."""
    spec, network, targets, frozen, sgd = _DATA[dataset]()
    model: Any = network
    if part == "head":
        model = fp.ParameterRoles(network, trained="^head/")
    elif part == "adapters":
        model = fp.lora(network, targets=targets, rank=4, trained="^head/")
    elif frozen is not None:
        model = fp.ParameterRoles(network, frozen=frozen)
    methods: tuple[Any, ...] = (
        (fp.Local(local=sgd), _RATES),
        (fp.FedAvg(local=sgd), _RATES),
        (fp.Ditto(local=sgd), _RATES | _LAMS),
        (fp.Flame(kappa=1.0, local=sgd), _RATES | _LAMS),
    )
    if part != "head":
        methods += ((fp.FedRep(local=sgd), _RATES),)
    return experiment.Experiment(
        name=f"finetune_{dataset}_{part}",
        grids=experiment.grids_of(methods, model, spec),
        num_rounds=20,
        seeds=(0, 1, 2, 3, 4),
        eval_every=5,
    )


PRESETS: dict[str, Callable[[], experiment.Experiment]] = {
    f"finetune_{dataset}_{part}": functools.partial(_experiment, dataset, part)
    for dataset in _DATA
    for part in PARTS
}

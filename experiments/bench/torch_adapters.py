"""Adapters of a frozen perceptron in PyTorch: a loop over clients."""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
import torch
from torch.nn import functional

from experiments.bench import adapters, torch_core, workloads
from fedjax_pfl import core
from fedjax_pfl.core import tree_paths

__all__ = ["TorchAdapters"]


def _forward(layers: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> torch_core.Forward:
    """Returns the network of factors `a, b, ...` of all frozen layers but the last."""

    def apply(factors: Sequence[torch.Tensor], x: torch.Tensor) -> torch.Tensor:
        *hidden, head = layers
        for k, (kernel, bias) in enumerate(hidden):
            change = (x @ factors[2 * k]) @ factors[2 * k + 1]
            x = functional.relu(functional.linear(x, kernel, bias) + change)
        return functional.linear(x, *head)

    return apply


class TorchAdapters:
    """The training of a workload."""

    execution = ""

    def __init__(self, workload: adapters.Adapted):
        group = workload.group()
        federation = group.federations[0]
        model = group.model.for_federation(federation)
        (process,), (key,) = group.processes, group.keys
        key = core.new_key(jax.random.key_data(key))
        start = process.init(key, model, federation).server
        self._names = list(tree_paths.by_name(start))
        leaves = [torch.tensor(np.asarray(leaf)) for leaf in jax.tree.leaves(start)]
        layers = [
            (torch.tensor(kernel), torch.tensor(bias))
            for kernel, bias in workload.frozen()
        ]
        examples = workloads.examples_of(federation)
        inputs = [torch.from_numpy(x.reshape(len(x), -1)) for x, _ in examples]
        labels = [torch.from_numpy(y) for _, y in examples]
        settings = workloads.settings_of(process, len(inputs))
        self._loop = torch_core.Loop(
            inputs, labels, _forward(layers), leaves, torch_core.Settings(**settings)
        )
        self._rounds = workload.rounds

    def run(self) -> None:
        """Runs the rounds of one call."""
        for _ in range(self._rounds):
            self._loop.round()

    def result(self) -> Any:
        """Returns the server's factors, `[1, *P]`."""
        leaves = (tensor.detach().numpy()[None] for tensor in self._loop.server)
        named_leaves = zip((n.split("/") for n in self._names), leaves, strict=True)
        return tree_paths.nested(named_leaves)

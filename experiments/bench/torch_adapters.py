"""Adapters of a frozen perceptron in PyTorch: a loop over clients."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
import torch
from torch.nn import functional

from experiments.bench import torch_core, torch_loops
from fedjax_pfl.core import tree_paths

if TYPE_CHECKING:
    from experiments.bench import adapters

__all__ = ["training"]


class _Layout:
    """Factors `a, b, ...` of all frozen layers but the last, in our order."""

    def __init__(self, params: Any, frozen: Sequence[tuple[np.ndarray, np.ndarray]]):
        """Takes factors `[*P]`, and kernels and biases of the frozen layers."""
        self._names = list(tree_paths.by_name(params))
        self._layers = [
            (torch_loops.on_device(kernel), torch_loops.on_device(bias))
            for kernel, bias in frozen
        ]

    def forward(self, factors: Sequence[torch.Tensor], x: torch.Tensor) -> torch.Tensor:
        """Computes the outputs of the network."""
        *hidden, head = self._layers
        for k, (kernel, bias) in enumerate(hidden):
            change = (x @ factors[2 * k]) @ factors[2 * k + 1]
            x = functional.relu(functional.linear(x, kernel, bias) + change)
        return functional.linear(x, *head)

    def tensors(self, params: Any) -> torch_core.Tensors:
        """Returns PyTorch's factors."""
        return [torch_loops.on_device(np.asarray(p)) for p in jax.tree.leaves(params)]

    def params(self, tensors: Sequence[torch.Tensor]) -> Any:
        """Returns our factors."""
        leaves = [tensor.detach().cpu().numpy() for tensor in tensors]
        paths = [name.split("/") for name in self._names]
        return tree_paths.nested(zip(paths, leaves, strict=True))

    def inputs(self, x: np.ndarray) -> torch.Tensor:
        """Returns vectors."""
        return torch_loops.on_device(x.reshape(len(x), -1))


def training(workload: "adapters.Adapted") -> torch_loops.TorchTraining:
    """Returns the training of a workload."""
    return torch_loops.TorchTraining(
        workload, "torch", lambda params: _Layout(params, workload.frozen())
    )

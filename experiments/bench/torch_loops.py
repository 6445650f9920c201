"""Workloads given to PyTorch: the same examples, start and settings in its layout."""

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
import torch

from experiments.bench import machine, torch_core
from fedjax_pfl import core

if TYPE_CHECKING:
    from experiments.bench import workloads

__all__ = ["TorchTraining", "on_device"]

_ORDER = ("conv", "hidden", "head")


class _Layout:
    """Parameters and inputs of a network between our layout and PyTorch's."""

    def __init__(self, params: Any):
        """Learns the layers from parameters `[*P]` in our layout."""
        self._layers = sorted(
            params, key=lambda name: (_ORDER.index(name.split("_")[0]), name)
        )
        convolutions = [name for name in self._layers if name.startswith("conv")]
        self.convolutions = len(convolutions)
        self.forward = torch_core.forward(self.convolutions)
        self._flattened = self._layers[self.convolutions]
        if convolutions:
            self._channels = params[convolutions[-1]]["kernel"].shape[-1]

    def _transposed(self, name: str, kernel: np.ndarray, to_torch: bool) -> np.ndarray:
        """Converts a kernel to the other layout."""
        if name.startswith("conv"):
            return kernel.transpose((3, 2, 0, 1) if to_torch else (2, 3, 1, 0))
        if name != self._flattened or not self.convolutions:
            return kernel
        side, channels = math.isqrt(kernel.shape[1] // self._channels), self._channels
        shape = (side, side, channels) if to_torch else (channels, side, side)
        images = kernel.reshape(-1, *shape)
        images = images.transpose((0, 3, 1, 2) if to_torch else (0, 2, 3, 1))
        return images.reshape(kernel.shape)

    def tensors(self, params: Any) -> torch_core.Tensors:
        """Returns PyTorch's parameters."""
        leaves = []
        for name in self._layers:
            kernel = self._transposed(name, np.asarray(params[name]["kernel"]), True)
            leaves += [kernel, np.asarray(params[name]["bias"])]
        return [on_device(np.ascontiguousarray(leaf)) for leaf in leaves]

    def params(self, tensors: Sequence[torch.Tensor]) -> Any:
        """Returns our parameters."""
        leaves = [tensor.detach().cpu().numpy() for tensor in tensors]
        pairs = zip(self._layers, leaves[::2], leaves[1::2], strict=True)
        return {
            name: {"kernel": self._transposed(name, kernel, False), "bias": bias}
            for name, kernel, bias in pairs
        }

    def inputs(self, x: np.ndarray) -> torch.Tensor:
        """Returns images `[n, channels, height, width]`, or vectors."""
        if not self.convolutions:
            return on_device(x.reshape(len(x), -1))
        return on_device(np.ascontiguousarray(x.transpose(0, 3, 1, 2)))


def on_device(array: np.ndarray) -> torch.Tensor:
    """Copies an array to the device on which new tensors are made."""
    return torch.tensor(array, device=torch.get_default_device())


def _channels_last(x: torch.Tensor) -> torch.Tensor:
    """Lays images or kernels out with the channels last in memory."""
    return x.contiguous(memory_format=torch.channels_last) if x.ndim == 4 else x


def _device() -> str:
    """Returns PyTorch's name of JAX's device, with products as JAX has them there."""
    backend = jax.default_backend()
    if backend == "cpu":
        return "cpu"
    if backend != "gpu" or not torch.cuda.is_available():
        raise machine.UnavailableError(f"PyTorch cannot use the {backend} that JAX has")
    torch.set_float32_matmul_precision("high")  # TF32, JAX's default on a GPU
    return "cuda"


class TorchTraining:
    """The trainings of a workload, one grid point after the other."""

    execution = ""

    def __init__(
        self,
        workload: "workloads.Workload",
        name: str,
        layout_of: Callable[[Any], Any] = _Layout,
    ):
        """Takes a workload and the name of a way to train it, on the device of JAX."""
        torch.set_default_device(_device())
        group = workload.group()
        federation = group.federations[0]
        model = group.model.for_federation(federation)
        kind = torch_core.Stacked if name == "torch.func" else torch_core.Loop
        starts = []
        for process, key in zip(group.processes, group.keys, strict=True):
            key = core.new_key(jax.random.key_data(key))
            starts.append(process.init(key, model, federation).server)
        self._layout, self._rounds = layout_of(starts[0]), workload.rounds
        is_last = name == "torch.channels_last"
        convert = _channels_last if is_last else lambda tensor: tensor
        examples = workload.examples()
        inputs = [convert(self._layout.inputs(x)) for x, _ in examples]
        labels = [on_device(y) for _, y in examples]
        self._points = []
        for process, start in zip(group.processes, starts, strict=True):
            leaves = [convert(leaf) for leaf in self._layout.tensors(start)]
            settings = torch_core.Settings(**workload.settings(process))
            point = kind(inputs, labels, self._layout.forward, leaves, settings)
            self._points.append(point)

    def run(self) -> None:
        """Runs the rounds of all points."""
        for point in self._points:
            for _ in range(self._rounds):
                point.round()
        if torch.get_default_device().type == "cuda":
            torch.cuda.synchronize()

    def result(self) -> Any:
        """Returns the global models, `[G, *P]`."""
        points = [self._layout.params(point.server) for point in self._points]
        return jax.tree.map(lambda *leaves: np.stack(leaves), *points)

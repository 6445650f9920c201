"""FedAvg of W6 in the package `pfl`, with its simulated backend and no evaluation."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.hyperparam.base import NNTrainHyperParams
from pfl.model.pytorch import PyTorchModel
from torch.nn import functional

from experiments.bench import torch_core

__all__ = ["Training", "start"]

_NEVER = 2**30


class _Softmax(torch.nn.Module):
    """Softmax regression from zero, with the methods that `pfl` calls."""

    def __init__(self, inputs: int, classes: int):
        super().__init__()
        self.linear = torch.nn.Linear(inputs, classes)
        torch.nn.init.zeros_(self.linear.weight)
        torch.nn.init.zeros_(self.linear.bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x)

    def loss(
        self, x: torch.Tensor, y: torch.Tensor, eval: bool = False
    ) -> torch.Tensor:
        return functional.cross_entropy(self(x), y)

    def metrics(self, x: torch.Tensor, y: torch.Tensor, eval: bool = False) -> dict:
        return {}


class Training:
    """A training that goes on with every call."""

    execution = ""

    def __init__(
        self,
        x: Sequence[torch.Tensor],
        y: Sequence[torch.Tensor],
        settings: torch_core.Settings,
        rounds: int,
    ):
        """Takes inputs and labels of every client; draws cohorts with a seed."""
        users = [Dataset(raw_data=pair) for pair in zip(x, y, strict=True)]
        # pfl walks over examples in one fixed order and weighs members equally.
        rng = np.random.default_rng(0)
        data = FederatedDataset(
            lambda user: users[user], lambda: int(rng.integers(len(users)))
        )
        self._backend = SimulatedBackend(data, None)
        self._module = _Softmax(x[0].shape[1], 10)
        server = torch.optim.SGD(self._module.parameters(), lr=1.0)
        self._model = PyTorchModel(self._module, torch.optim.SGD, server)
        self._params = NNAlgorithmParams(
            central_num_iterations=rounds,
            evaluation_frequency=_NEVER,
            train_cohort_size=settings.cohort_size,
            val_cohort_size=None,
        )
        self._local = NNTrainHyperParams(
            local_num_epochs=settings.epochs,
            local_learning_rate=settings.learning_rate,
            local_batch_size=settings.batch_size,
        )

    def run(self) -> None:
        """Runs the rounds."""
        FederatedAveraging().run(
            self._params,
            self._backend,
            self._model,
            self._local,
            send_metrics_to_platform=False,
        )

    def result(self) -> Any:
        """Returns the global model, `[1, *P]`."""
        linear = self._module.linear
        leaves = {"kernel": linear.weight, "bias": linear.bias}
        copies = {n: leaf.detach().numpy()[None].copy() for n, leaf in leaves.items()}
        return {"head": copies}


def start(workload: Any) -> Training:
    """Returns the training of a workload."""
    examples = workload.examples()
    return Training(
        [torch.from_numpy(x).flatten(1) for x, _ in examples],
        [torch.from_numpy(y) for _, y in examples],
        torch_core.Settings(**workload.settings()),
        workload.rounds,
    )

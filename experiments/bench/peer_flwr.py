"""FedAvg of W6 in Flower's simulation: one CPU per client, no evaluation."""

import functools
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.client import ClientApp, NumPyClient
from flwr.common import ndarrays_to_parameters, parameters_to_ndarrays
from flwr.server import ServerApp, ServerAppComponents, ServerConfig
from flwr.server.strategy import FedAvg
from flwr.simulation import run_simulation

from experiments.bench import torch_core

__all__ = ["train"]


@functools.cache
def _arrays(folder: str) -> tuple[np.ndarray, np.ndarray]:
    """Maps inputs and labels: a process reads its clients' parts only."""
    names = ("x.npy", "y.npy")
    x, y = (np.load(Path(folder) / name, mmap_mode="r") for name in names)
    return x, y


class _Client(NumPyClient):
    """A client that trains with the plain loop."""

    def __init__(
        self, folder: str, start: int, stop: int, settings: torch_core.Settings
    ):
        x, y = (array[start:stop] for array in _arrays(folder))
        self._x = torch.from_numpy(x.copy()).flatten(1).float().div_(255)
        self._y, self._settings = torch.from_numpy(y.copy()).long(), settings

    def fit(self, parameters: list[np.ndarray], config: dict) -> tuple:
        start = [torch.from_numpy(array.copy()) for array in parameters]
        model = torch_core.forward(0)
        loop = torch_core.Loop([self._x], [self._y], model, start, self._settings)
        loop.round()
        server = [leaf.detach().numpy() for leaf in loop.server]
        return server, len(self._y), {}


class _Strategy(FedAvg):
    """FedAvg that keeps the last global model."""

    last: list[np.ndarray]

    def aggregate_fit(self, server_round: int, results: list, failures: list) -> tuple:
        parameters, metrics = super().aggregate_fit(server_round, results, failures)
        if failures or parameters is None:
            raise RuntimeError(f"{len(failures)} clients failed")
        self.last = parameters_to_ndarrays(parameters)
        return parameters, metrics


def train(
    folder: Path,
    sizes: list[int],
    settings: torch_core.Settings,
    rounds: int,
    threads: int,
) -> dict[str, np.ndarray]:
    """Trains softmax regression: `kernel [1, C, D]` and `bias [1, C]`."""
    ends = np.cumsum(sizes)
    inputs = int(np.prod(_arrays(str(folder))[0].shape[1:]))
    start = [np.zeros((10, inputs), np.float32), np.zeros(10, np.float32)]
    strategy = _Strategy(
        fraction_fit=settings.cohort_size / len(sizes),
        fraction_evaluate=0.0,
        min_fit_clients=settings.cohort_size,
        min_evaluate_clients=0,
        min_available_clients=len(sizes),
        initial_parameters=ndarrays_to_parameters(start),
    )

    def client(context: Any) -> Any:
        number = int(context.node_config["partition-id"])
        stop, size = int(ends[number]), sizes[number]
        return _Client(str(folder), stop - size, stop, settings).to_client()

    def server(context: Any) -> ServerAppComponents:
        config = ServerConfig(num_rounds=rounds)
        return ServerAppComponents(strategy=strategy, config=config)

    resources = {"num_cpus": 1, "num_gpus": 0.0}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # this way to start it will go
        run_simulation(
            server_app=ServerApp(server_fn=server),
            client_app=ClientApp(client_fn=client),
            num_supernodes=len(sizes),
            backend_config={
                "client_resources": resources,
                "init_args": {"num_cpus": threads, "include_dashboard": False},
            },
        )
    kernel, bias = strategy.last
    return {"kernel": kernel[None], "bias": bias[None]}

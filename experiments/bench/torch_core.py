"""FLAME and FedAvg in plain PyTorch: a loop over clients, and all in one vmap."""

import dataclasses
from collections.abc import Callable, Iterator, Sequence

# JAX is not imported, so that a cold start is PyTorch's own.
import torch
from torch.nn import functional

__all__ = ["Loop", "Settings", "Stacked", "forward"]

Tensors = list[torch.Tensor]
Forward = Callable[[Sequence[torch.Tensor], torch.Tensor], torch.Tensor]


@dataclasses.dataclass(frozen=True)
class Settings:
    """Settings of a training."""

    learning_rate: float  # of SGD
    batch_size: int  # examples per batch
    epochs: int  # local epochs
    cohort_size: int  # clients per round
    lam: float | None = None  # FLAME's weight, or None for FedAvg
    share: float = 0.5  # FLAME's `1 / (1 + kappa)`


def forward(convolutions: int) -> Forward:
    """Returns the network of parameters `kernel, bias, ...`, convolutions first."""

    def apply(params: Sequence[torch.Tensor], x: torch.Tensor) -> torch.Tensor:
        for i in range(0, 2 * convolutions, 2):
            x = functional.conv2d(x, params[i], params[i + 1])
            x = functional.max_pool2d(functional.relu(x), 2)
        x = x.flatten(1)
        for i in range(2 * convolutions, len(params), 2):
            x = functional.linear(x, params[i], params[i + 1])
            x = functional.relu(x) if i + 2 < len(params) else x
        return x

    return apply


def _descend(
    theta: Tensors,
    gradient: Sequence[torch.Tensor],
    center: Tensors | None,
    settings: Settings,
) -> None:
    """Takes a step of SGD in place, with a prox term if there is a center."""
    for i, (p, g) in enumerate(zip(theta, gradient, strict=True)):
        if center is not None:
            g.add_(p - center[i], alpha=settings.lam)
        p.sub_(g, alpha=settings.learning_rate)


def _uploads(
    share: float, theta: Tensors, w_local: Tensors, dual: Tensors, server: Tensors
) -> Tensors:
    """Updates FLAME's local copies and duals in place, and returns the uploads."""
    uploads = []
    for t, v, p, w in zip(theta, w_local, dual, server, strict=True):
        torch.add(share * t, w - p, alpha=1 - share, out=v)
        p.add_(v).sub_(w)
        uploads.append(v + p)
    return uploads


class Loop:
    """A plain loop over clients and their batches; `server` is the global model."""

    def __init__(
        self, x: Tensors, y: Tensors, model: Forward, start: Tensors, settings: Settings
    ):
        """Takes inputs and labels of every client and the first global model."""
        self._x, self._y, self._model, self._settings = x, y, model, settings
        self.server = _copies(start)
        if settings.lam is not None:
            self._theta = [_copies(start) for _ in x]
            self._w_local = [_copies(start) for _ in x]
            self._dual = [[torch.zeros_like(p) for p in start] for _ in x]

    def round(self) -> None:
        """Runs one round."""
        if self._settings.lam is None:
            self._fedavg_round()
        else:
            self._flame_round(self._settings.share)

    def _batches(self, client: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Yields the batches of one epoch in a fresh order."""
        x, y = self._x[client], self._y[client]
        for rows in torch.randperm(len(y)).split(self._settings.batch_size):
            yield x[rows], y[rows]

    def _train(self, client: int, theta: Tensors, center: Tensors | None) -> None:
        """Runs local epochs of SGD in place, with a prox term if there is a center."""
        for p in theta:
            p.requires_grad_()
        for _ in range(self._settings.epochs):
            for x, y in self._batches(client):
                loss = functional.cross_entropy(self._model(theta, x), y)
                gradient = torch.autograd.grad(loss, theta)
                with torch.no_grad():
                    _descend(theta, gradient, center, self._settings)

    def _flame_round(self, share: float) -> None:
        """Solves for every client, updates copy and dual, averages the uploads."""
        mean = [torch.zeros_like(p) for p in self.server]
        for client, theta in enumerate(self._theta):
            w_local, dual = self._w_local[client], self._dual[client]
            self._train(client, theta, w_local)
            with torch.no_grad():
                uploads = _uploads(share, theta, w_local, dual, self.server)
                for m, u in zip(mean, uploads, strict=True):
                    m.add_(u, alpha=1 / len(self._x))
        self.server = mean

    def _fedavg_round(self) -> None:
        """Trains a cohort from the server's model, and averages by examples."""
        cohort = torch.randperm(len(self._y))[: self._settings.cohort_size].tolist()
        total = sum(len(self._y[client]) for client in cohort)
        mean = [torch.zeros_like(p) for p in self.server]
        for client in cohort:
            theta = _copies(self.server)
            self._train(client, theta, None)
            with torch.no_grad():
                for m, p in zip(mean, theta, strict=True):
                    m.add_(p, alpha=len(self._y[client]) / total)
        self.server = mean


def _copies(tensors: Tensors) -> Tensors:
    """Returns copies of tensors."""
    return [tensor.clone() for tensor in tensors]


class Stacked:
    """Gradients of all clients, of one size, in one vmap of `torch.func`."""

    def __init__(
        self, x: Tensors, y: Tensors, model: Forward, start: Tensors, settings: Settings
    ):
        """Takes inputs and labels of every client and the first global model."""
        self._x, self._y, self._settings = torch.stack(x), torch.stack(y), settings
        self._rows = torch.arange(len(x))[:, None]
        self.server = _copies(start)

        def loss(params: Tensors, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return functional.cross_entropy(model(params, x), y)

        self._gradient = torch.func.vmap(torch.func.grad(loss))
        self._theta = [self._repeated(p) for p in start]
        self._w_local = [self._repeated(p) for p in start]
        self._dual = [torch.zeros_like(p) for p in self._theta]

    def _repeated(self, tensor: torch.Tensor) -> torch.Tensor:
        """Returns a copy for every client."""
        return tensor.expand(len(self._rows), *tensor.shape).clone()

    @torch.no_grad()
    def round(self) -> None:
        """Runs one round of all clients."""
        if self._settings.lam is None:
            theta = [self._repeated(p) for p in self.server]
            self._train(theta, None)
            self.server = [p.mean(dim=0) for p in theta]  # clients of one size
        else:
            self._flame_round(self._settings.share)

    def _train(self, theta: Tensors, center: Tensors | None) -> None:
        """Runs local epochs of all clients at once, in place."""
        settings = self._settings
        for _ in range(settings.epochs):
            order = torch.rand(self._y.shape).argsort(dim=1)
            for part in order.split(settings.batch_size, dim=1):
                x, y = self._x[self._rows, part], self._y[self._rows, part]
                gradient = self._gradient(theta, x, y)
                _descend(theta, gradient, center, settings)

    def _flame_round(self, share: float) -> None:
        """Solves for every client, updates copy and dual, averages the uploads."""
        self._train(self._theta, self._w_local)
        uploads = _uploads(share, self._theta, self._w_local, self._dual, self.server)
        self.server = [u.mean(dim=0) for u in uploads]

"""A PyTorch loop over parties that trains the recurrent portfolio policy."""

from typing import Any

import jax
import numpy as np
import torch

from experiments.bench import portfolios

__all__ = ["TorchPortfolio"]


class TorchPortfolio:
    """FedAvg as one would write it: a party after the other, autograd, SGD."""

    execution = ""

    def __init__(self, task: portfolios.Task):
        leaves, self._tree = jax.tree.flatten(task.params)
        self._server = [torch.from_numpy(np.array(leaf)) for leaf in leaves]
        self._prices = torch.from_numpy(task.prices)
        self._growth = torch.from_numpy(task.growth)
        shape = task.prices.shape[:3]
        self._memory = torch.full(shape, 1 / shape[-1])
        self._cost = task.cost

    def run(self) -> None:
        """Runs one round."""
        models = [self._train(party) for party in range(len(self._prices))]
        self._server = [torch.stack(leaf).mean(0) for leaf in zip(*models, strict=True)]

    def _train(self, party: int) -> list[torch.Tensor]:
        """Returns the party's model after its iterations."""
        leaves = [leaf.clone().requires_grad_() for leaf in self._server]
        prices, growth = self._prices[party], self._growth[party]
        optimizer = torch.optim.SGD(leaves, lr=portfolios.LEARNING_RATE)
        for _ in range(portfolios.NUM_STEPS):
            # What was held before the first of these days, none of them trains on.
            uniform = torch.full((1, prices.shape[1]), 1 / prices.shape[1])
            held = torch.cat([uniform, self._memory[party, :-1]])
            weights = self._weights(self._named(leaves), prices, held)
            optimizer.zero_grad()
            self._loss(weights, growth).backward()
            optimizer.step()
            self._memory[party] = weights[:, 1:].detach()
        return [leaf.detach() for leaf in leaves]

    def _named(self, leaves: list[torch.Tensor]) -> Any:
        return jax.tree.unflatten(self._tree, leaves)

    def _weights(
        self, params: Any, prices: torch.Tensor, held: torch.Tensor
    ) -> torch.Tensor:
        """Returns weights `[B, m+1]` for windows `[B, m, l]`."""
        days, assets, window = prices.shape
        rows, evaluator = prices.reshape(-1, window), params["evaluator"]
        state = torch.zeros(len(rows), len(evaluator["bias"]))
        for day in range(window):
            inputs = rows[:, day, None] @ evaluator["input_kernel"].T
            inputs = inputs + state @ evaluator["state_kernel"].T
            state = torch.sigmoid(inputs + evaluator["bias"])
        read = torch.cat([state.reshape(days, assets, -1), held[..., None]], dim=2)
        scores = read @ params["head"]["kernel"] + params["head"]["bias"]
        cash = params["cash"]["bias"].expand(days, 1)
        return torch.softmax(torch.cat([cash, scores], dim=1), dim=1)

    def _loss(self, weights: torch.Tensor, growth: torch.Tensor) -> torch.Tensor:
        """Returns minus the mean log-return after costs."""
        grown = weights * growth
        drifted_weights = (grown / grown.sum(dim=1, keepdim=True))[:-1]
        turnover = (drifted_weights - weights[1:])[:, 1:].abs().sum(dim=1)
        factor = torch.cat([torch.ones(1), 1 - self._cost * turnover])
        return -torch.log(factor * grown.sum(dim=1)).mean()

    def result(self) -> Any:
        """Returns the global model, a tree of `[1, *P]`."""
        return self._named([leaf.numpy()[None] for leaf in self._server])

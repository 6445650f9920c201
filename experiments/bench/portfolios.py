"""Local training of a portfolio policy by fifty parties, and its products alone."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import fedjax_pfl as fp
from experiments.bench import contenders
from fedjax_pfl.engine import grids, groups
from fedjax_pfl.portfolio import windows

__all__ = ["LEARNING_RATE", "NUM_STEPS", "PORTFOLIOS", "Portfolio", "Task"]

_PARTIES, _ASSETS, _WINDOW = 50, 9, 30
_BATCH, _TEST = 50, 10  # days of an iteration, and of the test
NUM_STEPS, LEARNING_RATE = 50, 1.0
"""Local iterations of a round, and the rate of SGD."""


@dataclasses.dataclass(frozen=True)
class Portfolio(contenders.Timed):
    """FedAvg's rounds with the recurrent policy, closes alone."""

    # Every batch is the most recent piece of days, so that all contenders see the same.
    @property
    def steps_per_round(self) -> float:
        """Returns the iterations of single parties in a round."""
        return float(_PARTIES * NUM_STEPS)

    @property
    def flops_per_round(self) -> float:
        """Returns operations of the products with the state, forward and backward."""
        rows = _BATCH * _ASSETS * _WINDOW
        return self.steps_per_round * rows * 3 * 2.0 * fp.portfolio.EIIE().units ** 2

    def group(self) -> groups.Group:
        """Returns the one training."""
        spec = fp.portfolio.PortfolioSpec(
            fp.portfolio.SyntheticMarket(num_days=3000 + _TEST),
            num_clients=_PARTIES,
            assets_per_client=_ASSETS,
            window=_WINDOW,
            test_days=_TEST,
            years=0,
        )
        steps = {"num_steps": NUM_STEPS, "batch_size": _BATCH}
        solver = fp.SGD(learning_rate=LEARNING_RATE, **steps)
        process = fp.FederatedProcess(algorithm=fp.FedAvg(local=solver))
        key = jax.random.key(0, impl="threefry2x32")
        model = fp.portfolio.EIIE(sampling_decay=1.0)
        (group,) = grids.groups_of(key, process, model, spec, {})
        return group

    def contender(self, name: str) -> contenders.Contender:
        """Makes a contender."""
        if name == "ours":
            return contenders.Ours(self.group(), self.rounds)
        if name == "floor":
            return _floor()
        module = contenders.library("experiments.bench.torch_portfolio")
        return module.TorchPortfolio(self.task())

    def task(self) -> "Task":
        """Returns the work of one round."""
        group = self.group()
        federation, process = group.federations[0], group.processes[0]
        model = group.model.for_federation(federation)
        train = federation.train
        count = train.constants.n_real
        recent = np.asarray(train.index)[:, count - _BATCH : count]
        x = np.asarray(train.x)[recent]
        prices = windows(train.constants, jnp.asarray(x))[..., 0]
        start = process.init(group.keys[0], model, federation).server
        return Task(
            prices=np.asarray(prices),
            growth=np.asarray(train.y)[recent],
            params=jax.tree.map(np.array, start),
            cost=model.cost,
        )


@dataclasses.dataclass(frozen=True)
class Task:
    """Work of one round as arrays: the most recent days of every party."""

    prices: np.ndarray  # `float32[N, B, m, l]` windows in units of their last close
    growth: np.ndarray  # `float32[N, B, m+1]` relative prices of the days
    params: Any  # the start, a tree of NumPy arrays
    cost: float  # rate c


def _floor() -> contenders.Repeated:
    """Returns the products and sigmoids of a recurrent evaluator alone."""
    units = fp.portfolio.EIIE().units
    key = jax.random.key(0, impl="threefry2x32")
    kernels = jax.random.normal(key, (_PARTIES, units, units)) / units**0.5
    start = jnp.ones((_PARTIES, units, _BATCH * _ASSETS)) / 2
    # Per day of a window one product and one sigmoid forwards, and two products
    # backwards, for two parties at a time, which is as fast as any other number.
    work = jax.jit(functools.partial(lax.map, _products, batch_size=2))
    return contenders.Repeated(
        lambda: work((kernels, start)).block_until_ready(),
        lambda _: None,  # there is nothing to compare
    )


def _products(party: tuple[jax.Array, jax.Array]) -> jax.Array:
    """Computes a party's products and sigmoids."""
    kernel, start = party

    def forward(state: jax.Array, _: None) -> tuple[jax.Array, jax.Array]:
        state = jax.nn.sigmoid(kernel @ state)
        return state, state

    def backward(carry: Any, state: jax.Array) -> tuple[Any, None]:
        slope, total = carry
        return (kernel.T @ slope, total + slope @ state.T), None

    def step(_: Any, total: jax.Array) -> jax.Array:
        last, states = lax.scan(forward, start + total[0, 0], None, length=_WINDOW)
        (_, total), _ = lax.scan(backward, (last, jnp.zeros_like(kernel)), states)
        return 1e-30 * total

    return lax.fori_loop(0, NUM_STEPS, step, jnp.zeros_like(kernel))


_TITLE = "FedAvg, recurrent policy, 50 parties x 50 iterations of 50 days"
PORTFOLIOS = {"P1": Portfolio("P1", _TITLE, ("floor", "torch"))}

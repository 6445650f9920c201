"""Every algorithm and contract probe, for the table of properties."""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

import fedjax_pfl as fp
from fedjax_pfl import aggregators, attacks
from tests.algorithms import probes, toy

SGD = fp.SGD(learning_rate=0.1, epochs=2, batch_size=4)
FULL = fp.SGD(learning_rate=0.5, batch_size=64)


def weighted_mean() -> np.ndarray:
    """Minimizer of all clients' examples together."""
    return np.average(toy.targets(), axis=0, weights=toy.COUNTS)


def even_mean() -> np.ndarray:
    """Minimizer of the even clients' examples."""
    return np.average(toy.targets()[::2], axis=0, weights=toy.COUNTS[::2])


def flame_limit() -> np.ndarray:
    """Uniform alpha, equal curvatures: w* is the plain mean of minimizers."""
    return toy.targets().mean(axis=0)


@dataclasses.dataclass(frozen=True)
class Case:
    """One algorithm with what its properties need.

    Attributes:
      make: makes the algorithm.
      field: a traced field and another value for it.
      full: makes a deterministic version for the quadratic, or None.
      limit: its limit of the server's `theta` there.
      attack: an attack in the round.
      aggregator: an aggregator in place of its own.
    """

    make: Callable[[], Any]
    field: tuple[str, float]
    full: Callable[[], Any] | None = None
    limit: Callable[[], np.ndarray] | None = None
    attack: Any = attacks.SignFlip(scale=2.0)
    aggregator: Any = None


CASES = {
    "flame": Case(
        make=lambda: fp.Flame(lam=1.0, kappa=2.0, local=SGD),
        field=("algorithm.kappa", 0.5),
        full=lambda: fp.Flame(lam=1.0, kappa=2.0, local=FULL),
        limit=flame_limit,
    ),
    "flame_official": Case(
        make=lambda: fp.Flame.official(rho=0.2, weighting="examples"),
        field=("algorithm.lam", 0.5),
    ),
    "flame_joint_median": Case(
        make=lambda: fp.Flame(lam=1.0, kappa=2.0, local=SGD, prox_centre="joint"),
        field=("algorithm.lam", 0.5),
        aggregator=aggregators.CoordinateMedian(),
    ),
    "flame_to_tolerance": Case(
        make=lambda: fp.Flame(
            lam=1.0, kappa=2.0, local=fp.ToTolerance(learning_rate=0.3, max_steps=9)
        ),
        field=("algorithm.eps_decay", 0.5),
    ),
    "fedavg": Case(
        make=lambda: fp.FedAvg(local=SGD, fine_tune=SGD),
        field=("algorithm.local.learning_rate", 0.05),
        full=lambda: fp.FedAvg(local=FULL),
        limit=weighted_mean,
    ),
    "fedavg_adam_geometric": Case(
        make=lambda: fp.FedAvg(
            local=fp.Optax(hyperparameters={"learning_rate": 0.05}, batch_size=4),
            weighting="uniform",
        ),
        field=("algorithm.local.hyperparameters.learning_rate", 0.02),
        aggregator=aggregators.GeometricMedian(),
    ),
    "local": Case(
        make=lambda: fp.Local(local=SGD), field=("algorithm.local.learning_rate", 0.05)
    ),
    "centralized": Case(
        make=lambda: fp.Centralized(local=SGD),
        field=("algorithm.local.learning_rate", 0.05),
        full=lambda: fp.Centralized(local=FULL),
        limit=weighted_mean,
    ),
    "own_down": Case(make=probes.OwnDown, field=("algorithm.mixing", 0.1)),
    "two_exchanges": Case(
        make=probes.TwoExchanges,
        field=("algorithm.step", 1.5),
        full=probes.TwoExchanges,
        limit=weighted_mean,
        attack=None,
    ),
    "memory": Case(make=probes.Memory, field=("algorithm.momentum", 0.3)),
    "own_sampler": Case(make=probes.OwnSampler, field=("algorithm.learning_rate", 0.1)),
    "body_head": Case(make=probes.BodyHead, field=("algorithm.learning_rate", 0.1)),
    "weight_zero": Case(
        make=probes.WeightZero,
        field=("algorithm.learning_rate", 0.1),
        full=probes.WeightZero,
        limit=even_mean,
    ),
    "schedule": Case(
        make=probes.Schedule,
        field=("algorithm.decay", 0.5),
        full=lambda: probes.Schedule(decay=0.999),
        limit=weighted_mean,
    ),
}

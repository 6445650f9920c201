"""Every algorithm and contract probe, for the table of properties."""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

import fedjax_pfl as fp
from fedjax_pfl import aggregators, algorithms, attacks
from fedjax_pfl.testing import toy, trainings
from tests.algorithms import probes

SGD = trainings.SGD
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


def to_rounding(rule: Any) -> Any:
    """Lets a search go on until rounding is left, to which properties compare."""
    if isinstance(rule, aggregators.Blockwise):
        return dataclasses.replace(rule, parts=tuple(map(to_rounding, rule.parts)))
    if isinstance(rule, aggregators.GeometricMedian):
        return dataclasses.replace(rule, tolerance=1e-13)
    return rule


@fp.pytree_dataclass
class FedPlus(algorithms.FedPlus):
    """Fed+ whose server searches to rounding."""

    def default_aggregator(self):
        return to_rounding(super().default_aggregator())


@dataclasses.dataclass(frozen=True)
class Case:
    """One algorithm with what its properties need.

    Attributes:
      algorithm: the method.
      field: a traced field of the method and another value for it.
      full: a deterministic version for the quadratic, or None.
      limit: its limit of the server's `theta` there.
      attack: an attack in the round.
      aggregator: an aggregator in place of its own.
      depth: `full`; `light`, for which costly properties are checked on demand only; or
        `variant`, for which most are.
      model: the model of these properties, but for convergence on the quadratic.
    """

    algorithm: Any
    field: tuple[str, float]
    full: Any = None
    limit: Callable[[], np.ndarray] | None = None
    attack: Any = attacks.SignFlip(scale=2.0)
    aggregator: Any = None
    depth: str = "light"
    model: Any = fp.LogisticRegression()


def of(training: str, field: str, value: float, **more: Any) -> Case:
    """Returns the case of a method, and its model, of `testing.trainings`."""
    row = trainings.ROWS[training]
    return Case(row.process.algorithm, (field, value), model=row.model, **more)


def with_limit(algorithm: Any) -> dict[str, Any]:
    """Returns the fields of a case that ends at the minimizer of all examples."""
    return {"full": algorithm, "limit": weighted_mean}


_LOCAL_RATE = "local.learning_rate", 0.05

CASES = {
    "flame": of(
        *("flame", "kappa", 0.5),
        depth="full",
        full=fp.Flame(lam=1.0, kappa=2.0, local=FULL),
        limit=flame_limit,
    ),
    "flame_official": Case(
        fp.Flame.official(rho=0.2, weighting="examples"), ("lam", 0.5), depth="variant"
    ),
    "flame_joint_median": Case(
        fp.Flame(lam=1.0, kappa=2.0, local=SGD, center="joint"),
        ("lam", 0.5),
        depth="variant",
        aggregator=aggregators.CoordinateMedian(),
    ),
    "flame_to_tolerance": of("to_tolerance", "eps_decay", 0.5, depth="variant"),
    "fedavg": of(
        *("fedavg, fine-tuned", *_LOCAL_RATE), **with_limit(fp.FedAvg(local=FULL))
    ),
    "fedavg_adam_geometric": of(
        *("optax", "local.hyperparameters.learning_rate", 0.02),
        depth="variant",
        aggregator=to_rounding(aggregators.GeometricMedian()),
    ),
    "local": of("local", *_LOCAL_RATE),
    "centralized": of(
        *("centralized", *_LOCAL_RATE), **with_limit(fp.Centralized(local=FULL))
    ),
    "fedacs": of("fedacs", "pick_quantile", 0.3),
    "fedacs_update_keep": Case(
        algorithms.FedACS(
            pick_quantile=0.3, local=SGD, similarity="update", negative="keep"
        ),
        ("mixing", 0.7),
        depth="variant",
    ),
    "fedadmm": of("fedadmm", "mu", 0.2),
    "fedadmm_delta": Case(
        algorithms.FedADMM(
            rho=0.1,
            server_mode="delta_selected",
            server_learning_rate=0.8,
            weighting="examples",
            local=SGD,
        ),
        ("server_learning_rate", 0.5),
        depth="variant",
    ),
    "fedamp": of("fedamp", "lam", 0.4),
    "fedamp_scheduled": Case(
        algorithms.FedAMP(
            local=SGD,
            alpha=0.5,
            alpha_decay=0.9,
            decay_every=2,
            sigma=4.0,
            scale_free=False,
            start="own",
        ),
        ("sigma", 5.0),
        depth="variant",
    ),
    "heur_fedamp": of("heur_fedamp", "sharpness", 10.0),
    "apfl": of("apfl", "alpha", 0.8, **with_limit(algorithms.APFL(local=FULL))),
    "per_fedavg": of(
        *("per_fedavg", "inner_learning_rate", 0.05),
        **with_limit(
            algorithms.PerFedAvg(
                inner_learning_rate=0.1, learning_rate=0.5, num_steps=3, batch_size=64
            )
        ),
    ),
    "fedpg": of("fedpg", "gamma", 0.8),
    "fedpg_searched": of("fedpg, searched", "search.decrease", 1e-3, depth="variant"),
    "fedper": of("fedper", *_LOCAL_RATE),
    "fedrep": of("fedrep", "head_local.learning_rate", 0.05),
    "fedrod": Case(algorithms.FedROD(head="bias$", local=SGD), _LOCAL_RATE),
    "fedrod_hyper": of("fedrod", *_LOCAL_RATE, depth="variant"),
    "splitgp": of("splitgp", "self_weight", 0.6),
    "scaffold": of("scaffold", "server_learning_rate", 0.7),
    "ditto": of("ditto", "lam", 0.4, **with_limit(algorithms.Ditto(local=FULL))),
    "ditto_unsynced": Case(
        algorithms.Ditto(local=dataclasses.replace(SGD, momentum=0.5), unsynced=True),
        ("local.momentum", 0.3),
        depth="variant",
    ),
    "pfedme": of(
        *("pfedme", "server_learning_rate", 0.7),
        **with_limit(
            algorithms.PFedMe(
                lam=2.0, learning_rate=0.3, inner_learning_rate=0.3, batch_size=64
            )
        ),
    ),
    "lp_proj": of("lp_proj", "server_learning_rate", 0.7),
    "lp_proj_admm": of("lp_proj, admm", "kappa", 0.5, depth="variant"),
    "fedprox": of(
        *("fedprox", "mu", 0.1),
        depth="variant",
        **with_limit(algorithms.FedProx(mu=0.5, local=FULL)),
    ),
    "fedmgda": of("fedmgda", "eps", 0.05),
    "fedfomo": of("fedfomo", "epsilon", 0.8),
    "fedfv": of("fedfv", "alpha", 0.6),
    "fedala": of("fedala", "weight_learning_rate", 0.5),
    "fedbabu": of("fedbabu", *_LOCAL_RATE),
    "feddyn": of("feddyn", "alpha", 0.2),
    "fednova": Case(
        algorithms.FedNova(
            local=dataclasses.replace(SGD, momentum=0.5), keeps_local=True
        ),
        ("local.momentum", 0.3),
        **with_limit(algorithms.FedNova(local=FULL)),
    ),
    "fedproto": of("fedproto", "lam", 0.3),
    "fedsam": of("fedsam", "rho", 0.5),
    "moon": Case(
        algorithms.MOON(mu=2.0, local=SGD, keeps_local=True),
        ("temperature", 0.8),
        model=trainings.MLP,
    ),
    "knn_per": of("knn_per", "lam", 0.2),
    "multi_krum": of("multi_krum", "num_malicious", 2.0, depth="variant"),
    "fedplus": Case(FedPlus(alpha=0.5, rho=0.2, lam=0.1, local=SGD), ("rho", 0.05)),
    "fedplus_all_coordinates": Case(
        algorithms.FedPlus.coordinate_median(
            theta=0.9, rho=0.1, aggregate_over="all", pull_every="epoch", local=SGD
        ),
        ("theta", 0.7),
        depth="variant",
    ),
    "fedplus_layers": Case(
        FedPlus.layer_wise(
            ("bias$", ""), ("l1", "l2"), rho_quantile=0.5, alpha=0.5, local=SGD
        ),
        ("rho_quantile", 0.8),
        depth="variant",
    ),
    "own_down": Case(probes.OwnDown(), ("mixing", 0.1)),
    "two_exchanges": Case(
        probes.TwoExchanges(),
        ("step", 1.5),
        depth="full",
        attack=None,
        **with_limit(probes.TwoExchanges()),
    ),
    "memory": Case(probes.Memory(), ("momentum", 0.3)),
    "own_sampler": Case(probes.OwnSampler(), ("learning_rate", 0.1), depth="variant"),
    "body_head": Case(probes.BodyHead(), ("learning_rate", 0.1)),
    "weight_zero": Case(
        probes.WeightZero(),
        ("learning_rate", 0.1),
        depth="variant",
        full=probes.WeightZero(),
        limit=even_mean,
    ),
    "schedule": Case(
        probes.Schedule(),
        ("decay", 0.5),
        depth="variant",
        **with_limit(probes.Schedule(decay=0.999)),
    ),
}

"""Every algorithm and contract probe, for the table of properties."""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

import fedjax_pfl as fp
from fedjax_pfl import aggregators, algorithms, attacks
from fedjax_pfl.algorithms import common_descent
from fedjax_pfl.testing import toy
from tests.algorithms import probes

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
      make: makes the algorithm.
      field: a traced field and another value for it.
      full: makes a deterministic version for the quadratic, or None.
      limit: its limit of the server's `theta` there.
      attack: an attack in the round.
      aggregator: an aggregator in place of its own.
      depth: `full`; `light`, for which costly properties are checked on demand only; or
        `variant`, for which most are.
      model: the model of these properties, but for convergence on the quadratic.
    """

    make: Callable[[], Any]
    field: tuple[str, float]
    full: Callable[[], Any] | None = None
    limit: Callable[[], np.ndarray] | None = None
    attack: Any = attacks.SignFlip(scale=2.0)
    aggregator: Any = None
    depth: str = "full"
    model: Any = fp.LogisticRegression()


CASES = {
    "flame": Case(
        make=lambda: fp.Flame(lam=1.0, kappa=2.0, local=SGD),
        field=("algorithm.kappa", 0.5),
        full=lambda: fp.Flame(lam=1.0, kappa=2.0, local=FULL),
        limit=flame_limit,
    ),
    "flame_official": Case(
        depth="variant",
        make=lambda: fp.Flame.official(rho=0.2, weighting="examples"),
        field=("algorithm.lam", 0.5),
    ),
    "flame_joint_median": Case(
        depth="variant",
        make=lambda: fp.Flame(lam=1.0, kappa=2.0, local=SGD, center="joint"),
        field=("algorithm.lam", 0.5),
        aggregator=aggregators.CoordinateMedian(),
    ),
    "flame_to_tolerance": Case(
        depth="variant",
        make=lambda: fp.Flame(
            lam=1.0,
            kappa=2.0,
            local=fp.local.ToTolerance(learning_rate=0.3, max_steps=9),
        ),
        field=("algorithm.eps_decay", 0.5),
    ),
    "fedavg": Case(
        depth="light",
        make=lambda: fp.FedAvg(local=SGD, fine_tune=SGD),
        field=("algorithm.local.learning_rate", 0.05),
        full=lambda: fp.FedAvg(local=FULL),
        limit=weighted_mean,
    ),
    "fedavg_adam_geometric": Case(
        depth="variant",
        make=lambda: fp.FedAvg(
            local=fp.Optax(hyperparameters={"learning_rate": 0.05}, batch_size=4),
            weighting="uniform",
        ),
        field=("algorithm.local.hyperparameters.learning_rate", 0.02),
        aggregator=to_rounding(aggregators.GeometricMedian()),
    ),
    "local": Case(
        depth="light",
        make=lambda: fp.Local(local=SGD),
        field=("algorithm.local.learning_rate", 0.05),
    ),
    "centralized": Case(
        depth="light",
        make=lambda: fp.Centralized(local=SGD),
        field=("algorithm.local.learning_rate", 0.05),
        full=lambda: fp.Centralized(local=FULL),
        limit=weighted_mean,
    ),
    "fedacs": Case(
        depth="light",
        make=lambda: algorithms.FedACS(pick_quantile=0.55, mixing=0.9, local=SGD),
        field=("algorithm.pick_quantile", 0.3),
    ),
    "fedacs_update_keep": Case(
        depth="variant",
        make=lambda: algorithms.FedACS(
            pick_quantile=0.3, local=SGD, similarity="update", negative="keep"
        ),
        field=("algorithm.mixing", 0.7),
    ),
    "fedadmm": Case(
        depth="light",
        make=lambda: algorithms.FedADMM(mu=0.5, local=SGD),
        field=("algorithm.mu", 0.2),
    ),
    "fedadmm_delta": Case(
        depth="variant",
        make=lambda: algorithms.FedADMM(
            rho=0.1,
            server_mode="delta_selected",
            server_learning_rate=0.8,
            weighting="examples",
            local=SGD,
        ),
        field=("algorithm.server_learning_rate", 0.5),
    ),
    "fedamp": Case(
        depth="light",
        make=lambda: algorithms.FedAMP(local=SGD),
        field=("algorithm.lam", 0.4),
    ),
    "fedamp_scheduled": Case(
        depth="variant",
        make=lambda: algorithms.FedAMP(
            local=SGD,
            alpha=0.5,
            alpha_decay=0.9,
            decay_every=2,
            sigma=4.0,
            scale_free=False,
            start="own",
        ),
        field=("algorithm.sigma", 5.0),
    ),
    "heur_fedamp": Case(
        depth="light",
        make=lambda: algorithms.HeurFedAMP(local=SGD, self_weight=0.2),
        field=("algorithm.sharpness", 10.0),
    ),
    "apfl": Case(
        depth="light",
        make=lambda: algorithms.APFL(local=SGD, alpha_decay=0.02),
        field=("algorithm.alpha", 0.8),
        full=lambda: algorithms.APFL(local=FULL),
        limit=weighted_mean,
    ),
    "per_fedavg": Case(
        depth="light",
        make=lambda: algorithms.PerFedAvg(
            inner_learning_rate=0.1,
            learning_rate=0.2,
            num_steps=3,
            batch_size=4,
            hessian="finite_difference",
        ),
        field=("algorithm.inner_learning_rate", 0.05),
        full=lambda: algorithms.PerFedAvg(
            inner_learning_rate=0.1, learning_rate=0.5, num_steps=3, batch_size=64
        ),
        limit=weighted_mean,
    ),
    "fedpg": Case(
        depth="light",
        make=lambda: algorithms.FedPG(
            local=dataclasses.replace(SGD, decay=0.9), gradient="epochs", gamma=0.3
        ),
        field=("algorithm.gamma", 0.8),
    ),
    "fedpg_searched": Case(
        depth="variant",
        make=lambda: algorithms.FedPG(
            local=fp.SGD(learning_rate=0.1),
            search=common_descent.Armijo(),
            history="last_round",
            layerwise=True,
            protection="orthogonal",
            personal_length="mean",
            personal="refresh",
        ),
        field=("algorithm.search.decrease", 1e-3),
    ),
    "fedper": Case(
        depth="light",
        make=lambda: algorithms.FedPer(head="bias$", local=SGD),
        field=("algorithm.local.learning_rate", 0.05),
    ),
    "fedrep": Case(
        depth="light",
        make=lambda: algorithms.FedRep(
            head="bias$", head_local=SGD, local=SGD, send_heads=True, fine_tune=SGD
        ),
        field=("algorithm.head_local.learning_rate", 0.05),
    ),
    "fedrod": Case(
        depth="light",
        make=lambda: algorithms.FedROD(head="bias$", local=SGD),
        field=("algorithm.local.learning_rate", 0.05),
    ),
    "fedrod_hyper": Case(
        depth="variant",
        make=lambda: algorithms.FedROD(head="kernel$", hyper_width=4, local=SGD),
        field=("algorithm.local.learning_rate", 0.05),
    ),
    "splitgp": Case(
        depth="light",
        make=lambda: algorithms.SplitGP(local=SGD),
        field=("algorithm.self_weight", 0.6),
        model=fp.MLP(widths=(4,)),
    ),
    "scaffold": Case(
        depth="light",
        make=lambda: algorithms.Scaffold(local=SGD),
        field=("algorithm.server_learning_rate", 0.7),
    ),
    "ditto": Case(
        depth="light",
        make=lambda: algorithms.Ditto(local=SGD, personal=fp.SGD(batch_size=8)),
        field=("algorithm.lam", 0.4),
        full=lambda: algorithms.Ditto(local=FULL),
        limit=weighted_mean,
    ),
    "ditto_unsynced": Case(
        depth="variant",
        make=lambda: algorithms.Ditto(
            local=fp.SGD(learning_rate=0.1, epochs=2, batch_size=4, momentum=0.5),
            unsynced=True,
        ),
        field=("algorithm.local.momentum", 0.3),
    ),
    "pfedme": Case(
        depth="light",
        make=lambda: algorithms.PFedMe(
            lam=2.0, learning_rate=0.3, num_steps=3, inner_steps=2, batch_size=4
        ),
        field=("algorithm.server_learning_rate", 0.7),
        full=lambda: algorithms.PFedMe(
            lam=2.0, learning_rate=0.3, inner_learning_rate=0.3, batch_size=64
        ),
        limit=weighted_mean,
    ),
    "lp_proj": Case(
        depth="light",
        make=lambda: algorithms.LpProj(
            lam=2.0,
            learning_rate=0.3,
            clip_norm=0.5,
            dim=6,
            num_steps=2,
            inner_steps=3,
            batch_size=4,
        ),
        field=("algorithm.server_learning_rate", 0.7),
    ),
    "lp_proj_admm": Case(
        depth="variant",
        make=lambda: algorithms.LpProj(
            form="admm", lam=2.0, kappa=2.0, dim=3, orthogonal=True, local=SGD
        ),
        field=("algorithm.kappa", 0.5),
    ),
    "fedprox": Case(
        depth="variant",
        make=lambda: algorithms.FedProx(mu=0.5, local=SGD),
        field=("algorithm.mu", 0.1),
        full=lambda: algorithms.FedProx(mu=0.5, local=FULL),
        limit=weighted_mean,
    ),
    "fedmgda": Case(
        depth="light",
        make=lambda: algorithms.FedMGDA(
            eps=0.2, server_learning_rate=0.1, keeps_local=True, local=SGD
        ),
        field=("algorithm.eps", 0.05),
    ),
    "fedfomo": Case(
        depth="light",
        make=lambda: algorithms.FedFomo(num_models=3, epsilon_decay=0.0, local=SGD),
        field=("algorithm.epsilon", 0.8),
    ),
    "fedfv": Case(
        depth="light",
        make=lambda: algorithms.FedFV(alpha=0.3, tau=2, local=SGD, keeps_local=True),
        field=("algorithm.alpha", 0.6),
    ),
    "fedala": Case(
        depth="light",
        make=lambda: algorithms.FedALA(
            adapted="kernel$", start_epochs=12, threshold=0.01, local=SGD
        ),
        field=("algorithm.weight_learning_rate", 0.5),
    ),
    "fedbabu": Case(
        depth="light",
        make=lambda: algorithms.FedBABU(
            head="bias$", local=SGD, fine_tune=SGD, tuned_part="head"
        ),
        field=("algorithm.local.learning_rate", 0.05),
    ),
    "feddyn": Case(
        depth="light",
        make=lambda: algorithms.FedDyn(alpha=0.5, weighting="examples", local=SGD),
        field=("algorithm.alpha", 0.2),
    ),
    "fednova": Case(
        depth="light",
        make=lambda: algorithms.FedNova(
            local=dataclasses.replace(SGD, momentum=0.5), keeps_local=True
        ),
        field=("algorithm.local.momentum", 0.3),
        full=lambda: algorithms.FedNova(local=FULL),
        limit=weighted_mean,
    ),
    "fedproto": Case(
        depth="light",
        make=lambda: algorithms.FedProto(local=SGD),
        field=("algorithm.lam", 0.3),
        model=fp.MLP(widths=(4,)),
    ),
    "fedsam": Case(
        depth="light",
        make=lambda: algorithms.FedSAM(rho=0.2, local=SGD),
        field=("algorithm.rho", 0.5),
    ),
    "moon": Case(
        depth="light",
        make=lambda: algorithms.MOON(mu=2.0, local=SGD, keeps_local=True),
        field=("algorithm.temperature", 0.8),
        model=fp.MLP(widths=(4,)),
    ),
    "knn_per": Case(
        depth="light",
        make=lambda: algorithms.KNNPer(num_neighbors=3, local=SGD),
        field=("algorithm.lam", 0.2),
        model=fp.MLP(widths=(4,)),
    ),
    "multi_krum": Case(
        depth="variant",
        make=lambda: algorithms.MultiKrum(num_malicious=1, local=SGD),
        field=("algorithm.num_malicious", 2.0),
    ),
    "fedplus": Case(
        depth="light",
        make=lambda: FedPlus(alpha=0.5, rho=0.2, lam=0.1, local=SGD),
        field=("algorithm.rho", 0.05),
    ),
    "fedplus_all_coordinates": Case(
        depth="variant",
        make=lambda: algorithms.FedPlus.coordinate_median(
            theta=0.9, rho=0.1, aggregate_over="all", pull_every="epoch", local=SGD
        ),
        field=("algorithm.theta", 0.7),
    ),
    "fedplus_layers": Case(
        depth="variant",
        make=lambda: FedPlus.layer_wise(
            ("bias$", ""), ("l1", "l2"), rho_quantile=0.5, alpha=0.5, local=SGD
        ),
        field=("algorithm.rho_quantile", 0.8),
    ),
    "own_down": Case(
        depth="light", make=probes.OwnDown, field=("algorithm.mixing", 0.1)
    ),
    "two_exchanges": Case(
        make=probes.TwoExchanges,
        field=("algorithm.step", 1.5),
        full=probes.TwoExchanges,
        limit=weighted_mean,
        attack=None,
    ),
    "memory": Case(
        depth="light", make=probes.Memory, field=("algorithm.momentum", 0.3)
    ),
    "own_sampler": Case(
        depth="variant", make=probes.OwnSampler, field=("algorithm.learning_rate", 0.1)
    ),
    "body_head": Case(
        depth="light", make=probes.BodyHead, field=("algorithm.learning_rate", 0.1)
    ),
    "weight_zero": Case(
        depth="variant",
        make=probes.WeightZero,
        field=("algorithm.learning_rate", 0.1),
        full=probes.WeightZero,
        limit=even_mean,
    ),
    "schedule": Case(
        depth="variant",
        make=probes.Schedule,
        field=("algorithm.decay", 0.5),
        full=lambda: probes.Schedule(decay=0.999),
        limit=weighted_mean,
    ),
}

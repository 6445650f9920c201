"""Derivatives of trainings of a small network beside central differences.

All points of a case, the one in the middle and two beside it per field, are trained by
one program.
"""

import dataclasses
from typing import Any

import jax
import numpy as np
import pytest

import fedjax_pfl as fp
from fedjax_pfl import aggregators, algorithms, attacks
from fedjax_pfl.core import struct
from tests.engine import specs
from tests.lanes import few

KEY = jax.random.key(0, impl="threefry2x32")
SPEC = specs.validated(5)
NUM_ROUNDS = 3
# Truncation and rounding are both of the order of its square.
STEP = np.finfo(float).eps ** (1 / 3)
# Medians are searched for to a residual of 1e-10, about 3 STEP of a difference.
RTOL = 10 * STEP

SGD = fp.SGD(learning_rate=0.3, epochs=2, batch_size=7)
HEAVY = dataclasses.replace(SGD, momentum=0.4, weight_decay=0.02, decay=0.9)
SHORT = {
    "rate": "algorithm.local.learning_rate",
    "momentum": "algorithm.local.momentum",
}


@dataclasses.dataclass(frozen=True)
class Case:
    """A process, and the fields in which it is differentiated.

    Attributes:
      algorithm: the method.
      short_names: dotted names, those of the method without "algorithm",
        "server" for the optimizer of the server.
      around: other parts of the process.
      model: name of the model in the objective, or None.
      network: the model that is trained.
      malicious: share of malicious clients.
    """

    algorithm: Any
    short_names: str
    around: Any = dataclasses.field(default_factory=dict)
    model: str | None = None
    network: Any = fp.MLP(widths=(5,))
    malicious: float = 0.0

    @property
    def fields(self) -> list[str]:
        """Dotted names."""
        parts = ("aggregator.", "attack.", "server_optimizer.")
        names = self.short_names.replace("server.", "server_optimizer.").split()
        return [
            SHORT.get(n, n if n.startswith(parts) else f"algorithm.{n}") for n in names
        ]


COHORTS = {
    "participation": fp.UniformCohort(size=3),
    "work": fp.Stragglers(fraction=0.6, max_epochs=2),
}


def aggregated(aggregator: Any, *fields: str) -> Case:
    names = " ".join([*fields, "rate"])
    return Case(fp.FedAvg(local=SGD), names, {"aggregator": aggregator})


def attacked(attack: Any, *fields: str) -> Case:
    names, around = " ".join([*fields, "rate"]), {"attack": attack}
    return Case(fp.FedAvg(local=SGD), names, around, malicious=0.4)


CASES = {
    "fedavg": Case(
        fp.FedAvg(local=HEAVY),
        "rate momentum local.weight_decay local.decay"
        " server.learning_rate server.momentum",
        {
            "server_optimizer": aggregators.ServerMomentum(
                learning_rate=0.8, momentum=0.6
            )
        },
    ),
    "fedprox": Case(
        algorithms.FedProx(mu=0.5, local=SGD),
        "mu aggregator.rho rate",
        {"aggregator": aggregators.GeometricMedian(rho=0.2)},
    ),
    "flame": Case(
        fp.Flame(lam=0.8, kappa=2.0, local=HEAVY),
        "lam kappa rate momentum",
        COHORTS,
        model="personal",
    ),
    "fedplus": Case(
        fp.FedPlus(alpha=0.5, rho=0.1, lam=0.2, local=SGD), "alpha rho lam rate"
    ),
    "ditto": Case(
        fp.Ditto(lam=0.8, local=SGD, personal=HEAVY),
        "lam rate personal.momentum",
        model="personal",
    ),
    "pfedme": Case(
        fp.PFedMe(lam=2.0, learning_rate=0.3, num_steps=3, inner_steps=2, batch_size=6),
        "lam learning_rate inner_learning_rate server_learning_rate",
        model="global",
    ),
    "apfl": Case(
        fp.APFL(alpha=0.4, alpha_decay=0.02, local=SGD), "alpha alpha_decay rate"
    ),
    "scaffold": Case(
        algorithms.Scaffold(server_learning_rate=0.7, local=SGD),
        "server_learning_rate rate",
    ),
    "fedadmm": Case(
        algorithms.FedADMM(
            rho=0.1,
            server_mode="delta_selected",
            server_learning_rate=0.8,
            weighting="examples",
            local=SGD,
        ),
        "rho server_learning_rate rate",
    ),
    "fedper": Case(
        algorithms.FedPer(local=HEAVY),
        "attack.scale aggregator.rho rate momentum",
        {
            "attack": attacks.SignFlip(scale=0.5),
            "aggregator": aggregators.CoordinateMedian(rho=0.2),
        },
        malicious=0.4,
    ),
    "fedrep": Case(
        algorithms.FedRep(head_local=HEAVY, local=SGD),
        "rate head_local.learning_rate head_local.momentum",
    ),
    "per_fedavg": Case(
        algorithms.PerFedAvg(
            inner_learning_rate=0.1, learning_rate=0.2, num_steps=3, batch_size=6
        ),
        "inner_learning_rate learning_rate",
    ),
    "fedavg_adam": Case(
        fp.FedAvg(
            local=fp.Optax(
                hyperparameters={"learning_rate": 0.05, "b1": 0.8}, batch_size=7
            )
        ),
        "local.hyperparameters.learning_rate local.hyperparameters.b1",
        network=fp.LogisticRegression(),
    ),
    "fine_tuned": Case(
        fp.FedAvg(local=SGD, fine_tune=SGD),
        "rate fine_tune.learning_rate",
        model="fine-tuned",
    ),
    "flame_to_tolerance": Case(
        fp.Flame(
            lam=0.8,
            rho=0.3,
            local=fp.local.ToTolerance(learning_rate=0.3, tolerance=0.0, max_steps=5),
            eps_decay=0.0,
        ),
        "lam rho rate",
        model="global",
    ),
    "flame_released": Case(
        fp.Flame.official(lam=0.8, rho=0.2, weighting="examples", local=HEAVY),
        "lam rho rate momentum",
        COHORTS,
    ),
    "fedplus_coordinates": Case(
        fp.FedPlus.coordinate_median(
            theta=0.9, rho=0.05, aggregate_over="all", pull_every="epoch", local=SGD
        ),
        "theta rho rate",
        model="global",
    ),
    "per_fedavg_difference": Case(
        algorithms.PerFedAvg(
            inner_learning_rate=0.1,
            learning_rate=0.2,
            num_steps=3,
            batch_size=6,
            hessian="finite_difference",
        ),
        "inner_learning_rate learning_rate difference",
    ),
    "per_fedavg_exact": Case(
        algorithms.PerFedAvg(
            inner_learning_rate=0.1,
            learning_rate=0.2,
            num_steps=3,
            batch_size=6,
            hessian="exact",
        ),
        "inner_learning_rate learning_rate",
    ),
    "fedamp": Case(
        algorithms.FedAMP(lam=0.8, alpha=0.5, sigma=4.0, scale_free=False, local=SGD),
        "lam alpha sigma rate",
    ),
    "fedamp_scale_free": Case(algorithms.FedAMP(lam=0.8, local=SGD), "lam rate"),
    "heur_fedamp": Case(
        algorithms.HeurFedAMP(lam=0.8, sharpness=10.0, self_weight=0.2, local=SGD),
        "lam sharpness self_weight rate",
    ),
    "fedacs": Case(
        algorithms.FedACS(pick_quantile=0.55, mixing=0.8, local=SGD), "mixing rate"
    ),
    "fedrod": Case(algorithms.FedROD(local=SGD), "rate"),
    "fedmgda": Case(
        algorithms.FedMGDA(
            server_learning_rate=0.3, normalize=False, eps=1.0, local=SGD
        ),
        "server_learning_rate rate",
    ),
    "fedpg": Case(algorithms.FedPG(gamma=0.3, local=fp.SGD(learning_rate=0.3)), "rate"),
    "mimic": attacked(attacks.Mimic()),
    "fedfomo": Case(algorithms.FedFomo(num_models=3, local=SGD), "rate"),
    "lp_proj": Case(
        algorithms.LpProj(
            lam=2.0,
            learning_rate=0.2,
            clip_norm=0.6,
            dim=6,
            num_steps=2,
            inner_steps=3,
            batch_size=6,
        ),
        "lam learning_rate inner_learning_rate weight_decay clip_norm",
    ),
    "lp_proj_admm": Case(
        algorithms.LpProj(
            form="admm", lam=2.0, kappa=2.0, dim=3, orthogonal=True, local=SGD
        ),
        "lam kappa rate",
    ),
    "fedfv": Case(algorithms.FedFV(alpha=0.3, tau=2, local=SGD), "rate"),
    "fedala": Case(
        algorithms.FedALA(start_epochs=3, local=SGD),
        "weight_learning_rate rate",
        model="personal",
    ),
    "fedbabu": Case(
        algorithms.FedBABU(local=SGD, fine_tune=SGD),
        "rate fine_tune.learning_rate",
        model="fine-tuned",
    ),
    "feddyn": Case(algorithms.FedDyn(alpha=0.5, local=SGD), "alpha rate"),
    "fednova": Case(algorithms.FedNova(local=HEAVY, keeps_local=True), "rate momentum"),
    "fedproto": Case(algorithms.FedProto(local=SGD), "lam rate"),
    "fedsam": Case(algorithms.FedSAM(rho=0.2, local=SGD), "rho rate"),
    "knn_per": Case(
        algorithms.KNNPer(num_neighbors=3, local=SGD),
        "lam scale rate",
        model="personal",
    ),
    "moon": Case(algorithms.MOON(mu=2.0, local=SGD), "mu temperature rate"),
    "splitgp": Case(algorithms.SplitGP(local=SGD), "exit_weight self_weight rate"),
    "centralized": Case(fp.Centralized(local=SGD), "rate"),
    "local": Case(fp.Local(local=HEAVY), "rate momentum"),
    "coordinate_median": aggregated(
        aggregators.CoordinateMedian(rho=0.05), "aggregator.rho"
    ),
    "exact_median": aggregated(aggregators.CoordinateMedian()),
    "trimmed_mean": aggregated(aggregators.TrimmedMean(num_malicious=1)),
    "krum": aggregated(aggregators.Krum(num_malicious=1)),
    "centered_clipping": aggregated(
        aggregators.CenteredClipping(tau=0.3, num_iterations=2), "aggregator.tau"
    ),
    "norm_clipping": aggregated(
        aggregators.NormClipping(max_norm=0.4), "aggregator.max_norm"
    ),
    "adaptive_norm_clipping": aggregated(aggregators.NormClipping()),
    "server_adam": Case(
        fp.FedAvg(local=SGD),
        "server.learning_rate server.b1 server.b2 server.eps",
        {"server_optimizer": aggregators.ServerAdam(learning_rate=0.1)},
    ),
    "sign_flip": attacked(
        attacks.SignFlip(scale=2.0, std=0.1), "attack.scale", "attack.std"
    ),
    "gaussian": attacked(attacks.Gaussian(std=0.3), "attack.std"),
    "same_value": attacked(attacks.SameValue(std=0.3), "attack.std"),
    "scaling": attacked(attacks.Scaling(factor=3.0), "attack.factor"),
    "inner_product": attacked(attacks.IPM(tau=0.5), "attack.tau"),
    "min_sum": attacked(attacks.MinSum(direction="unit")),
    "overflow": Case(
        fp.FedAvg(local=SGD),
        "aggregator.rho rate",
        {
            "attack": attacks.Scaling(factor=1.7e308),
            "aggregator": aggregators.CoordinateMedian(rho=0.05),
        },
        malicious=0.4,
    ),
}


def beside(values: dict[str, float], name: str, sign: int) -> dict[str, float]:
    return values | {name: values[name] * (1 + sign * STEP)}


QUICK = ("fedavg", "flame")  # closed forms and layers have more


@pytest.mark.parametrize("name", few(QUICK, CASES))
def test_derivatives_are_the_limits_of_differences(name):
    case = CASES[name]
    process = fp.FederatedProcess(algorithm=case.algorithm, **case.around)
    spec = dataclasses.replace(SPEC, malicious_fraction=case.malicious)
    values = {n: float(struct.get_field(process, n)) for n in case.fields}
    points = [values]
    points += [beside(values, n, sign) for n in case.fields for sign in (1, -1)]
    objective = "validation:loss" + (f":{case.model}" if case.model else "")
    found = fp.hypergradients(
        *(KEY, process, case.network, spec, case.fields, NUM_ROUNDS),
        objective=objective,
        axes=points,
        evaluate_on="validation",
        eval_every=NUM_ROUNDS,
        execution="vmap",
        progress=False,
    )
    (history,) = found.result.groups
    model = history.models.index(found.objective.split(":")[2])
    losses = history.metrics["loss"][:, -1, model, 0]
    honest = np.where(history.malicious, np.nan, losses)
    np.testing.assert_allclose(found.value, np.nanmean(honest, axis=1), rtol=1e-12)
    for number, field in enumerate(case.fields):
        above, below = found.value[2 * number + 1 : 2 * number + 3]
        difference = (above - below) / (2 * STEP * values[field])
        noise = 100 * STEP**2 * found.value[0] / values[field]
        assert abs(difference) > 100 * noise, f"{field} leaves the objective as it is"
        slope = found.derivatives[field][0]
        np.testing.assert_allclose(
            slope, difference, rtol=RTOL, atol=noise, err_msg=field
        )

"""Wrong fields of every method get one sentence."""

import math

import numpy as np
import pytest

import fedjax_pfl as fp
from fedjax_pfl import algorithms
from fedjax_pfl.algorithms import common_descent, phi

WRONG = {
    algorithms.APFL: [
        ({"alpha": 1.5}, "alpha to be a finite number at least 0 and at most 1"),
        ({"adaptive": 1}, "adaptive to be true or false, got 1"),
        ({"alpha_learning_rate": 0.0}, "alpha_learning_rate to be a finite number"),
        ({"alpha_decay": -0.1}, "alpha_decay to be a finite number at least 0"),
        ({"mix": "logits"}, "Unknown mix 'logits'"),
        ({"local": fp.SGD(momentum=0.5)}, "APFL's local solver to be SGD without mom"),
        ({"local": fp.local.ToTolerance()}, "SGD without momentum.*got ToTolerance"),
    ],
    algorithms.Ditto: [
        ({"lam": -1.0}, "lam to be a finite number at least 0, got -1.0"),
        ({"unsynced": 1}, "unsynced to be true or false, got 1"),
        (
            {"unsynced": True, "personal": fp.local.ToTolerance()},
            "both solvers of Ditto to be SGD where unsynced is true.*got ToTolerance",
        ),
    ],
    algorithms.FedADMM: [
        ({"mu": 0.0}, "mu .* above 0, got 0.0"),
        ({"rho": -1.0}, "rho .* above 0, got -1.0"),
        ({"mu": 1.0, "rho": 2.0}, "mu or rho, got both: mu=1.0, rho=2.0"),
        ({"server_learning_rate": 0.0}, "server_learning_rate .* above 0, got 0.0"),
        ({"server_learning_rate": 1.0}, "server_mode='delta_selected' with a"),
        ({"eps_decay": 1.0}, "eps_decay .* below 1, got 1.0"),
        ({"server_mode": "mean"}, "server_mode 'mean'.*mean_all"),
        ({"weighting": "example"}, "weighting 'example' .*'examples'"),
    ],
    algorithms.FedALA: [
        ({"sample_fraction": 0.0}, "sample_fraction to be a finite number above 0"),
        ({"start_epochs": 0}, "start_epochs to be a whole number"),
        ({"weight_learning_rate": -1.0}, "weight_learning_rate to be a finite numb"),
        ({"adapted": "("}, "adapted"),
    ],
    algorithms.FedBABU: [
        ({"tuned_part": "neck"}, "allowed: body, head, whole"),
        ({"fine_tune": 0.1}, "fine_tune of FedBABU to be an object such as SGD"),
        ({"head": "("}, "head"),
    ],
    algorithms.FedDyn: [
        ({"alpha": -1.0}, "alpha to be a finite number at least 0"),
        ({"weighting": "equal"}, "Unknown weighting 'equal'|allowed: "),
    ],
    algorithms.FedFomo: [
        ({"num_models": -1}, "num_models"),
        ({"epsilon": 1.1}, "epsilon"),
        ({"epsilon_decay": -0.1}, "epsilon_decay"),
        ({"validation_fraction": 1.0}, "validation_fraction"),
    ],
    algorithms.FedFV: [
        ({"alpha": 1.5}, "alpha"),
        ({"tau": -1}, "tau"),
        ({"tau": 1.5}, "tau"),
        ({"keeps_local": None}, "keeps_local"),
    ],
    algorithms.FedPG: [
        ({"gamma": 1.1}, "gamma"),
        ({"gamma": -0.1}, "gamma"),
        ({"guard": 1.0}, "guard"),
        ({"local": fp.local.ToTolerance()}, "FedPG"),
        ({"local": fp.SGD(momentum=0.9)}, "FedPG"),
        ({"gradient": "some"}, "gradient"),
        ({"history": "all"}, "history"),
        ({"max_history": 0}, "max_history"),
        ({"scale": "max"}, "scale"),
        ({"fair_from": "x"}, "fair_from"),
        ({"normalize": "x"}, "normalize"),
        ({"protection": "x"}, "protection"),
        ({"personal_length": "x"}, "personal_length"),
        ({"personal": "x"}, "personal"),
        ({"layerwise": 1}, "layerwise"),
    ],
    algorithms.FedPlus: [
        ({"alpha": -0.1}, "alpha"),
        ({"theta": 1.1}, "theta"),
        ({"theta": 0.0}, "theta"),
        ({"alpha": 0.1, "theta": 0.5}, "alpha or theta, got both"),
        ({"rho": 0.0}, "rho"),
        ({"rho": np.nan}, "rho"),
        ({"rho_quantile": 1.0}, "rho_quantile"),
        ({"rho_quantile": 0.5, "phi": phi.Squared()}, "l1 or l2"),
        ({"lam": 1.5}, "lam"),
        ({"pull_every": "round"}, "pull_every"),
        ({"weighting": "even"}, "weighting"),
        ({"aggregate_over": "selected"}, "aggregate_over"),
        ({"theta": 0.5, "local": fp.local.ToTolerance()}, "ToTolerance"),
        ({"pull_every": "epoch", "local": fp.local.ToTolerance()}, "ToTolerance"),
        ({"local": fp.Optax(hyperparameters={"b1": 0.9})}, "theta in place of alpha"),
    ],
    algorithms.Flame: [
        ({"kappa": 0.0}, "kappa .* above 0, got 0.0"),
        ({"rho": -1.0}, "rho .* above 0, got -1.0"),
        ({"kappa": 1.0, "rho": 2.0}, "kappa or rho, got both: kappa=1.0, rho=2.0"),
        ({"lam": -0.5}, "lam .* at least 0, got -0.5"),
        ({"lam": math.nan}, "lam .* finite number .* got nan"),
        ({"kappa": math.inf}, "kappa .* finite number .* got inf"),
        ({"rho": "large"}, "rho .* finite number .* got 'large'"),
        ({"eps_decay": 1.0}, "eps_decay .* below 1, got 1.0"),
        (
            {"center": "locale"},
            "center 'locale' .*'local'.* allowed: joint, local, rec",
        ),
        ({"dual_update": "never"}, "dual_update 'never'; allowed: epoch, round"),
        (
            {"weighting": "example"},
            "weighting 'example' .*'examples'.*; allowed: examples, uni",
        ),
        (
            {"local": fp.local.ToTolerance(), "dual_update": "epoch"},
            "dual_update='round' with local=ToTolerance",
        ),
    ],
    algorithms.KNNPer: [
        ({"lam": 1.5}, "lam to be a finite number at least 0 and at most 1"),
        ({"scale": 0.0}, "scale to be a finite number above 0"),
        ({"num_neighbors": 0}, "num_neighbors to be a whole number"),
    ],
    algorithms.LpProj: [
        ({"lam": 0.0}, "lam .* above 0, got 0.0"),
        ({"kappa": -1.0}, "kappa .* above 0, got -1.0"),
        ({"learning_rate": 0}, "learning_rate .* above 0, got 0"),
        ({"inner_learning_rate": 0}, "inner_learning_rate .* above 0, got 0"),
        ({"server_learning_rate": 0}, "server_learning_rate .* above 0, got 0"),
        ({"weight_decay": -0.1}, "weight_decay .* at least 0, got -0.1"),
        ({"clip_norm": 0.0}, "clip_norm .* above 0, got 0.0"),
        ({"form": "amdm"}, "form 'amdm' .*'admm'"),
        ({"dim": 0}, "dim to be a whole number of at least 1, got 0"),
        ({"orthogonal": "yes"}, "orthogonal to be true or false, got 'yes'"),
        ({"norm": 3}, "norm to be a whole number .* 2, got 3"),
        ({"norm": 1, "form": "admm"}, "norm=2 with form='admm'.* got 1"),
        ({"num_steps": 0}, "num_steps to be a whole number of at least 1"),
        ({"inner_steps": 0}, "inner_steps to be a whole number of at least 1"),
        ({"batch_size": 0}, "batch_size to be a whole number of at least 1"),
    ],
    algorithms.MOON: [
        ({"mu": -1.0}, "mu to be a finite number at least 0"),
        ({"temperature": 0.0}, "temperature to be a finite number above 0"),
    ],
    algorithms.PerFedAvg: [
        ({"inner_learning_rate": -1}, "inner_learning_rate to be a finite number at l"),
        ({"learning_rate": 0}, "learning_rate to be a finite number above 0"),
        ({"difference": 0.0}, "difference to be a finite number above 0"),
        ({"num_steps": 0}, "num_steps to be a whole number of at least 1, got 0"),
        ({"batch_size": 2.5}, "batch_size to be a whole number of at least 1"),
        ({"hessian": "none"}, "Unknown hessian 'none'"),
        ({"adapt_steps": 0}, "adapt_steps to be a whole number of at least 1"),
    ],
    algorithms.Scaffold: [
        ({"server_learning_rate": 0}, "server_learning_rate to be a finite number abo"),
        ({"option": "II"}, "Unknown option 'II'; allowed: difference, refresh"),
        ({"local": fp.SGD(momentum=0.0)}, "Scaffold's local solver to be SGD without"),
        ({"local": 0.1}, "local of Scaffold to be an object such as SGD.*got 0.1"),
    ],
    algorithms.FedACS: [
        ({"pick_quantile": 1.0}, "pick_quantile"),
        ({"pick_quantile": -0.1}, "pick_quantile"),
        ({"mixing": 1.1}, "mixing"),
        ({"similarity": "updates"}, "similarity"),
        ({"negative": "drop"}, "negative"),
    ],
    algorithms.FedMGDA: [
        ({"eps": -0.1}, "eps"),
        ({"eps": 1.5}, "eps"),
        ({"server_learning_rate": 0.0}, "server_learning_rate"),
        ({"normalize": 1}, "normalize"),
        ({"keeps_local": None}, "keeps_local"),
    ],
    common_descent.Armijo: [
        ({"doublings": -1}, "doublings"),
        ({"doublings": 1.5}, "doublings"),
        ({"decrease": 1.0}, "decrease"),
        ({"decrease": -1e-4}, "decrease"),
        ({"reject_increase": 1}, "reject_increase"),
    ],
    algorithms.PFedMe: [
        ({"lam": 0.0}, "lam to be a finite number above 0"),
        ({"learning_rate": -1}, "learning_rate to be a finite number above 0"),
        (
            {"inner_learning_rate": 0},
            "inner_learning_rate to be a finite number above 0",
        ),
        (
            {"server_learning_rate": 0},
            "server_learning_rate to be a finite number abov",
        ),
        ({"weight_decay": -0.1}, "weight_decay to be a finite number at least 0"),
        ({"num_steps": 0}, "num_steps to be a whole number of at least 1"),
        ({"inner_steps": 1.5}, "inner_steps to be a whole number of at least 1"),
        ({"batch_size": 0}, "batch_size to be a whole number of at least 1"),
        ({"inner": fp.local.ToTolerance()}, "inner of PFedMe to be a solver in epochs"),
        ({"start": "w"}, "Unknown start 'w'.*; allowed: own, received"),
    ],
    algorithms.FedAMP: [
        ({"lam": -1.0}, "lam"),
        ({"alpha": 0.0}, "alpha"),
        ({"alpha_decay": 1.5}, "alpha_decay"),
        ({"decay_every": 0}, "decay_every"),
        ({"sigma": 0.0}, "sigma"),
        ({"scale_free": 1}, "scale_free"),
        ({"start": "mine"}, "start"),
    ],
    algorithms.HeurFedAMP: [
        ({"lam": -1.0}, "lam"),
        ({"alpha": 0.0}, "alpha"),
        ({"sharpness": -1.0}, "sharpness"),
        ({"self_weight": 1.5}, "self_weight"),
        ({"start": "mine"}, "start"),
    ],
    algorithms.FedSAM: [
        ({"rho": -0.1}, "rho to be a finite number at least 0"),
        ({"rho": math.nan}, "rho to be a finite number at least 0"),
    ],
    algorithms.FedProto: [
        ({"lam": -1.0}, "lam to be a finite number at least 0"),
    ],
}


@pytest.mark.parametrize(
    ("kind", "fields", "message"),
    [(kind, *row) for kind, rows in WRONG.items() for row in rows],
)
def test_wrong_fields_get_one_sentence(kind, fields, message):
    with pytest.raises(fp.InputError, match=message) as caught:
        kind(**fields)
    assert str(caught.value).endswith(".") and "\n" not in str(caught.value)

"""Kept local models: what was trained last, which nobody else reads or attacks."""

import dataclasses

import jax
import numpy as np
import pytest

import fedjax_pfl as fp
from fedjax_pfl import algorithms
from fedjax_pfl.core import checks
from tests import problems
from tests.engine import faults
from tests.lanes import wide

LOCAL = problems.full_gradient_steps(2, 0.3)  # keeps 0.7^2 of the way to a minimizer
MAKE = {
    "fedavg": lambda **fields: fp.FedAvg(local=LOCAL, **fields),
    "fedprox": lambda **fields: algorithms.FedProx(mu=0.5, local=LOCAL, **fields),
    "multi_krum": lambda **fields: fp.MultiKrum(num_malicious=0, local=LOCAL, **fields),
}
WIDE = [*map(wide, ("fedprox", "multi_krum"))]


def _trained(name, w, targets):
    """What each client makes of the model `w [d]`, `[N, d]`."""
    theta, pull = np.broadcast_to(w, targets.shape), 0.5 * (name == "fedprox")
    for _ in range(2):
        theta = theta - 0.3 * ((theta - targets) + pull * (theta - w))
    return theta


@pytest.mark.parametrize("name", ["fedavg", *WIDE])
def test_members_keep_what_they_trained_and_the_training_is_the_same(name):
    problem = faults.problem()
    fields = {
        "participation": fp.UniformCohort(size=3),
        "attack": fp.attacks.Scaling(factor=3.0),
    }
    process = fp.FederatedProcess(algorithm=MAKE[name](keeps_local=True), **fields)
    states, infos, _ = problems.run(process, problem, 4)
    kept, w = states.clients["theta"], states.server["theta"]
    np.testing.assert_array_equal(kept[0], np.broadcast_to(w[0], kept[0].shape))
    attacked = 0
    for round, cohort in enumerate(infos.cohort):
        expected = kept[round].copy()
        expected[cohort] = _trained(name, w[round], problem.estimates)[cohort]
        np.testing.assert_allclose(kept[round + 1], expected, rtol=1e-12)
        absent = np.setdiff1d(np.arange(faults.NUM_CLIENTS), cohort)
        np.testing.assert_array_equal(kept[round + 1][absent], kept[round][absent])
        attacked += (cohort < faults.NUM_MALICIOUS).sum()
    assert attacked > 0  # and yet their rows are what they trained
    plain = dataclasses.replace(process, algorithm=MAKE[name]())
    without, _, _ = problems.run(plain, problem, 4)
    assert without.clients is None
    np.testing.assert_array_equal(without.server["theta"], w)


def test_the_kept_row_is_the_message_without_attack():
    problem = faults.problem()
    process = fp.FederatedProcess(
        algorithm=fp.FedAvg(local=LOCAL, weighting="uniform", keeps_local=True)
    )
    states, _, _ = problems.run(process, problem, 2)
    mean = states.clients["theta"][1:].mean(axis=1)
    np.testing.assert_allclose(mean, states.server["theta"][1:], rtol=1e-12)


@pytest.mark.parametrize("name", MAKE)
def test_predictors(name):
    problem = faults.problem()
    data = problem.federation.train
    w, theta = ({"theta": np.full(3, value)} for value in (1.0, 2.0))
    one = data.pool().with_rows(jax.tree.map(lambda leaf: leaf[0], data.rows()))
    view = fp.ClientView(key=jax.random.key(0), round=0, data=one)
    given = (view, w, theta, problem.model)
    x = np.zeros((2, 3))
    found = MAKE[name](keeps_local=True).predictors(*given)
    assert set(found) == {"global", "personal"}
    expected = {"global": w, "personal": theta}
    for who, predict in found.items():
        wanted = problem.model.apply(expected[who], x)
        np.testing.assert_array_equal(predict(x), wanted)
    assert set(MAKE[name]().predictors(*given)) == {"global"}


def test_wrong_values():
    for make in MAKE.values():
        with pytest.raises(checks.InputError, match="keeps_local to be true or false"):
            make(keeps_local=1)

"""Methods that Fed+ contains, through its class and in implementations of their own."""

import dataclasses

import numpy as np
import pytest

import fedjax_pfl as fp
from fedjax_pfl.algorithms import phi
from tests import problems
from tests.algorithms.test_fedplus import BATCHES, CLOSE, PHIS, run
from tests.lanes import wide


def same_server(algorithm, other, problem, **fields):
    """The server's models of both, after every round."""
    ours, _, _ = run(algorithm, problem, **fields)
    theirs, _, _ = run(other, problem, **fields)
    assert np.ptp(theirs.server["theta"], axis=0).min() > 1e-3
    np.testing.assert_allclose(ours.server.c["theta"], theirs.server["theta"], **CLOSE)
    return ours


@pytest.mark.wide
def test_local_training_is_a_special_case():
    problem = problems.waves()
    ours, _, _ = run(fp.FedPlus(theta=1.0, lam=0.0, local=BATCHES), problem)
    theirs, _, _ = run(fp.Local(local=BATCHES), problem)
    np.testing.assert_array_equal(ours.clients["theta"], theirs.clients["theta"])


@pytest.mark.parametrize("weighting", ["examples", wide("uniform")])
def test_fedavg_is_a_special_case_that_drops_stragglers(weighting):
    algorithm = fp.FedPlus(
        phi=phi.Indicator(),
        theta=1.0,
        lam=1.0,
        weighting=weighting,
        drop_stragglers=True,
        local=BATCHES,
    )
    other = fp.FedAvg(local=BATCHES, weighting=weighting)
    work = fp.Stragglers(fraction=0.5, max_epochs=3)
    same_server(algorithm, other, problems.waves(), work=work)


@pytest.mark.parametrize("rule", [wide(fp.GeometricMedian()), fp.CoordinateMedian()])
def test_rfa_and_coordinate_median_are_special_cases(rule):
    algorithm = fp.FedPlus(theta=1.0, lam=1.0, drop_stragglers=True, local=BATCHES)
    other = fp.FedAvg(local=BATCHES)
    work = fp.Stragglers(fraction=0.4, max_epochs=3)
    same_server(algorithm, other, problems.waves(), aggregator=rule, work=work)


@pytest.mark.wide
def test_fedprox_is_a_special_case_with_the_mapped_step():
    mu, problem = 0.8, problems.waves()
    other = fp.FedProx(mu=mu, local=BATCHES)
    work = fp.Stragglers(fraction=0.5, max_epochs=3)
    same_server(fp.FedPlus.fedprox(mu=mu, local=BATCHES), other, problem, work=work)
    # The paper's own setting is FedProx with another step size.
    literal = fp.FedPlus(
        phi=phi.Indicator(), alpha=mu, lam=1.0, weighting="examples", local=BATCHES
    )
    e = BATCHES.learning_rate
    slower = dataclasses.replace(BATCHES, learning_rate=e / (1 + mu * e))
    same_server(literal, fp.FedProx(mu=mu, local=slower), problem, work=work)


def test_fedprox_is_its_equation_in_numpy():
    problem, mu, steps = problems.waves(), 0.8, 4
    algorithm = fp.FedProx(mu=mu, local=problems.full_gradient_steps(steps, 0.3))
    states, infos, _ = run(algorithm, problem, 5)
    w = states.server["theta"][0]
    counts = np.asarray(problem.federation.train.num_examples, float)
    for number, members in enumerate(infos.cohort):
        sent = [problem.descend(k, w, w, mu, steps) for k in members]
        w = np.average(sent, axis=0, weights=counts[members])
        np.testing.assert_allclose(states.server["theta"][number + 1], w, atol=1e-12)


@pytest.mark.wide
def test_without_mu_fedprox_is_fedavg_that_keeps_stragglers():
    problem = problems.waves()
    work = fp.Stragglers(fraction=0.5, max_epochs=3)
    ours, _, _ = run(fp.FedProx(mu=0.0, local=BATCHES), problem, work=work)
    kept = fp.FedAvg(local=BATCHES, drop_stragglers=False)
    theirs, _, _ = run(kept, problem, work=work)
    np.testing.assert_array_equal(ours.server["theta"], theirs.server["theta"])
    dropped, _, _ = run(fp.FedAvg(local=BATCHES), problem, work=work)
    assert np.abs(dropped.server["theta"] - ours.server["theta"]).max() > 1e-3


@pytest.mark.wide
@pytest.mark.parametrize("name", ["l1", "l2"])
def test_a_radius_above_all_distances_is_the_indicator(name):
    """As at the radius of the paper wherever models stay near each other."""
    problem, far = problems.waves(), 1e3
    found = []
    for choice in (PHIS[name], phi.Indicator()):
        algorithm = fp.FedPlus(phi=choice, alpha=0.5, rho=far, local=BATCHES)
        states, infos, _ = run(algorithm, problem)
        assert (infos.client["clipped"] == 0).all()
        found.append(states)
    np.testing.assert_allclose(
        found[0].clients["theta"], found[1].clients["theta"], **CLOSE
    )


@pytest.mark.wide
def test_every_method_sees_the_same_stragglers_and_only_fedavg_drops_them():
    """Of equal budgets in every round; a dropped message leaves the server alone."""
    problem, rounds = problems.waves(), 5
    work = fp.Stragglers(fraction=0.75, max_epochs=3)
    kinds = {
        "fedavg": fp.FedAvg(local=BATCHES),
        "fedprox": fp.FedProx(mu=0.5, local=BATCHES),
        "fedplus": fp.FedPlus(rho=0.3, lam=0.5, local=BATCHES),
    }
    found = {
        name: run(kind, problem, rounds, work=work) for name, kind in kinds.items()
    }
    _, reference, _ = found["fedavg"]
    for states, infos, _ in found.values():
        np.testing.assert_array_equal(infos.cohort, reference.cohort)
        seen = infos.client["gradient_evaluations"]
        expected = reference.client["gradient_evaluations"]
        np.testing.assert_array_equal(seen, expected)
        del states
    counts = np.asarray(problem.federation.train.num_examples)[reference.cohort]
    epochs = reference.client["gradient_evaluations"] / counts
    assert ((epochs == 3).sum(axis=1) == 1).all()  # round(0.25 * 4) did all of it
    assert set(np.unique(epochs)) == {1, 2, 3}
    # Fed+ without a pull keeps what FedAvg trained: its one active model is the mean.
    alone = fp.FedPlus(theta=1.0, lam=1.0, local=BATCHES)
    states, infos, _ = run(alone, problem, 1, work=work)
    active = infos.cohort[0][epochs[0] == 3]
    trained = states.clients["theta"][1][active][0]
    averaged = found["fedavg"][0].server["theta"][1]
    np.testing.assert_allclose(averaged, trained, atol=1e-12)
    kept = found["fedprox"][0].server["theta"][1]
    assert np.abs(kept - found["fedavg"][0].server["theta"][1]).max() > 1e-3

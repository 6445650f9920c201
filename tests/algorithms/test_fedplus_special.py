"""Methods that Fed+ contains, through its class and in implementations of their own."""

import dataclasses

import numpy as np
import pytest

import fedjax_pfl as fp
from fedjax_pfl.algorithms import phi
from tests import problems
from tests.algorithms.test_fedplus import BATCHES, CLOSE, run
from tests.lanes import wide


def same_server(algorithm, other, problem, **fields):
    """The server's models of both, after every round."""
    ours, _, _ = run(algorithm, problem, **fields)
    theirs, _, _ = run(other, problem, **fields)
    assert np.ptp(theirs.server["theta"], axis=0).min() > 1e-3
    np.testing.assert_allclose(ours.server.c["theta"], theirs.server["theta"], **CLOSE)
    return ours


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


@pytest.mark.wide
@pytest.mark.parametrize("rule", [fp.GeometricMedian(), fp.CoordinateMedian()])
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

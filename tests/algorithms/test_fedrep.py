"""FedRep against NumPy, variable projection, FedAvg, and its predictors."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_pfl as fp
from fedjax_pfl import algorithms
from fedjax_pfl.core import byte_counts
from tests import problems
from tests.algorithms import intercepts
from tests.lanes import wide

CLOSE = {"rtol": 1e-11, "atol": 1e-12}
KEY = jax.random.key(3, impl="threefry2x32")


def process(size=None, **fields):
    who = fp.AllClients() if size is None else fp.UniformCohort(size=size)
    algorithm = algorithms.FedRep(head="^bias$", **fields)
    return fp.FederatedProcess(algorithm=algorithm, participation=who)


@pytest.mark.parametrize("send_heads", [wide(False), True])
def test_rounds_are_the_equations_in_numpy(send_heads):
    problem, pairs = intercepts.with_intercepts(problems.regressions())
    fields = {
        "head_local": problems.full_gradient_steps(2, 0.4, momentum=0.5),
        "local": problems.full_gradient_steps(3, 0.2),
        "send_heads": send_heads,
    }
    states, infos, _ = problems.run(process(3, **fields), problem, 10)
    theta, mean, bias = np.zeros(3), 0.0, np.zeros(5)
    counts = np.array([len(y) for _, y in pairs])
    for number, cohort in enumerate(infos.cohort):
        sent = []
        for i in cohort:
            body, memory = theta, 0.0
            for _ in range(2):
                _, slope = intercepts.gradients(pairs[i], body, bias[i])
                memory = 0.5 * memory + slope
                bias[i] -= 0.4 * memory
            for _ in range(3):
                body = body - 0.2 * intercepts.gradients(pairs[i], body, bias[i])[0]
            sent.append(body)
        theta = np.average(sent, axis=0, weights=counts[cohort])
        mean = np.average(bias[cohort], weights=counts[cohort])
        np.testing.assert_allclose(states.server["theta"][number + 1], theta, **CLOSE)
        np.testing.assert_allclose(states.clients["bias"][number + 1], bias, **CLOSE)
        if send_heads:
            np.testing.assert_allclose(states.server["bias"][number + 1], mean, **CLOSE)
    assert states.clients["theta"] is None
    assert send_heads or states.server["bias"] is None
    assert (byte_counts.total(infos.bytes_up) == 8 * 3 * (3 + send_heads)).all()
    assert (byte_counts.total(infos.bytes_down) == 8 * 3 * 3).all()
    work = infos.client["gradient_evaluations"]
    np.testing.assert_array_equal(work, 5 * counts[infos.cohort])


@pytest.mark.wide
def test_exact_heads_leave_gradient_descent_on_what_heads_cannot_explain():
    # The curvature in the intercept is 1: one step of length 1 minimizes over it, and
    # what is left in theta is least squares on centered inputs and targets.
    problem, pairs = intercepts.with_intercepts(problems.regressions())
    fields = {
        "head_local": problems.full_gradient_steps(1, 1.0),
        "local": problems.full_gradient_steps(1, 0.2),
    }
    states, _, _ = problems.run(process(**fields), problem, 10)
    counts, theta = [len(y) for _, y in pairs], np.zeros(3)
    centered = [(x - x.mean(axis=0), y - y.mean()) for x, y in pairs]
    for found in states.server["theta"]:
        np.testing.assert_allclose(found, theta, **CLOSE)
        slopes = [x.T @ (x @ theta - y) / len(y) for x, y in centered]
        theta = theta - 0.2 * np.average(slopes, axis=0, weights=counts)


@pytest.mark.wide
def test_heads_at_rest_leave_fedavg():
    plain = problems.regressions()
    problem, _ = intercepts.with_intercepts(plain)
    fields = {
        "head_local": fp.SGD(learning_rate=1e-300),
        "local": problems.full_gradient_steps(3, 0.2),
    }
    states, _, _ = problems.run(process(**fields), problem, 8)
    average = fp.FederatedProcess(algorithm=fp.FedAvg(local=fields["local"]))
    expected, _, _ = problems.run(average, plain, 8)
    np.testing.assert_allclose(
        states.server["theta"], expected.server["theta"], **CLOSE
    )


def test_predictors_have_the_latest_body_under_three_heads():
    problem, pairs = intercepts.with_intercepts(problems.regressions())
    tune = problems.full_gradient_steps(2, 0.4)
    algorithm = algorithms.FedRep(head="^bias$", fine_tune=tune, send_heads=True)
    theta, x = np.array([1.0, -0.5, 2.0]), np.random.default_rng(0).normal(size=(4, 3))
    server = {"theta": jnp.asarray(theta), "bias": jnp.asarray(0.3)}
    own = {"theta": None, "bias": jnp.asarray(-0.7)}
    train, i = problem.federation.train, 2
    data = train.pool().with_rows(jax.tree.map(lambda leaf: leaf[i], train.rows()))

    @jax.jit
    def outputs(data):
        view = fp.ClientView(key=KEY, round=0, data=data)
        found = algorithm.predictors(view, server, own, problem.model)
        return {name: fn(jnp.asarray(x)) for name, fn in found.items()}

    tuned = -0.7
    for _ in range(2):
        tuned -= 0.4 * intercepts.gradients(pairs[i], theta, tuned)[1]
    wanted = {"personal": -0.7, "global": 0.3, "fine-tuned": tuned}
    found = outputs(data)
    assert set(found) == set(wanted)
    for name, bias in wanted.items():
        np.testing.assert_allclose(found[name], x @ theta + bias, **CLOSE)


def test_wrong_fields_get_one_sentence():
    with pytest.raises(fp.InputError, match="head to be a regular expression, got"):
        algorithms.FedRep(head="(")
    with pytest.raises(fp.InputError, match="send_heads to be true or false, got 1"):
        algorithms.FedRep(send_heads=1)  # pyright: ignore[reportArgumentType]
    problem, _ = intercepts.with_intercepts(problems.regressions())
    whole = fp.FederatedProcess(algorithm=algorithms.FedRep(head=""))
    with pytest.raises(fp.InputError, match="head='' to match not all of the model's"):
        problems.first_state(whole, problem)

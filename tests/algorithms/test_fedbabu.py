"""FedBABU against NumPy, FedAvg with a frozen head, and its fine-tuning by hand."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_pfl as fp
from fedjax_pfl import algorithms
from fedjax_pfl.core import byte_counts
from fedjax_pfl.testing import compiled_rounds, toy
from tests import problems
from tests.algorithms import intercepts

CLOSE = {"rtol": 1e-11, "atol": 1e-12}
HEAD = 0.7  # the fixed head; the model draws zero


def process(local, size=None, **fields):
    who = fp.AllClients() if size is None else fp.UniformCohort(size=size)
    algorithm = algorithms.FedBABU(head="^bias$", local=local)
    return fp.FederatedProcess(algorithm=algorithm, participation=who, **fields)


def started(whole, problem):
    """The first state, with a head that is not zero."""
    state = problems.first_state(whole, problem)
    rows = jax.tree.map(lambda leaf: leaf + HEAD, state.clients)
    return dataclasses.replace(state, clients=rows)


def test_rounds_are_the_equations_in_numpy():
    problem, pairs = intercepts.with_intercepts(problems.regressions())
    local = problems.full_gradient_steps(3, 0.2, weight_decay=0.1)
    whole = process(local, 3, work=fp.local.ClientBudgets(epochs=(1, 3, 2)))
    state = started(whole, problem)
    states, infos, _ = problems.run(whole, problem, 10, state=state)
    theta, counts = np.zeros(3), np.array([len(y) for _, y in pairs])
    for number in range(10):
        cohort, sent = infos.cohort[number], []
        for i in cohort:
            body = theta
            for _ in range((1, 3, 2)[i % 3]):
                slope, _ = intercepts.gradients(pairs[i], body, HEAD)
                body = body - 0.2 * (slope + 0.1 * body)
            sent.append(body)
        theta = np.average(sent, axis=0, weights=counts[cohort])
        np.testing.assert_allclose(states.server["theta"][number + 1], theta, **CLOSE)
    np.testing.assert_array_equal(states.clients["bias"], HEAD)
    assert states.server["bias"] is None and states.clients["theta"] is None
    # Three numbers of a body travel each way.
    for words in (infos.bytes_up, infos.bytes_down):
        assert byte_counts.total(words)[0] == 3 * 3 * 8


def test_it_is_fedavg_of_a_model_with_a_frozen_head():
    federation = toy.make_federation()
    network = fp.MLP(widths=(4,)).for_federation(federation)
    start = network.init(jax.random.key(7))
    local = fp.SGD(learning_rate=0.3, epochs=2, batch_size=2, weight_decay=0.01)
    found = []
    for model, algorithm in (
        (fp.MLP(widths=(4,), initial_params=start), algorithms.FedBABU(local=local)),
        (
            fp.ParameterRoles(
                fp.MLP(widths=(4,), initial_params=start), frozen="^head/"
            ),
            fp.FedAvg(local=local),
        ),
    ):
        whole = fp.FederatedProcess(
            algorithm=algorithm, participation=fp.UniformCohort(size=5)
        )
        given = model.for_federation(federation)
        state = compiled_rounds.init(whole, jax.random.key(0), given, federation)
        for _ in range(3):
            state, _ = compiled_rounds.run_round(whole, state, given, federation)
        found.append(state.server)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, **CLOSE), *found)


@pytest.mark.parametrize("part", ["whole", "head", "body"])
def test_fine_tuning_trains_its_part(part):
    problem, pairs = intercepts.with_intercepts(problems.regressions())
    tune = problems.full_gradient_steps(4, 0.1)
    algorithm = algorithms.FedBABU(head="^bias$", fine_tune=tune, tuned_part=part)
    body = {"theta": jnp.array([0.3, -0.2, 0.5]), "bias": None}
    head = {"theta": None, "bias": jnp.asarray(HEAD)}
    data = problem.federation.train
    rows = jax.tree.map(lambda leaf: leaf[2], data.rows())
    view = fp.ClientView(
        key=jax.random.key(0), round=0, data=data.pool().with_rows(rows)
    )
    found = algorithm.predictors(view, body, head, problem.model)
    theta, bias = np.asarray(body["theta"]), HEAD
    x = np.random.default_rng(0).normal(size=(5, 3))
    outputs = found["global"](jnp.asarray(x))
    np.testing.assert_allclose(outputs, x @ theta + bias, **CLOSE)
    for _ in range(4):
        for_body, for_head = intercepts.gradients(pairs[2], theta, bias)
        theta = theta - 0.1 * for_body * (part != "head")
        bias = bias - 0.1 * for_head * (part != "body")
    outputs = found["fine-tuned"](jnp.asarray(x))
    np.testing.assert_allclose(outputs, x @ theta + bias, **CLOSE)

"""FedPer against NumPy, its stationary points, FedAvg and Local."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_pfl as fp
from fedjax_pfl import algorithms, attacks, core
from fedjax_pfl.core import byte_counts
from fedjax_pfl.testing import compiled_rounds, toy
from tests import problems
from tests.algorithms import intercepts
from tests.setups import with_malicious

CLOSE = {"rtol": 1e-11, "atol": 1e-12}
KEY = jax.random.key(3, impl="threefry2x32")


def process(local, size=None, **fields):
    who = fp.AllClients() if size is None else fp.UniformCohort(size=size)
    algorithm = algorithms.FedPer(head="^bias$", local=local)
    return fp.FederatedProcess(algorithm=algorithm, participation=who, **fields)


def test_rounds_are_the_equations_in_numpy():
    problem, pairs = intercepts.with_intercepts(problems.regressions())
    local = problems.full_gradient_steps(3, 0.2)
    states, infos, _ = problems.run(process(local, 3), problem, 10)
    theta, bias = np.zeros(3), np.zeros(5)
    counts = np.array([len(y) for _, y in pairs])
    for number in range(10):
        cohort, sent = infos.cohort[number], []
        for i in cohort:
            body = theta
            for _ in range(3):
                for_body, for_bias = intercepts.gradients(pairs[i], body, bias[i])
                body, bias[i] = body - 0.2 * for_body, bias[i] - 0.2 * for_bias
            sent.append(body)
        theta = np.average(sent, axis=0, weights=counts[cohort])
        np.testing.assert_allclose(states.server["theta"][number + 1], theta, **CLOSE)
        np.testing.assert_allclose(states.clients["bias"][number + 1], bias, **CLOSE)
    assert states.server["bias"] is None and states.clients["theta"] is None


@pytest.mark.wide
def test_one_step_rounds_end_at_a_stationary_point_of_the_joint_problem():
    problem, pairs = intercepts.with_intercepts(problems.regressions())
    local = problems.full_gradient_steps(1, 0.3)
    states, _, _ = problems.run(process(local), problem, 1500)
    theta, bias = states.server["theta"][-1], states.clients["bias"][-1]
    found = [
        intercepts.gradients(pair, theta, b)
        for pair, b in zip(pairs, bias, strict=True)
    ]
    counts = [len(y) for _, y in pairs]
    body = np.average([g for g, _ in found], axis=0, weights=counts)
    np.testing.assert_allclose(body, 0, atol=1e-9)
    np.testing.assert_allclose([g for _, g in found], 0, atol=1e-9)
    assert np.ptp(bias) > 0.1


def fedavg(problem, local, num_rounds):
    return problems.run(
        fp.FederatedProcess(algorithm=fp.FedAvg(local=local)), problem, num_rounds
    )[0]


@pytest.mark.wide
def test_identical_clients_are_fedavg_and_one_client_is_local():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(6, 2)), rng.normal(size=6)
    federation = problems._federation([x] * 3, [y] * 3, "copies")
    problem, _ = intercepts.with_intercepts(
        dataclasses.replace(problems.regressions(3, 2), federation=federation)
    )
    local = problems.full_gradient_steps(3, 0.2)
    states, _, _ = problems.run(process(local), problem, 8)
    average = fedavg(problem, local, 8).server
    np.testing.assert_allclose(states.server["theta"], average["theta"], **CLOSE)
    for head in states.clients["bias"].T:
        np.testing.assert_allclose(head, average["bias"], **CLOSE)

    minibatches = fp.SGD(learning_rate=0.1, epochs=2, batch_size=2)
    single, _ = intercepts.with_intercepts(problems.regressions(num_clients=1))
    states, _, _ = problems.run(process(minibatches), single, 8)
    alone, _, _ = problems.run(
        fp.FederatedProcess(algorithm=fp.Local(local=minibatches)), single, 8
    )
    np.testing.assert_allclose(
        states.server["theta"], alone.clients["theta"][:, 0], **CLOSE
    )
    np.testing.assert_allclose(states.clients["bias"], alone.clients["bias"], **CLOSE)


def test_attacks_and_traffic_concern_bodies_only():
    problem, _ = intercepts.with_intercepts(problems.regressions())
    problem = with_malicious(problem, 1)
    local = problems.full_gradient_steps(2)
    honest, infos, _ = problems.run(process(local), problem, 1)
    attack = attacks.SignFlip(scale=5.0)
    attacked, _, _ = problems.run(process(local, attack=attack), problem, 1)
    np.testing.assert_array_equal(honest.clients["bias"], attacked.clients["bias"])
    change = np.abs(honest.server["theta"][1] - attacked.server["theta"][1])
    assert change.max() > 0.1
    for words in (infos.bytes_up, infos.bytes_down):
        assert byte_counts.total(words)[0] == 5 * 3 * 8


def test_a_networks_head_stays_and_predicts_with_the_latest_body():
    federation = toy.make_federation()
    model = fp.MLP(widths=(5,)).for_federation(federation)
    algorithm = algorithms.FedPer(local=fp.SGD(learning_rate=0.5, batch_size=4))
    who = fp.UniformCohort(size=3)
    whole = fp.FederatedProcess(algorithm=algorithm, participation=who)
    first = compiled_rounds.init(whole, KEY, model, federation)
    state, info = jax.jit(lambda s: whole.round(s, model, federation))(first)
    assert set(state.server) - {"head"} and not jax.tree.leaves(state.server["head"])
    before, after = (s.clients["head"]["kernel"] for s in (first, state))
    moved = (before != after).any(axis=(1, 2))
    np.testing.assert_array_equal(np.flatnonzero(moved), info.cohort)
    absent = np.flatnonzero(~moved)[0]
    start = model.init(core.stream_key(KEY, core.Stream.INIT, 0))
    np.testing.assert_array_equal(after[absent], start["head"]["kernel"])

    x = jnp.asarray(np.random.default_rng(0).normal(size=(4, 4)))
    for i in (absent, info.cohort[0]):
        row = jax.tree.map(lambda leaf, i=i: leaf[i], state.clients)
        view = fp.ClientView(key=KEY, round=0, data=federation.train.pool())
        found = algorithm.predictors(view, state.server, row, model)
        params = state.server | {"head": row["head"]}
        np.testing.assert_array_equal(found["personal"](x), model.apply(params, x))


@pytest.mark.parametrize(
    ("head", "message"),
    [
        ("^tail/", "head='\\^tail/' to match some of the model's parameters: bias, th"),
        ("", "head='' to match not all of the model's parameters: bias, theta"),
    ],
)
def test_a_head_must_be_a_part_of_the_model(head, message):
    problem, _ = intercepts.with_intercepts(problems.regressions())
    whole = fp.FederatedProcess(algorithm=algorithms.FedPer(head=head))
    with pytest.raises(fp.InputError, match=message):
        problems.first_state(whole, problem)


@pytest.mark.parametrize("head", ["^head/(", 3, "a{99999999999}"])
def test_wrong_patterns_get_one_sentence(head):
    with pytest.raises(fp.InputError, match="a regular expression, got|text, got"):
        algorithms.FedPer(head=head)

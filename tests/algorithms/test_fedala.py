"""FedALA against its equations in NumPy and FedPer."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_pfl as fp
from fedjax_pfl import algorithms
from fedjax_pfl.algorithms import fedala
from fedjax_pfl.testing import toy
from tests import problems
from tests.algorithms import intercepts
from tests.lanes import wide
from tests.setups import process

CLOSE = {"rtol": 1e-9, "atol": 1e-11}


def learned(pair, w, own, weights, epochs, rate, threshold):
    """Weights of `theta` by full gradients, and the number of epochs taken."""
    (theta, bias), losses = w, []
    for _ in range(epochs):
        merged = weights * theta + (1 - weights) * own
        x, y = pair
        losses.append(0.5 * np.square(x @ merged + bias - y).mean())
        slope, _ = intercepts.gradients(pair, merged, bias)
        weights = np.clip(weights - rate * slope * (theta - own), 0, 1)
        if len(losses) > 10 and np.std(losses[-10:]) < threshold:
            break
    return weights, len(losses)


@pytest.mark.parametrize(("threshold", "rate"), [(0.02, 0.3), wide(0.0, 5.0)])
def test_rounds_are_the_equations_in_numpy(threshold, rate):
    problem, pairs = intercepts.with_intercepts(problems.regressions())
    local = problems.full_gradient_steps(3, 0.2)
    algorithm = algorithms.FedALA(
        adapted="^theta$",
        weight_learning_rate=rate,
        sample_fraction=1.0,
        threshold=threshold,
        start_epochs=15,
        local=local,
    )
    states, infos, _ = problems.run(process(algorithm, 3), problem, 12)
    w = (np.zeros(3), 0.0)
    own, weights = [w] * 5, [np.ones(3)] * 5
    started, counts = [0] * 5, np.array([len(y) for _, y in pairs])
    epochs_seen = set()
    for number in range(12):
        cohort, sent = infos.cohort[number], []
        for place, i in enumerate(cohort):
            taken = 0
            if number:
                weights[i], taken = learned(
                    *(pairs[i], w, own[i][0], weights[i]),
                    *(1 if started[i] else 15, rate, threshold),
                )
                started[i] += 1
                epochs_seen.add(taken)
            theta = weights[i] * w[0] + (1 - weights[i]) * own[i][0]
            bias = w[1]
            for _ in range(3):
                for_theta, for_bias = intercepts.gradients(pairs[i], theta, bias)
                theta, bias = theta - 0.2 * for_theta, bias - 0.2 * for_bias
            own[i] = (theta, bias)
            sent.append(own[i])
            evaluations = infos.client["gradient_evaluations"][number, place]
            assert evaluations == (taken + 3) * counts[i]
        shares = counts[cohort] / counts[cohort].sum()
        w = tuple(shares @ np.array([s[k] for s in sent]) for k in range(2))
        server, clients = states.server, states.clients
        np.testing.assert_allclose(server["theta"][number + 1], w[0], **CLOSE)
        np.testing.assert_allclose(server["bias"][number + 1], w[1], **CLOSE)
        found = clients.weights["theta"][number + 1]
        np.testing.assert_allclose(found, weights, **CLOSE)
        np.testing.assert_allclose(
            clients.theta["theta"][number + 1], [o[0] for o in own], **CLOSE
        )
        np.testing.assert_array_equal(clients.learned[number + 1], started)
    # Some first learnings end early; weights reach both ends and values between.
    assert 1 in epochs_seen and (threshold == 0) == (epochs_seen == {1, 15})
    assert np.ptp(weights) > 0.1
    assert states.clients.weights["bias"] is None


@pytest.mark.wide
def test_with_weights_of_zero_it_is_fedper():
    problem, _ = intercepts.with_intercepts(problems.regressions())
    local = fp.SGD(learning_rate=0.1, epochs=2, batch_size=2)
    algorithm = algorithms.FedALA(
        adapted="^bias$", weight_learning_rate=0.0, local=local
    )
    whole = process(algorithm, 3)
    state = problems.first_state(whole, problem)
    weights = jax.tree.map(jnp.zeros_like, state.clients.weights)
    state = dataclasses.replace(
        state, clients=dataclasses.replace(state.clients, weights=weights)
    )
    ours, _, _ = problems.run(whole, problem, 8, state=state)
    personal = algorithms.FedPer(head="^bias$", local=local)
    theirs, _, _ = problems.run(process(personal, 3), problem, 8)
    np.testing.assert_allclose(ours.server["theta"], theirs.server["theta"], **CLOSE)
    np.testing.assert_allclose(
        ours.clients.theta["bias"], theirs.clients["bias"], **CLOSE
    )


def test_the_personal_model_is_merged_with_the_latest_global_one():
    problem, pairs = intercepts.with_intercepts(problems.regressions())
    algorithm = algorithms.FedALA(
        adapted="^theta$",
        weight_learning_rate=0.3,
        sample_fraction=1.0,
        local=problems.full_gradient_steps(1, 0.2),
    )
    own, w = np.array([0.5, -1.0, 2.0]), np.array([1.0, 0.2, -0.3])
    client = fedala.FedALAClient(
        theta={"theta": jnp.asarray(own), "bias": jnp.asarray(0.1)},
        weights={"theta": jnp.full(3, 0.8), "bias": None},
        learned=jnp.ones((), jnp.int32),
    )
    server = {"theta": jnp.asarray(w), "bias": jnp.asarray(0.4)}
    data = problem.federation.train
    rows = jax.tree.map(lambda leaf: leaf[3], data.rows())
    view = fp.ClientView(
        key=jax.random.key(0), round=0, data=data.pool().with_rows(rows)
    )

    @jax.jit
    def outputs(x):
        found = algorithm.predictors(view, server, client, problem.model)
        return {name: fn(x) for name, fn in found.items()}

    weights, _ = learned(pairs[3], (w, 0.4), own, np.full(3, 0.8), 1, 0.3, 0.1)
    x = np.random.default_rng(0).normal(size=(4, 3))
    merged = weights * w + (1 - weights) * own
    found = outputs(x)
    np.testing.assert_allclose(found["personal"], x @ merged + 0.4, **CLOSE)
    np.testing.assert_allclose(found["global"], x @ w + 0.4, **CLOSE)


@pytest.mark.parametrize(
    ("fraction", "counts"),
    [(1.0, (5, 2, 9, 1)), (0.5, (2, 1, 4, 1)), (0.01, (1, 1, 1, 1))],
)
def test_weights_are_learned_by_a_random_share_of_the_examples(fraction, counts):
    data, subset = toy.make_federation().train, jax.jit(fedala._subset)
    for client, count in zip((0, 1, 2, 5), counts, strict=True):
        rows = jax.tree.map(lambda leaf, i=client: leaf[i], data.rows())
        one = data.pool().with_rows(rows)
        drawn = set()
        for seed in range(8):
            part = subset(jax.random.key(seed), one, fraction)
            assert int(part.num_examples) == count
            chosen = np.asarray(part.index)[:count]
            real = np.asarray(one.index)[: toy.COUNTS[client]]
            assert len(set(chosen)) == count and set(chosen) <= set(real)
            drawn.add(tuple(sorted(chosen)))
        assert (len(drawn) > 1) == (count < toy.COUNTS[client])


def test_a_pattern_that_finds_nothing_is_refused():
    whole = process(algorithms.FedALA(adapted="^neck/"))
    with pytest.raises(fp.InputError, match="adapted='.neck/' to match some of the"):
        problems.first_state(whole, problems.waves())
